//! Far more buyers than database connections: does everyone get an answer, and is it soon quiet?

use std::time::Duration;

use flashlock::clock;
use serde_json::json;
use tokio::task::JoinSet;

use super::patience::{ANSWER, RECOVERY, assert_come_again, assert_sold, buy, buy_at_last};
use crate::world::{Service, world};

/// sqlx issue 3132: thousands that wait for a small pool made it collapse.
const BUYERS: usize = 2_000;
const CONNECTIONS: &str = "5";
const STOCK: usize = 100;
/// One purchase on an idle service takes milliseconds.
const PROMPTLY: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_buyers_on_five_connections_are_all_answered() {
    let url = world().database("postgres").await;
    let set = |name: &str, value: &str| (format!("FLASHLOCK_{name}"), value.to_owned());
    let service = Service::start(&[
        set("DATABASE_URL", &url),
        set("DATABASE_CONNECTIONS_MAX", CONNECTIONS),
    ])
    .await;
    let api = &service.api;
    let sale = json!({"strategy": "db-conditional-update",
                      "skus": [{"sku": "phone", "stock": STOCK + 1}]});
    let sale = api.open(sale).await;
    let mut crowd = JoinSet::new();
    for n in 0..BUYERS {
        let (api, sale) = (api.clone(), sale.clone());
        crowd.spawn(async move {
            let begun = clock::now();
            let user = format!("u{n}");
            let answer = buy(&api, &sale, &user).await;
            (user, answer, begun.elapsed())
        });
    }
    let mut orders = Vec::new();
    let mut again = Vec::new();
    let mut longest = Duration::ZERO;
    while let Some(one) = crowd.join_next().await {
        let (user, answer, took) = one.expect("an answer");
        longest = longest.max(took);
        match answer.status {
            201 => orders.push(answer.order_id()),
            409 => answer.assert_problem(409, "sold-out", "of phone are left"),
            _ => {
                assert_come_again(&answer);
                again.push(user);
            }
        }
    }
    assert!(longest < ANSWER, "someone waited for {longest:?}");

    // The crowd has gone: whoever comes now is served at once.
    let begun = clock::now();
    let (alone, refused) = buy_at_last(api, &sale, "alone", PROMPTLY).await;
    assert!(refused.is_empty(), "it has not recovered: {refused:?}");
    assert!(begun.elapsed() < PROMPTLY, "took {:?}", begun.elapsed());
    if alone.status == 201 {
        orders.push(alone.order_id());
    }
    for user in again {
        let (answer, _) = buy_at_last(api, &sale, &user, RECOVERY).await;
        if [200, 201].contains(&answer.status) {
            orders.push(answer.order_id());
        } else {
            answer.assert_problem(409, "sold-out", "0 of phone are left");
        }
    }
    assert_eq!(orders.len(), STOCK + 1, "every unit is sold");
    assert_sold(&url, &sale, orders, "the crowd").await;
}
