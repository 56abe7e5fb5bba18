//! One reply of Redis comes after its command was given up: does the next command get it?

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::join_all;

use crate::boundary::{buy, phones, post, until_at_rest};
use crate::soak::laws::Ground;
use crate::tap::{Act, Tap, has, host_of};
use crate::world::{Service, world};

/// The gate waits for one second.
const LATE: Duration = Duration::from_millis(1_600);
const BUYERS: usize = 12;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_that_comes_late_is_nobody_elses() {
    let database = world().database("postgres").await;
    let redis = world().lab.redis_url().expect("redis runs");
    let armed = Arc::new(AtomicBool::new(false));
    let arms = Arc::clone(&armed);
    let tap = Tap::before(&host_of(&redis), move |piece| {
        match has(piece, "EVALSHA") && arms.swap(false, Ordering::SeqCst) {
            true => Act::AnswerLate(LATE),
            false => Act::Pass,
        }
    })
    .await;
    let far = tap.instead_of(&redis);
    let service = Service::start(&post(&database, &far, "api,relay,sweeper")).await;
    let api = &service.api;
    let sale = api.open(phones(BUYERS as i64 + 1)).await;
    let ground = Ground::open(sale.parse().expect("an id"), &database, &redis).await;
    armed.store(true, Ordering::SeqCst);
    let first = buy(api, &sale, "first", "k");
    let others = async {
        // On the same connection, while the reply is due, comes, and has come.
        let buys = (0..BUYERS).map(|n| {
            let sale = &sale;
            async move {
                tokio::time::sleep(Duration::from_millis(200 * n as u64)).await;
                let user = format!("u-{n}");
                let answer = buy(api, sale, &user, "k").await;
                (user, answer)
            }
        });
        join_all(buys).await
    };
    let (first, others) = tokio::join!(first, others);
    assert!(!armed.load(Ordering::SeqCst), "no reply was late");
    let mut left = Vec::new();
    for (user, answer) in others.into_iter().chain([("first".to_string(), first)]) {
        assert!([200, 201].contains(&answer.status), "{user}: {answer:?}");
        assert_eq!(answer.body["user_id"], user, "{answer:?}");
        let order = api.get(&format!("/v1/orders/{}", answer.order_id())).await;
        assert_eq!(order.body["user_id"], user, "{order:?}");
        left.extend(answer.body["left"].as_i64());
    }
    // Each was told of another rest.
    let told = left.len();
    left.sort_unstable();
    left.dedup();
    assert_eq!(left.len(), told, "{left:?}");
    until_at_rest(&ground).await;
}
