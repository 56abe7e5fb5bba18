//! A service process is killed inside its critical sections: does another go on, and is a unit lost?

use std::time::Duration;

use flashlock::clock;
use serde_json::json;
use tokio::task::JoinSet;

use super::patience::{RECOVERY, assert_sold, buy_at_last};
use crate::held::Held;
use crate::world::{Service, world};

/// The strategies whose holder leaves a lock behind.
const LOCKS: [&str; 4] = ["redis-set-nx", "redlock", "zookeeper", "db-unique-insert"];
const STOCK: usize = 5;
/// Buyers of the process that dies, per strategy; together with the one before them two too many.
const BUYERS: usize = 6;
/// Renewed at a third of it, so at least this much is left of a lease at any time.
const TTL_MS: u64 = 3_000;
const LEFT_MIN: Duration = Duration::from_millis(TTL_MS / 2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lock_of_a_killed_process_is_taken_over_after_its_lease() {
    let url = world().database("postgres").await;
    let env = world().everything(&url);
    let (dies, lives) = tokio::join!(Service::start(&env), Service::start(&env));
    let mut sales = Vec::new();
    for strategy in LOCKS {
        let sale = json!({"strategy": strategy, "skus": [{"sku": "phone", "stock": STOCK}],
                          "lock": {"ttl_ms": TTL_MS, "wait_ms": 1000}});
        let sale = dies.api.open(sale).await;
        let (first, _) = buy_at_last(&dies.api, &sale, "first", RECOVERY).await;
        assert_eq!(first.status, 201, "{strategy}: {first:?}");
        sales.push((strategy, sale, first.order_id()));
    }
    let mut held = Vec::new();
    let mut cut_off = JoinSet::new();
    for (_, sale, _) in &sales {
        held.push(Held::take(&url, sale).await);
        for n in 0..BUYERS {
            let (api, sale) = (dies.api.afresh(), sale.clone());
            cut_off.spawn(async move {
                let user = format!("u{n}");
                api.try_buy(&sale, &user, "k", &[("phone", 1)]).await
            });
        }
        // One is inside: it has the lock, and the row it waits for is ours.
        let inside = i64::try_from(held.len()).expect("few");
        held.last_mut().expect("taken").until_waiters(inside).await;
    }
    dies.kill().await;
    let died = clock::now();
    for row in held {
        row.let_go().await;
    }
    while let Some(answer) = cut_off.join_next().await {
        if let Ok(answer) = answer.expect("no panic") {
            assert_eq!(answer.status, 503, "{answer:?}");
        }
    }

    let mut crowd = JoinSet::new();
    for (strategy, sale, first) in sales {
        for n in 0..BUYERS {
            let (api, sale) = (lives.api.afresh(), sale.clone());
            crowd.spawn(async move {
                let user = format!("u{n}");
                let (answer, _) = buy_at_last(&api, &sale, &user, RECOVERY).await;
                (answer, died.elapsed())
            });
        }
        let mut orders = vec![first];
        let mut soonest = Duration::MAX;
        while let Some(one) = crowd.join_next().await {
            let (answer, after) = one.expect("a final answer");
            if [200, 201].contains(&answer.status) {
                orders.push(answer.order_id());
                soonest = soonest.min(after);
            } else {
                answer.assert_problem(409, "sold-out", "0 of phone are left");
            }
        }
        assert!(
            soonest >= LEFT_MIN,
            "{strategy}: {soonest:?} after the kill"
        );
        assert_eq!(orders.len(), STOCK, "{strategy}: every unit is sold");
        let stock = i64::try_from(STOCK).expect("few");
        let books = lives.api.stock(&sale, "phone").await;
        assert_eq!(books, (stock, 0, stock, 0), "{strategy}");
        assert_sold(&url, &sale, orders, strategy).await;
    }
}
