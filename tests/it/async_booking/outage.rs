//! What becomes of accepted orders when Redis or the database is lost while they wait.

use flashlock::lab::{Lab, LabPlan, ServerId};

use super::{
    Books, RedisServer, Service, accepted, assert_accepted, decided, keys, options, sale, status,
    store, until, until_drained, world,
};

const BUYERS: [&str; 3] = ["alice", "bob", "carol"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_redis_lost_is_told_as_abandoned_and_blocks_neither_user_nor_stock() {
    let url = world().database("postgres").await;
    // Nothing of it is on disk.
    let mut redis = RedisServer::start(&[]).await;
    let service = Service::start(&options(&url, &redis.url(), "api")).await;
    let api = &service.api;
    let activity = api.open(sale(3)).await;
    let mut lost = Vec::new();
    for user in BUYERS {
        lost.push(accepted(api, &activity, user).await);
    }
    redis.kill();
    redis.start_again().await;
    // Its purchase finds out that this is another Redis; the others wait until it is rebuilt.
    let alice = api
        .buy_surely(&activity, "alice", "new", &[("phone", 1)])
        .await;
    assert_accepted(&alice);
    for order in &lost {
        let end = decided(api, order).await;
        assert_eq!(end.body["status"], "ABANDONED", "{end:?}");
        assert_eq!(end.order_id(), *order);
    }
    // The same key is as good as a new one.
    let bob = api
        .buy_surely(&activity, "bob", "key", &[("phone", 1)])
        .await;
    assert_accepted(&bob);
    assert_eq!(bob.order_id(), lost[1]);
    let booker = Service::start(&options(&url, &redis.url(), "booker")).await;
    for order in [alice.order_id(), bob.order_id()] {
        assert_eq!(status(api, &order).await, "PENDING_PAYMENT");
    }
    until_drained(&redis.con().await, &activity).await;
    assert_eq!(api.stock(&activity, "phone").await, (3, 1, 2, 0));
    let books = Books::read(&store(&url).await, &activity).await;
    books.assert_balanced("after redis was lost");
    drop(booker);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_redis_kept_through_a_crash_is_booked() {
    let url = world().database("postgres").await;
    let mut redis = RedisServer::start(&["--appendonly", "yes", "--appendfsync", "always"]).await;
    let service = Service::start(&options(&url, &redis.url(), "api")).await;
    let api = &service.api;
    let activity = api.open(sale(4)).await;
    let mut orders = Vec::new();
    for user in BUYERS {
        orders.push(accepted(api, &activity, user).await);
    }
    redis.kill();
    // To ask changes nothing, so nothing is unknown, on a connection that breaks or without one.
    for order in &orders {
        let told = api.get(&format!("/v1/orders/{order}")).await;
        told.assert_problem(503, "strategy-unavailable", "redis");
    }
    redis.start_again().await;
    let dave = api
        .buy_surely(&activity, "dave", "key", &[("phone", 1)])
        .await;
    assert_accepted(&dave);
    orders.push(dave.order_id());
    let erin = api
        .buy_surely(&activity, "erin", "key", &[("phone", 1)])
        .await;
    erin.assert_problem(409, "sold-out", "0 of phone");
    let booker = Service::start(&options(&url, &redis.url(), "booker")).await;
    for order in &orders {
        assert_eq!(status(api, order).await, "PENDING_PAYMENT");
    }
    until_drained(&redis.con().await, &activity).await;
    assert_eq!(api.stock(&activity, "phone").await, (4, 0, 4, 0));
    drop(booker);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_its_database_the_gate_holds_up_to_its_bound_and_all_is_booked_once_it_is_back() {
    const BOUND: usize = 5;
    let lab = Lab::start(&LabPlan {
        postgres: true,
        ..LabPlan::nothing()
    })
    .await
    .expect("a lab");
    let url = lab.postgres_url().expect("it runs");
    let redis = RedisServer::start(&[]).await;
    let service = Service::start(&options(&url, &redis.url(), "api,booker")).await;
    let api = &service.api;
    let activity = api.open(sale(100)).await;
    let before = accepted(api, &activity, "before").await;
    assert_eq!(status(api, &before).await, "PENDING_PAYMENT");
    let mut con = redis.con().await;
    until_drained(&con, &activity).await;
    redis::cmd("HSET")
        .arg(keys(&activity).meta)
        .arg("pend_max")
        .arg(BOUND)
        .query_async::<()>(&mut con)
        .await
        .expect("set");

    lab.kill(ServerId::Postgres).await.expect("it runs");
    let mut orders = Vec::new();
    for n in 0..BOUND {
        orders.push(accepted(api, &activity, &format!("u{n}")).await);
    }
    let full = api.buy(&activity, "late", "key", &[("phone", 1)]).await;
    full.assert_problem(503, "busy", "try again");
    assert_eq!(accepted(api, &activity, "u0").await, orders[0]);

    lab.restart(ServerId::Postgres).await.expect("it starts");
    for order in &orders {
        assert_eq!(status(api, order).await, "PENDING_PAYMENT");
    }
    let late = until("there is room again", || async {
        let late = api.buy(&activity, "late", "key", &[("phone", 1)]).await;
        (late.status != 503).then_some(late)
    })
    .await;
    assert_accepted(&late);
    assert_eq!(status(api, &late.order_id()).await, "PENDING_PAYMENT");
    until_drained(&con, &activity).await;
    assert_eq!(api.stock(&activity, "phone").await, (100, 93, 7, 0));
    let books = Books::read(&store(&url).await, &activity).await;
    books.assert_balanced("after the database was away");
    lab.stop().await.expect("it ends");
}
