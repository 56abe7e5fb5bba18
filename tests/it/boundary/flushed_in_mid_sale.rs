//! Redis is flushed while a sale runs, and with it who has bought: does anybody buy twice?

use std::time::Duration;

use futures::future::join_all;

use crate::boundary::{buy, phones, post, until, until_at_rest};
use crate::gate::server::RedisServer;
use crate::soak::laws::Ground;
use crate::world::{Service, world};

const USERS: usize = 40;
const STOCK: i64 = 30;
const FLUSHES: usize = 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_bought_is_known_after_a_flush() {
    let redis = RedisServer::start(&[]).await;
    let database = world().database("postgres").await;
    let env = post(&database, &redis.url(), "api,relay,sweeper");
    let (one, other) = tokio::join!(Service::start(&env), Service::start(&env));
    let sale = one.api.open(phones(STOCK)).await;
    let ground = Ground::open(sale.parse().expect("an id"), &database, &redis.url()).await;
    let flushes = async {
        for _ in 0..FLUSHES {
            tokio::time::sleep(Duration::from_millis(150)).await;
            let mut con = redis.con().await;
            let flushed = redis::cmd("FLUSHALL").query_async::<()>(&mut con).await;
            flushed.expect("flushed");
        }
    };
    let apis = [&one.api, &other.api];
    // Each user with two keys, one after the other, through both processes.
    let buys = (0..USERS).map(|n| {
        let (sale, user) = (&sale, format!("u-{n}"));
        async move {
            tokio::time::sleep(Duration::from_millis(15 * n as u64)).await;
            let first = buy(apis[n % 2], sale, &user, "k1").await;
            let second = buy(apis[(n + 1) % 2], sale, &user, "k2").await;
            (first, second)
        }
    });
    let (answers, ()) = tokio::join!(join_all(buys), flushes);
    let mut booked = 0;
    for (first, second) in answers {
        if first.status == 201 || first.status == 200 {
            booked += 1;
            second.assert_problem(409, "already-purchased", &first.order_id());
        } else if [200, 201].contains(&second.status) {
            booked += 1;
        }
    }
    // Others come too late; one of them finds a gate that was flushed behind everybody's back.
    until("the gate is there", || async {
        let late = buy(&one.api, &sale, "late", "k").await;
        late.assert_problem(409, "sold-out", "0 of phone are left");
        ground.broken_at_rest().await.is_empty()
    })
    .await;
    assert_eq!(booked, STOCK, "every unit is sold once");
    until_at_rest(&ground).await;
}
