//! Redis does not say whether it reserved, and the request lands long after it was given up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::boundary::{buy, phones, post, until, until_at_rest};
use crate::soak::laws::Ground;
use crate::tap::{Act, Tap, has, host_of};
use crate::world::{Service, world};

const DONE: &str = "SELECT COUNT(*) FROM compensation WHERE activity_id = $1 AND state = 'DONE'";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_lands_after_it_was_given_up_is_refused() {
    let database = world().database("postgres").await;
    let redis = world().lab.redis_url().expect("redis runs");
    let held = Arc::new(AtomicBool::new(false));
    let holds = Arc::clone(&held);
    let tap = Tap::before(&host_of(&redis), move |piece| {
        match has(piece, "EVALSHA") && holds.load(Ordering::SeqCst) {
            true => Act::Hold,
            false => Act::Pass,
        }
    })
    .await;
    let far = tap.instead_of(&redis);
    let (unlucky, other) = tokio::join!(
        async { Service::start(&post(&database, &far, "api")).await },
        async { Service::start(&post(&database, &redis, "api,relay,sweeper")).await },
    );
    let sale = other.api.open(phones(1)).await;
    let ground = Ground::open(sale.parse().expect("an id"), &database, &redis).await;
    held.store(true, Ordering::SeqCst);
    let told = unlucky.api.buy(&sale, "alice", "k", &[("phone", 1)]).await;
    told.assert_problem(503, "outcome-unknown", "the same Idempotency-Key");
    assert_eq!(told.body["server"], "redis", "{told:?}");
    until("it is resolved", || async {
        ground.number(DONE).await == 1
    })
    .await;
    // Now it lands, on the sale's only unit.
    tap.let_go();
    let landed = buy(&unlucky.api, &sale, "probe", "k").await;
    assert_eq!(landed.status, 201, "{landed:?}");
    let alice = buy(&other.api, &sale, "alice", "k").await;
    alice.assert_problem(409, "order-abandoned", "use a new one");
    let alice = buy(&other.api, &sale, "alice", "k2").await;
    alice.assert_problem(409, "sold-out", "0 of phone are left");
    until_at_rest(&ground).await;
}

/// The buyer who does as told, and comes again with the same key, finds out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_key_finds_out_what_a_lost_answer_said() {
    let database = world().database("postgres").await;
    let redis = world().lab.redis_url().expect("redis runs");
    let armed = Arc::new(AtomicBool::new(false));
    let arms = Arc::clone(&armed);
    // Carried out, and then silence: twice, since a purchase asks again by itself.
    let tap = Tap::before(&host_of(&redis), move |piece| {
        match has(piece, "EVALSHA") && arms.load(Ordering::SeqCst) {
            true => Act::CutAfter,
            false => Act::Pass,
        }
    })
    .await;
    let service = Service::start(&post(&database, &tap.instead_of(&redis), "api")).await;
    let sale = service.api.open(phones(1)).await;
    let ground = Ground::open(sale.parse().expect("an id"), &database, &redis).await;
    armed.store(true, Ordering::SeqCst);
    let told = service.api.buy(&sale, "alice", "k", &[("phone", 1)]).await;
    told.assert_problem(503, "outcome-unknown", "the same Idempotency-Key");
    armed.store(false, Ordering::SeqCst);
    let bob = buy(&service.api, &sale, "bob", "k").await;
    bob.assert_problem(409, "sold-out", "0 of phone are left");
    let alice = buy(&service.api, &sale, "alice", "k").await;
    assert_eq!(alice.status, 201, "{alice:?}");
    // The note of it is resolved by who sweeps, and leaves the order alone.
    let _sweeper = Service::start(&post(&database, &redis, "sweeper,relay")).await;
    until_at_rest(&ground).await;
    let again = buy(&service.api, &sale, "alice", "k").await;
    assert_eq!(
        (again.status, &again.body["status"]),
        (200, &"PENDING_PAYMENT".into())
    );
}
