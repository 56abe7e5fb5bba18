//! The server of a strategy is killed in mid-sale, and comes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use flashlock::clock;
use flashlock::lab::{Lab, LabPlan, ServerId};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::patience::{ANSWER, RECOVERY, assert_sold, buy, buy_at_last};
use super::{assert_away, file, options};
use crate::world::Service;

/// Units, and buyers for them: half come before the server dies and cannot take them all.
const STOCK: i64 = 30;
const BUYERS: usize = 40;
/// The server is killed once this many have bought.
const BOUGHT_BEFORE: usize = 4;

/// What a server comes back with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Back {
    WithItsData,
    Empty,
}

/// A strategy, what is started for it, what of that is killed, and how answers call it.
struct Outage {
    strategy: &'static str,
    plan: LabPlan,
    killed: &'static [ServerId],
    server: &'static str,
    back: Back,
}

const REDIS: LabPlan = LabPlan {
    redis: true,
    ..NOTHING
};
const NOTHING: LabPlan = LabPlan {
    redis: false,
    redlock: false,
    zookeeper_nodes: 0,
    postgres: false,
    mariadb: false,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_postgres_is_told_and_got_over() {
    Outage {
        strategy: "db-conditional-update",
        plan: LabPlan {
            postgres: true,
            ..NOTHING
        },
        killed: &[ServerId::Postgres],
        server: "database",
        back: Back::WithItsData,
    }
    .is_told_and_got_over()
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_mariadb_is_told_and_got_over() {
    Outage {
        strategy: "db-conditional-update",
        plan: LabPlan {
            mariadb: true,
            ..NOTHING
        },
        killed: &[ServerId::Mariadb],
        server: "database",
        back: Back::WithItsData,
    }
    .is_told_and_got_over()
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_redis_is_told_and_got_over_by_its_lock() {
    Outage {
        strategy: "redis-set-nx",
        plan: REDIS,
        killed: &[ServerId::Redis],
        server: "redis",
        back: Back::WithItsData,
    }
    .is_told_and_got_over()
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_redis_is_told_and_got_over_by_its_lock() {
    Outage {
        strategy: "redis-set-nx",
        plan: REDIS,
        killed: &[ServerId::Redis],
        server: "redis",
        back: Back::Empty,
    }
    .is_told_and_got_over()
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_redis_is_told_and_got_over_by_the_gate() {
    Outage {
        strategy: "redis-lua",
        plan: REDIS,
        killed: &[ServerId::Redis],
        server: "redis",
        back: Back::WithItsData,
    }
    .is_told_and_got_over()
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_redis_is_rebuilt_by_the_gate() {
    Outage {
        strategy: "redis-lua",
        plan: REDIS,
        killed: &[ServerId::Redis],
        server: "redis",
        back: Back::Empty,
    }
    .is_told_and_got_over()
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_majority_is_told_and_got_over_by_redlock() {
    Outage {
        strategy: "redlock",
        plan: LabPlan {
            redlock: true,
            ..NOTHING
        },
        killed: &[
            ServerId::Redlock(1),
            ServerId::Redlock(3),
            ServerId::Redlock(5),
        ],
        server: "redlock",
        back: Back::WithItsData,
    }
    .is_told_and_got_over()
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_zookeeper_is_told_and_got_over() {
    Outage {
        strategy: "zookeeper",
        plan: LabPlan {
            zookeeper_nodes: 1,
            ..NOTHING
        },
        killed: &[ServerId::Zookeeper(1)],
        server: "zookeeper",
        back: Back::WithItsData,
    }
    .is_told_and_got_over()
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_minority_is_not_noticed_by_redlock() {
    let plan = LabPlan {
        redlock: true,
        ..NOTHING
    };
    let lab = Lab::start(&plan).await.expect("the lab starts");
    let service = Service::start(&options(&lab, &file(&lab))).await;
    let sale = json!({"strategy": "redlock", "skus": [{"sku": "phone", "stock": 10}]});
    let sale = service.api.open(sale).await;
    let (before, _) = buy_at_last(&service.api, &sale, "alice", ANSWER).await;
    assert_eq!(before.status, 201, "{before:?}");
    for node in [2, 4] {
        lab.kill(ServerId::Redlock(node)).await.expect("killed");
    }
    for user in ["bob", "carol", "dave"] {
        let bought = buy(&service.api, &sale, user).await;
        assert_eq!(bought.status, 201, "{user}: {bought:?}");
    }
}

// === impl Outage ===

impl Outage {
    async fn is_told_and_got_over(&self) {
        let lab = Lab::start(&self.plan).await.expect("the lab starts");
        let url = match lab.postgres_url().or_else(|| lab.mysql_url()) {
            Some(url) => url,
            None => file(&lab),
        };
        let service = Service::start(&options(&lab, &url)).await;
        let api = &service.api;
        let sale = api.open(super::sale(self.strategy, STOCK)).await;
        let cell = self.strategy;
        let (first, _) = buy_at_last(api, &sale, "first", ANSWER).await;
        assert_eq!(first.status, 201, "{cell}: {first:?}");

        // The crowd is there when the server dies, and stays until each has a final answer.
        let bought = Arc::new(AtomicUsize::new(0));
        let (it_is_away, away) = watch::channel(false);
        let mut crowd = JoinSet::new();
        for n in 0..BUYERS {
            let (api, sale, bought) = (api.afresh(), sale.clone(), Arc::clone(&bought));
            let mut away = away.clone();
            crowd.spawn(async move {
                if n >= BUYERS / 2 {
                    let came = away.wait_for(|away| *away).await;
                    came.expect("it is killed");
                }
                let user = format!("u{n}");
                let (answer, refused) = buy_at_last(&api, &sale, &user, RECOVERY * 2).await;
                bought.fetch_add(1, Ordering::Relaxed);
                (user, answer, refused)
            });
        }
        let deadline = clock::now() + ANSWER;
        while bought.load(Ordering::Relaxed) < BOUGHT_BEFORE {
            assert!(clock::now() < deadline, "{cell}: nobody buys");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        for id in self.killed {
            lab.kill(*id).await.expect("killed");
        }
        it_is_away.send(true).expect("half of them wait for it");
        // Nobody gets in while it is away.
        let late = buy(api, &sale, "late").await;
        assert_away(&late, self.server, cell);
        for id in self.killed {
            if self.back == Back::Empty {
                let data = lab.directory().join(id.to_string()).join("data");
                std::fs::remove_dir_all(&data).expect("it had data");
                std::fs::create_dir(&data).expect("a directory");
            }
            lab.restart(*id).await.expect("it comes back");
        }

        // The same process, the same keys.
        let (late, _) = buy_at_last(api, &sale, "late", RECOVERY).await;
        let mut answers = vec![("late".to_owned(), late), ("first".to_owned(), first)];
        let mut refused = 0;
        while let Some(one) = crowd.join_next().await {
            let (user, answer, tries) = one.expect("a buyer with a final answer");
            refused += tries.len();
            answers.push((user, answer));
        }
        assert!(refused > 0, "{cell}: nobody noticed that it was away");
        let mut orders = Vec::new();
        for (user, answer) in answers {
            if [200, 201].contains(&answer.status) {
                let again = buy(api, &sale, &user).await;
                assert_eq!(again.status, 200, "{cell}: {again:?}");
                assert_eq!(again.order_id(), answer.order_id(), "{cell}");
                orders.push(answer.order_id());
            } else {
                answer.assert_problem(409, "sold-out", "0 of phone are left");
            }
        }
        assert_eq!(orders.len() as i64, STOCK, "{cell}: every unit is sold");
        assert_eq!(api.stock(&sale, "phone").await, (STOCK, 0, STOCK, 0));
        assert_sold(&url, &sale, orders, cell).await;
    }
}
