//! The database takes connections and answers nothing: are buyers answered, and is it over with it?

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flashlock::clock;
use flashlock::keys::GateKeys;
use futures::future::join_all;

use crate::boundary::{buy, phones, post, until_at_rest};
use crate::soak::laws::Ground;
use crate::tap::{Act, Tap, has, host_of};
use crate::world::{Service, world};

/// Holds that may wait for their booking in this test.
const HOLDS_MAX: usize = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holds_wait_for_a_hanging_database_up_to_a_bound() {
    let database = world().database("postgres").await;
    let redis = world().lab.redis_url().expect("redis runs");
    let hangs = Arc::new(AtomicBool::new(true));
    let hanging = Arc::clone(&hangs);
    let tap = Tap::before(&host_of(&database), move |piece| {
        match has(piece, "INSERT INTO orders") && hanging.load(Ordering::SeqCst) {
            true => Act::Keep,
            false => Act::Pass,
        }
    })
    .await;
    let service = Service::start(&post(&tap.instead_of(&database), &redis, "api")).await;
    let api = &service.api;
    let sale = api.open(phones(10)).await;
    let ground = Ground::open(sale.parse().expect("an id"), &database, &redis).await;
    let mut bound = redis::cmd("HSET");
    bound
        .arg(GateKeys::of(&ground.id).meta)
        .arg("pend_max")
        .arg(HOLDS_MAX);
    let mut con = ground.redis().await.expect("redis runs");
    bound.query_async::<()>(&mut con).await.expect("set");
    let users: Vec<String> = (0..HOLDS_MAX).map(|n| format!("u-{n}")).collect();
    let waiting = users.iter().map(|user| {
        let line = [("phone", 1)];
        let (sale, user) = (&sale, user.as_str());
        async move { api.buy(sale, user, "k", &line).await }
    });
    let one_too_many = async {
        tap.until_kept(HOLDS_MAX).await;
        let begun = clock::now();
        let full = api.buy(&sale, "one-too-many", "k", &[("phone", 1)]).await;
        (full, begun.elapsed())
    };
    let (waited, (full, took)) = tokio::join!(join_all(waiting), one_too_many);
    full.assert_problem(503, "busy", "nothing was sold");
    assert!(took < Duration::from_secs(10), "told after {took:?}");
    for answer in waited {
        assert_eq!(answer.status, 503, "{answer:?}");
        assert_eq!(answer.body["retry_with_same_key"], true, "{answer:?}");
    }
    hangs.store(false, Ordering::SeqCst);
    for user in users.iter().map(String::as_str).chain(["one-too-many"]) {
        let bought = buy(api, &sale, user, "k").await;
        assert!([200, 201].contains(&bought.status), "{bought:?}");
    }
    let _sweeper = Service::start(&post(&database, &redis, "relay,sweeper")).await;
    until_at_rest(&ground).await;
}
