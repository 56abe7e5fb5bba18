//! The connection to the database is cut at COMMIT: is it found out whether it was carried out?

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::boundary::{buy, phones, post, until, until_at_rest};
use crate::soak::laws::Ground;
use crate::tap::{Act, Tap, has, host_of};
use crate::world::{Service, world};

/// Who finds out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    TheBuyer,
    TheSweeper,
}

async fn cut(act: Act, by: By) {
    let database = world().database("postgres").await;
    let redis = world().lab.redis_url().expect("redis runs");
    let armed = Arc::new(AtomicBool::new(false));
    let arms = Arc::clone(&armed);
    let tap = Tap::before(&host_of(&database), move |piece| {
        match has(piece, "COMMIT") && arms.swap(false, Ordering::SeqCst) {
            true => act,
            false => Act::Pass,
        }
    })
    .await;
    let unlucky = Service::start(&post(&tap.instead_of(&database), &redis, "api")).await;
    let sale = unlucky.api.open(phones(1)).await;
    let ground = Ground::open(sale.parse().expect("an id"), &database, &redis).await;
    armed.store(true, Ordering::SeqCst);
    let told = unlucky.api.buy(&sale, "alice", "k", &[("phone", 1)]).await;
    told.assert_problem(503, "outcome-unknown", "the same Idempotency-Key");
    assert_eq!(told.body["server"], "database", "{act:?}: {told:?}");
    assert!(!armed.load(Ordering::SeqCst), "no COMMIT came by");
    if by == By::TheBuyer {
        let alice = buy(&unlucky.api, &sale, "alice", "k").await;
        let expected = if act == Act::CutAfter { 200 } else { 201 };
        assert_eq!(alice.status, expected, "{act:?}: {alice:?}");
    }
    let other = Service::start(&post(&database, &redis, "api,relay,sweeper")).await;
    until("the gate agrees", || async {
        ground.broken_at_rest().await.is_empty()
    })
    .await;
    until_at_rest(&ground).await;
    let alice = buy(&other.api, &sale, "alice", "k").await;
    match (act, by) {
        // Nobody had her order but she could have had it: its unit is another's to buy.
        (Act::CutBefore, By::TheSweeper) => {
            alice.assert_problem(409, "order-abandoned", "use a new one");
            let bob = buy(&other.api, &sale, "bob", "k").await;
            assert_eq!(bob.status, 201, "{bob:?}");
        }
        _ => {
            assert_eq!(alice.status, 200, "{act:?} {by:?}: {alice:?}");
            let bob = buy(&other.api, &sale, "bob", "k").await;
            bob.assert_problem(409, "sold-out", "0 of phone are left");
        }
    }
    until_at_rest(&ground).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_key_finds_out_what_a_cut_commit_did() {
    tokio::join!(
        cut(Act::CutBefore, By::TheBuyer),
        cut(Act::CutAfter, By::TheBuyer),
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sweeper_finds_out_what_a_cut_commit_did() {
    tokio::join!(
        cut(Act::CutBefore, By::TheSweeper),
        cut(Act::CutAfter, By::TheSweeper),
    );
}
