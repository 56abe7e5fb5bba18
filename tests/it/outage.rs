//! What buyers are told while a server or a service process is away, and that it ends by itself.

mod crowd;
mod inside;
mod mid_sale;
mod patience;

use std::time::Duration;

use flashlock::lab::{Lab, LabPlan, ServerId};
use futures::future::join_all;
use serde_json::{Value, json};

use crate::world::{Answer, Api, Service, world};

/// A server is away, and back again, within this.
const SOON: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(100);

/// Servers that are lost together, the strategies that need them, and how answers name the server.
struct Outage {
    servers: &'static [ServerId],
    strategies: &'static [&'static str],
    named: &'static str,
}

const OUTAGES: [Outage; 3] = [
    Outage {
        servers: &[ServerId::Redis],
        strategies: &["redis-set-nx", "redis-lua"],
        named: "redis",
    },
    Outage {
        servers: &[
            ServerId::Redlock(1),
            ServerId::Redlock(3),
            ServerId::Redlock(5),
        ],
        strategies: &["redlock"],
        named: "redlock",
    },
    Outage {
        servers: &[ServerId::Zookeeper(1)],
        strategies: &["zookeeper"],
        named: "zookeeper",
    },
];

fn sale(strategy: &str, stock: i64) -> Value {
    // A short lease, so that the lock of a holder that was cut off is free again soon.
    json!({"strategy": strategy, "skus": [{"sku": "phone", "stock": stock}],
           "lock": {"ttl_ms": 1_000, "wait_ms": 2_000}})
}

/// What the service needs to find the servers of `lab`.
fn options(lab: &Lab, database_url: &str) -> Vec<(String, String)> {
    let mut options = lab.environment();
    options.retain(|(name, _)| name != "FLASHLOCK_DATABASE_URL");
    options.push((
        "FLASHLOCK_DATABASE_URL".to_string(),
        database_url.to_string(),
    ));
    options
}

fn file(lab: &Lab) -> String {
    format!("sqlite:{}", lab.directory().join("sale.db").display())
}

/// A refusal that a buyer may answer with the same key, and that names the server.
#[track_caller]
fn assert_away(answer: &Answer, named: &str, row: &str) {
    assert_eq!(answer.status, 503, "{row}: {answer:?}");
    assert!(
        answer.headers.contains_key("retry-after"),
        "{row}: {answer:?}"
    );
    assert_eq!(
        answer.body["retry_with_same_key"], true,
        "{row}: {answer:?}"
    );
    let kind = answer.problem();
    let known = ["strategy-unavailable", "outcome-unknown", "gate-recovering"];
    assert!(known.contains(&kind), "{row}: {answer:?}");
    if kind != "gate-recovering" {
        assert_eq!(answer.body["server"], named, "{row}: {answer:?}");
    }
}

/// Buys with the same key until the answer is no 503; every 503 on the way is one a buyer can use.
async fn buy_when_back(api: &Api, activity: &str, user: &str, named: &str) -> Answer {
    let back = async {
        loop {
            let answer = api.buy(activity, user, "key", &[("phone", 1)]).await;
            if answer.status != 503 {
                return answer;
            }
            assert!(answer.headers.contains_key("retry-after"), "{answer:?}");
            tokio::time::sleep(PAUSE).await;
        }
    };
    tokio::time::timeout(SOON, back)
        .await
        .unwrap_or_else(|_| panic!("{user} still got 503 long after {named} was back"))
}

