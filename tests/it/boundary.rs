//! What happens at each boundary between the gate, the database and the processes, when something
//! dies, hangs or forgets there?
//!
//! | boundary | tests |
//! |---|---|
//! | 1 crash between deduct and insert | `crash_between_deduct_and_insert`; reconcile (a slow worker and the sweeper, either first) |
//! | 2 Redis timeout, outcome unknown | `outcome_unknown`; reconcile (noted and resolved) |
//! | 3 Redis restarts with lost writes, or empty | `history_lost`; gate/rebuild, outage/mid_sale |
//! | 4 failover to a stale replica | `stale_replica`; gate/rebuild (the sequence number goes back) |
//! | 5 duplicate deliveries, a relay paused past its lease | outbox/crash, outbox/gate |
//! | 6 payment against close | `payment_against_close`; rest/payment |
//! | 7 restock against deduct | conformance (a restock meets purchases), cases/closer |
//! | 8 reconcile against in-flight | reconcile (while it sells), soak/controls |
//! | 9 the dedupe marker | `flushed_in_mid_sale`; gate/rebuild |
//! | 10 warm-up | gate (only a complete warm-up opens), life |
//! | 11 end of a sale | life |
//! | 12 several SKUs in one order | conformance (all or none, crossed SKUs), gate/faults (one slot) |
//! | a socket cut at COMMIT | `cut_at_commit` |
//! | the database is down or hangs | `database_hangs`; outage, gate/faults (a bound on holds) |

mod crash_between_deduct_and_insert;
mod cut_at_commit;
mod database_hangs;
mod flushed_in_mid_sale;
mod history_lost;
mod outcome_unknown;
mod payment_against_close;
mod stale_replica;

use std::time::Duration;

use flashlock::clock;
use futures::future::join_all;
use serde_json::{Value, json};

use crate::soak::laws::Ground;
use crate::world::{Answer, Api};

/// Everything ends well within this, on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(40);

/// The options of a process on these servers.
pub(crate) fn post(database_url: &str, redis_url: &str, roles: &str) -> Vec<(String, String)> {
    let set = |name: &str, value: &str| (format!("FLASHLOCK_{name}"), value.to_string());
    vec![
        set("DATABASE_URL", database_url),
        set("REDIS_URL", redis_url),
        set("ROLES", roles),
    ]
}

/// A sale of phones through the gate.
pub(crate) fn phones(stock: i64) -> Value {
    json!({"strategy": "redis-lua", "limits": null, "skus": [{"sku": "phone", "stock": stock}]})
}

/// Asks until `is_so`, and fails when it does not become so.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, is_so: impl Fn() -> F) {
    let begun = clock::now();
    while !is_so().await {
        assert!(begun.elapsed() < SOON, "{what}: not within {SOON:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until nothing is under way and every law holds.
pub(crate) async fn until_at_rest(ground: &Ground) {
    let begun = clock::now();
    loop {
        let mut broken = ground.unended().await;
        broken.extend(ground.broken_at_rest().await);
        if broken.is_empty() {
            return;
        }
        assert!(begun.elapsed() < SOON, "after {SOON:?}: {broken:#?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// One phone with one key, again and again while told to come again.
pub(crate) async fn buy(api: &Api, sale: &str, user: &str, key: &str) -> Answer {
    let begun = clock::now();
    loop {
        let answer = api.buy(sale, user, key, &[("phone", 1)]).await;
        if answer.status != 503 {
            return answer;
        }
        assert_eq!(answer.body["retry_with_same_key"], true, "{answer:?}");
        assert!(begun.elapsed() < SOON, "{user} is still told {answer:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Buyers at once, over all of `apis`; how many were booked. The others were told that it is sold
/// out.
async fn crowd(apis: &[&Api], sale: &str, buyers: usize) -> usize {
    let users: Vec<String> = (0..buyers).map(|n| format!("late-{n}")).collect();
    let buys = users.iter().enumerate();
    let buys = buys.map(|(n, user)| buy(apis[n % apis.len()], sale, user, "k"));
    let mut booked = 0;
    for answer in join_all(buys).await {
        if [200, 201].contains(&answer.status) {
            booked += 1;
        } else {
            answer.assert_problem(409, "sold-out", "0 of phone are left");
        }
    }
    booked
}
