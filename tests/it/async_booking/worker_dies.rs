//! A booking worker that dies, or whose wake-up is lost, leaves nothing undone.

use std::time::Duration;

use futures::future::join_all;
use redis::aio::MultiplexedConnection;

use super::{
    RedisServer, Service, Store, accepted, count, decided, keys, options, sale, store, until,
    until_drained, world,
};
use crate::books::Books;
use crate::held::Held;

const BUYERS: [&str; 3] = ["alice", "bob", "carol"];

/// A sale whose bookings stand right before their commit, in a process that is going to die.
struct Doomed {
    url: String,
    redis: RedisServer,
    con: MultiplexedConnection,
    service: Service,
    activity: String,
    orders: Vec<String>,
    held: Held,
}

impl Doomed {
    async fn stand() -> Self {
        let url = world().database("postgres").await;
        let redis = RedisServer::start(&[]).await;
        let service = Service::start(&options(&url, &redis.url(), "api,booker")).await;
        let activity = service.api.open(sale(3)).await;
        let mut held = Held::take(&url, &activity).await;
        let mut orders = Vec::new();
        for user in BUYERS {
            orders.push(accepted(&service.api, &activity, user).await);
        }
        held.until_waiters(1).await;
        Self {
            con: redis.con().await,
            url,
            redis,
            service,
            activity,
            orders,
            held,
        }
    }
}

/// Another process finishes what is left: every order is booked, once.
async fn is_finished_by_an_heir(url: &str, redis: &RedisServer, activity: &str, orders: &[String]) {
    let heir = Service::start(&options(url, &redis.url(), "api,booker")).await;
    for end in join_all(orders.iter().map(|order| decided(&heir.api, order))).await {
        assert_eq!(end.body["status"], "PENDING_PAYMENT", "{end:?}");
    }
    until_drained(&redis.con().await, activity).await;
    let n = orders.len() as i64;
    assert_eq!(heir.api.stock(activity, "phone").await, (n, 0, n, 0));
    let books = Books::read(&store(url).await, activity).await;
    books.assert_balanced("after the heir");
    let sold: String = redis::cmd("HGET")
        .arg(keys(activity).committed)
        .arg("phone")
        .query_async(&mut redis.con().await)
        .await
        .expect("a counter");
    assert_eq!(sold, n.to_string());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_killed_worker_had_claimed_and_not_booked_is_booked_by_another() {
    let doomed = Doomed::stand().await;
    doomed.service.kill().await;
    doomed.held.let_go().await;
    let mut con = doomed.con.clone();
    let handed = count(&mut con, "XLEN", &keys(&doomed.activity).q).await;
    assert_eq!(handed, 3, "the dead worker had not taken them out");
    is_finished_by_an_heir(&doomed.url, &doomed.redis, &doomed.activity, &doomed.orders).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_killed_after_its_commit_and_before_it_told_the_gate_books_nothing_twice() {
    let doomed = Doomed::stand().await;
    let mut con = doomed.con.clone();
    // The database's answer is let through, and no word to Redis.
    redis::cmd("CLIENT")
        .arg("PAUSE")
        .arg(600_000)
        .arg("WRITE")
        .query_async::<()>(&mut con)
        .await
        .expect("paused");
    doomed.held.let_go().await;
    let store: Store = store(&doomed.url).await;
    until("some order is committed", || async {
        let first = doomed.orders[0].split('.').nth(1).expect("a rid");
        let rid = first.parse().expect("a rid");
        store.order(rid).await.expect("read").map(drop)
    })
    .await;
    doomed.service.kill().await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    redis::cmd("CLIENT")
        .arg("UNPAUSE")
        .query_async::<()>(&mut con)
        .await
        .expect("goes on");
    let pend = count(&mut con, "ZCARD", &keys(&doomed.activity).pend).await;
    assert_eq!(pend, 3, "the gate was told nothing");
    is_finished_by_an_heir(&doomed.url, &doomed.redis, &doomed.activity, &doomed.orders).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sweeper_books_what_the_stream_lost_and_leaves_a_backlog_alone() {
    for database in ["sqlite", "postgres"] {
        let url = world().database(database).await;
        let redis = RedisServer::start(&[]).await;
        let service = Service::start(&options(&url, &redis.url(), "api,sweeper")).await;
        let api = &service.api;
        let backlog = api.open(sale(1)).await;
        let waits = accepted(api, &backlog, "alice").await;
        for lose in ["DEL", "XTRIM"] {
            let activity = api.open(sale(5)).await;
            let mut orders = Vec::new();
            for user in BUYERS {
                orders.push(accepted(api, &activity, user).await);
            }
            let mut cmd = redis::cmd(lose);
            cmd.arg(keys(&activity).q);
            if lose == "XTRIM" {
                cmd.arg("MAXLEN").arg(0);
            }
            let mut con = redis.con().await;
            cmd.query_async::<()>(&mut con).await.expect("lost");
            for order in &orders {
                let end = decided(api, order).await;
                assert_eq!(end.body["status"], "PENDING_PAYMENT", "{lose}: {end:?}");
            }
            until_drained(&con, &activity).await;
            let books = Books::read(&store(&url).await, &activity).await;
            books.assert_balanced(database);
            assert_eq!(api.stock(&activity, "phone").await, (5, 2, 3, 0));
        }
        // Long past the age at which a hold of a purchase that books itself is given up.
        let told = api.get(&format!("/v1/orders/{waits}")).await;
        let status = told.body["status"].as_str().unwrap_or_default();
        assert!(
            ["ACCEPTED", "PENDING_PAYMENT"].contains(&status),
            "a backlog was taken for an orphan: {told:?}"
        );
    }
}

/// Redis dies between the two commands that take a booked hold out of the stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_taken_out_of_the_stream_is_taken_out_by_the_next_worker() {
    let url = world().database("postgres").await;
    let mut redis = RedisServer::start(&["--appendonly", "yes", "--appendfsync", "always"]).await;
    let service = Service::start(&options(&url, &redis.url(), "api,booker")).await;
    let activity = service.api.open(sale(3)).await;
    let order = accepted(&service.api, &activity, "alice").await;
    decided(&service.api, &order).await;
    until_drained(&redis.con().await, &activity).await;
    service.kill().await;
    redis.kill();
    redis.tear_at_the_last(&["XDEL", "XACK"]);
    redis.start_again().await;
    let heir = Service::start(&options(&url, &redis.url(), "api,booker")).await;
    until_drained(&redis.con().await, &activity).await;
    until("no worker holds it", || async {
        let mut summary = redis::cmd("XPENDING");
        summary.arg(keys(&activity).q).arg(flashlock::keys::BOOKERS);
        let mut con = redis.con().await;
        let (held, ..): (i64, redis::Value, redis::Value, redis::Value) =
            summary.query_async(&mut con).await.expect("a summary");
        (held == 0).then_some(())
    })
    .await;
    let end = decided(&heir.api, &order).await;
    assert_eq!(end.body["status"], "PENDING_PAYMENT", "{end:?}");
}