async fn listed(api: &Api, strategy: &str) -> Value {
    let list = api.get("/v1/strategies").await;
    let all = list.body["strategies"].as_array().expect("a list").clone();
    all.into_iter()
        .find(|s| s["name"] == strategy)
        .expect("every strategy is listed")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_server_is_named_costs_only_its_strategies_and_is_found_again() {
    let lab = Lab::start(&LabPlan {
        postgres: false,
        mariadb: false,
        ..LabPlan::all()
    })
    .await
    .expect("a lab");
    let service = Service::start(&options(&lab, &file(&lab))).await;
    let api = &service.api;
    let other = api.open(sale("db-conditional-update", 100)).await;
    for outage in &OUTAGES {
        let mut sales = Vec::new();
        for strategy in outage.strategies {
            let activity = api.open(sale(strategy, 3)).await;
            let before = api.buy(&activity, "early", "key", &[("phone", 1)]).await;
            assert_eq!(before.status, 201, "{strategy}: {before:?}");
            sales.push((*strategy, activity));
        }
        for server in outage.servers {
            lab.kill(*server).await.expect("it runs");
        }
        for (strategy, activity) in &sales {
            for _ in 0..2 {
                let answer = api.buy(activity, "late", "key", &[("phone", 1)]).await;
                assert_away(&answer, outage.named, strategy);
            }
            // What was booked before is answered all the same.
            let replay = api.buy(activity, "early", "key", &[("phone", 1)]).await;
            assert_eq!(replay.status, 200, "{strategy}: {replay:?}");
            let listed = listed(api, strategy).await;
            assert_eq!(listed["available"], false, "{listed}");
            let why = listed["unavailable_because"].as_str().unwrap_or_default();
            assert!(why.contains(outage.named), "{listed}");
        }
        let sold = api.buy(&other, outage.named, "key", &[("phone", 1)]).await;
        assert_eq!(sold.status, 201, "without {}: {sold:?}", outage.named);
        for server in outage.servers {
            lab.restart(*server).await.expect("it starts again");
        }
        for (strategy, activity) in &sales {
            let late = buy_when_back(api, activity, "late", outage.named).await;
            assert!([200, 201].contains(&late.status), "{strategy}: {late:?}");
            let third = buy_when_back(api, activity, "third", outage.named).await;
            assert_eq!(third.status, 201, "{strategy}: {third:?}");
            let fourth = buy_when_back(api, activity, "fourth", outage.named).await;
            fourth.assert_problem(409, "sold-out", "0 of phone are left");
            assert_eq!(
                api.stock(activity, "phone").await,
                (3, 0, 3, 0),
                "{strategy}"
            );
        }
    }
    lab.stop().await.expect("it ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_database_is_named_and_found_again() {
    let lab = Lab::start(&LabPlan {
        postgres: true,
        mariadb: true,
        ..LabPlan::nothing()
    })
    .await
    .expect("a lab");
    let databases = [
        (ServerId::Postgres, lab.postgres_url()),
        (ServerId::Mariadb, lab.mysql_url()),
    ];
    for (server, url) in databases {
        let url = url.expect("it runs");
        let service = Service::start(&options(&lab, &url)).await;
        let api = &service.api;
        let mut sales = Vec::new();
        for strategy in ["db-conditional-update", "db-unique-insert"] {
            sales.push((strategy, api.open(sale(strategy, 1)).await));
        }
        lab.kill(server).await.expect("it runs");
        for (strategy, activity) in &sales {
            let answer = api.buy(activity, "alice", "key", &[("phone", 1)]).await;
            assert_away(&answer, "database", strategy);
        }
        assert_eq!(api.get("/readyz").await.status, 503);
        assert_eq!(api.get("/healthz").await.status, 200);
        lab.restart(server).await.expect("it starts again");
        for (strategy, activity) in &sales {
            let alice = buy_when_back(api, activity, "alice", "database").await;
            assert!([200, 201].contains(&alice.status), "{strategy}: {alice:?}");
            let again = api.buy(activity, "alice", "key", &[("phone", 1)]).await;
            assert_eq!(
                (again.status, again.order_id()),
                (200, alice.order_id()),
                "{strategy}"
            );
            assert_eq!(
                api.stock(activity, "phone").await,
                (1, 0, 1, 0),
                "{strategy}"
            );
        }
    }
    lab.stop().await.expect("it ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_starts_before_its_servers_works_once_they_come() {
    let lab = Lab::start(&LabPlan {
        postgres: false,
        mariadb: false,
        ..LabPlan::all()
    })
    .await
    .expect("a lab");
    let options = options(&lab, &file(&lab));
    for outage in &OUTAGES {
        for server in outage.servers {
            lab.kill(*server).await.expect("it runs");
        }
    }
    let service = Service::start(&options).await;
    let api = &service.api;
    for outage in &OUTAGES {
        for strategy in outage.strategies {
            let id = api.create(sale(strategy, 1)).await;
            let path = |step: &str| format!("/v1/activities/{id}/{step}");
            let mut early = api.post(&path("warm-up"), Value::Null).await;
            if early.status == 200 {
                early = api.post(&path("open"), Value::Null).await;
            }
            assert_away(&early, outage.named, strategy);
        }
        for server in outage.servers {
            lab.restart(*server).await.expect("it starts");
        }
        for strategy in outage.strategies {
            let ready = async {
                while listed(api, strategy).await["available"] != true {
                    tokio::time::sleep(PAUSE).await;
                }
            };
            tokio::time::timeout(SOON, ready).await.unwrap_or_else(|_| {
                panic!("{strategy} is not available though its server is back")
            });
            let activity = api.open(sale(strategy, 1)).await;
            let sold = api
                .buy_surely(&activity, "alice", "key", &[("phone", 1)])
                .await;
            assert_eq!(sold.status, 201, "{strategy}: {sold:?}");
        }
    }
    lab.stop().await.expect("it ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_process_loses_no_unit_and_keeps_nobody_out() {
    const STOCK: usize = 20;
    let url = world().database("postgres").await;
    for strategy in [
        "redis-set-nx",
        "redlock",
        "zookeeper",
        "db-unique-insert",
        "db-conditional-update",
    ] {
        let doomed = Service::start(&world().everything(&url)).await;
        let survivor = Service::start(&world().everything(&url)).await;
        let activity = survivor.api.open(sale(strategy, STOCK as i64)).await;
        let users: Vec<String> = (0..40).map(|n| format!("u{n}")).collect();
        let first = users.iter().map(|user| {
            let (api, activity) = (doomed.api.clone(), activity.clone());
            async move {
                api.try_buy(&activity, user, "key", &[("phone", 1)])
                    .await
                    .ok()
            }
        });
        // Killed once the first order is there, so in mid-sale.
        let kill = async {
            while survivor.api.stock(&activity, "phone").await.2 == 0 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            doomed.kill().await;
        };
        let (told, ()) = tokio::join!(join_all(first), kill);
        let acknowledged: Vec<(&String, String)> = users
            .iter()
            .zip(&told)
            .filter_map(|(user, answer)| answer.as_ref().map(|a| (user, a)))
            .filter(|(_, answer)| answer.status == 201)
            .map(|(user, answer)| (user, answer.order_id()))
            .collect();
        let again = users
            .iter()
            .map(|user| buy_when_back(&survivor.api, &activity, user, "the process"));
        let answers = join_all(again).await;
        let booked = answers
            .iter()
            .filter(|a| [200, 201].contains(&a.status))
            .count();
        assert_eq!(booked, STOCK, "{strategy}");
        for (user, id) in acknowledged {
            let at = users.iter().position(|u| u == user).expect("a user");
            assert_eq!(answers[at].order_id(), id, "{strategy}: {user}");
        }
        let stock = STOCK as i64;
        assert_eq!(
            survivor.api.stock(&activity, "phone").await,
            (stock, 0, stock, 0),
            "{strategy}"
        );
    }
}
