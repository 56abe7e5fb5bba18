//! What a process remembers of a sold-out is dropped by a restock, and stands in no buyer's way.

use std::time::Duration;

use serde_json::{Value, json};

use super::{phones, service, service_on, until};
use crate::held::Held;
use crate::world::{Api, world};

async fn cancel(api: &Api, order: &str) {
    let cancelled = api
        .post(&format!("/v1/orders/{order}/cancel"), Value::Null)
        .await;
    assert_eq!(cancelled.status, 200, "{cancelled:?}");
}

fn sale(strategy: &str, stock: i64) -> Value {
    phones(stock, json!({"strategy": strategy}))
}

/// Everything but ZooKeeper and RedLock, which sell from the database as the others do.
async fn strategies() -> (crate::world::Service, &'static [&'static str]) {
    let redis = world().lab.redis_url().expect("redis runs");
    let service = service(&[("REDIS_URL", &redis)]).await;
    (
        service,
        &["db-conditional-update", "redis-set-nx", "redis-lua"],
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn units_that_come_back_are_sold_at_once_in_the_process_that_took_them_back() {
    let (service, strategies) = strategies().await;
    let api = &service.api;
    for strategy in strategies {
        let activity = api.open(sale(strategy, 1)).await;
        for round in 0..5 {
            let key = format!("k-{round}");
            let lucky = api.buy(&activity, "alice", &key, &[("phone", 1)]).await;
            assert_eq!(lucky.status, 201, "{strategy}: {lucky:?}");
            for user in ["bob", "carol"] {
                let late = api.buy(&activity, user, &key, &[("phone", 1)]).await;
                late.assert_problem(409, "sold-out", "0 of phone");
            }
            cancel(api, &lucky.order_id()).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_closed_for_lack_of_payment_is_sold_again() {
    let (service, strategies) = strategies().await;
    let api = &service.api;
    for strategy in strategies {
        let mut short = sale(strategy, 1);
        short["pay_window_s"] = json!(1);
        let activity = api.open(short).await;
        let lucky = api.buy(&activity, "alice", "k", &[("phone", 1)]).await;
        assert_eq!(lucky.status, 201, "{strategy}: {lucky:?}");
        until("the closer gives it back", async || {
            let answer = api.buy(&activity, "bob", "k", &[("phone", 1)]).await;
            if answer.status != 201 {
                answer.assert_problem(409, "sold-out", "0 of phone");
            }
            answer.status == 201
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn units_that_another_process_took_back_are_sold_here_soon() {
    let redis = world().lab.redis_url().expect("redis runs");
    let database = world().database("postgres").await;
    let here = service_on(&database, &[("REDIS_URL", &redis)]).await;
    let there = service_on(&database, &[("REDIS_URL", &redis)]).await;
    for strategy in ["db-conditional-update", "redis-lua"] {
        let activity = here.api.open(sale(strategy, 1)).await;
        let lucky = here.api.buy(&activity, "alice", "k", &[("phone", 1)]).await;
        assert_eq!(lucky.status, 201, "{strategy}: {lucky:?}");
        let late = here.api.buy(&activity, "bob", "k", &[("phone", 1)]).await;
        late.assert_problem(409, "sold-out", "0 of phone");
        cancel(&there.api, &lucky.order_id()).await;
        // The memory is 200 ms old at most.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let late = here.api.buy(&activity, "bob", "k", &[("phone", 1)]).await;
        assert_eq!(late.status, 201, "{strategy}: {late:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sold_out_from_memory_is_the_one_the_store_tells_and_no_replay_gets_it() {
    let (service, strategies) = strategies().await;
    let api = &service.api;
    for strategy in strategies {
        let activity = api.open(sale(strategy, 2)).await;
        let lucky = api.buy(&activity, "alice", "k", &[("phone", 1)]).await;
        assert_eq!(lucky.status, 201, "{strategy}: {lucky:?}");
        let mut told = Vec::new();
        for n in 0..4 {
            let answer = api
                .buy(&activity, "bob", &format!("k-{n}"), &[("phone", 2)])
                .await;
            told.push((answer.status, answer.body));
            let again = api.buy(&activity, "alice", "k", &[("phone", 1)]).await;
            assert_eq!((again.status, again.order_id()), (200, lucky.order_id()));
            let other = api.buy(&activity, "alice", "k-2", &[("phone", 2)]).await;
            other.assert_problem(409, "already-purchased", &lucky.order_id());
            let reused = api.buy(&activity, "alice", "k", &[("phone", 2)]).await;
            reused.assert_problem(422, "idempotency-key-reused", "another body");
        }
        told.dedup();
        assert_eq!(told.len(), 1, "{strategy}: {told:?}");
        assert_eq!(told[0].1["left"], 1, "{strategy}: {told:?}");
        // Two are too many, one is not.
        let one = api.buy(&activity, "carol", "k", &[("phone", 1)]).await;
        assert_eq!(one.status, 201, "{strategy}: {one:?}");
    }
}

/// A hold in Redis that the database does not show yet: its buyer has the last unit.
#[tokio::test(flavor = "multi_thread")]
async fn a_buyer_whose_purchase_is_on_its_way_is_not_told_that_it_is_sold_out() {
    let redis = world().lab.redis_url().expect("redis runs");
    let database = world().database("postgres").await;
    let service = service_on(&database, &[("REDIS_URL", &redis)]).await;
    let api = &service.api;
    let activity = api.open(sale("redis-lua", 1)).await;
    let mut held = Held::take(&database, &activity).await;
    let buy = |key: &'static str| {
        let (api, activity) = (api.clone(), activity.clone());
        tokio::spawn(async move {
            api.buy_surely(&activity, "alice", key, &[("phone", 1)])
                .await
        })
    };
    let first = buy("k");
    held.until_waiters(1).await;
    let late = api.buy(&activity, "bob", "k", &[("phone", 1)]).await;
    late.assert_problem(409, "sold-out", "0 of phone");
    // Within the 200 ms for which bob's answer is remembered.
    let (again, other) = (buy("k"), buy("k-2"));
    tokio::time::sleep(Duration::from_millis(400)).await;
    held.let_go().await;
    let first = first.await.expect("no panic");
    assert!([200, 201].contains(&first.status), "{first:?}");
    let again = again.await.expect("no panic");
    assert!([200, 201].contains(&again.status), "{again:?}");
    assert_eq!(again.order_id(), first.order_id());
    let other = other.await.expect("no panic");
    other.assert_problem(409, "already-purchased", &first.order_id());
}
