//! Orders that nobody pays, and closers that are late, or many: do the units come back, and once?

use std::time::Duration;

use futures::future::join_all;
use serde_json::{Value, json};

use crate::boundary::{buy, phones, post, until, until_at_rest};
use crate::soak::laws::Ground;
use crate::world::{Service, world};

const OVERDUE: &str = "SELECT COUNT(*) FROM orders WHERE activity_id = $1 \
     AND state = 'PENDING_PAYMENT' AND pay_deadline < EXTRACT(EPOCH FROM clock_timestamp()) * 1000";
const RELEASES: &str =
    "SELECT COUNT(*) FROM stock_ledger WHERE activity_id = $1 AND kind = 'RELEASE'";

fn unpaid(stock: i64) -> Value {
    let mut sale = phones(stock);
    sale["pay_window_s"] = json!(1);
    sale
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closer_that_was_away_past_the_pay_window_gives_the_units_back() {
    let database = world().database("postgres").await;
    let redis = world().lab.redis_url().expect("redis runs");
    let service = Service::start(&post(&database, &redis, "api,relay")).await;
    let api = &service.api;
    let sale = api.open(unpaid(2)).await;
    let ground = Ground::open(sale.parse().expect("an id"), &database, &redis).await;
    let alice = buy(api, &sale, "alice", "k").await.order_id();
    buy(api, &sale, "bob", "k").await;
    until("the pay windows are over", || async {
        ground.number(OVERDUE).await == 2
    })
    .await;
    // Nobody closes, and yet the window is over.
    let body = json!({"provider": "p", "provider_txn": "late"});
    let late = api
        .post(&format!("/v1/orders/{alice}/payments"), body)
        .await;
    assert_eq!(
        (late.status, &late.body["outcome"]),
        (200, &json!("REFUND_DUE")),
        "{late:?}"
    );
    assert_eq!(api.stock(&sale, "phone").await, (2, 0, 2, 0));
    let _closer = Service::start(&post(&database, &redis, "closer")).await;
    until("the units are back", || async {
        api.stock(&sale, "phone").await == (2, 2, 0, 0)
    })
    .await;
    until_at_rest(&ground).await;
    let carol = buy(api, &sale, "carol", "k").await;
    assert_eq!(carol.status, 201, "{carol:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancellation_and_two_closers_at_once_give_back_once() {
    const ORDERS: usize = 30;
    let database = world().database("postgres").await;
    let redis = world().lab.redis_url().expect("redis runs");
    let env = post(&database, &redis, "api,relay,closer,sweeper");
    let (one, other) = tokio::join!(Service::start(&env), Service::start(&env));
    let apis = [&one.api, &other.api];
    let sale = one.api.open(unpaid(ORDERS as i64)).await;
    let ground = Ground::open(sale.parse().expect("an id"), &database, &redis).await;
    let ends = (0..ORDERS).map(|n| {
        let sale = &sale;
        async move {
            let order = buy(apis[n % 2], sale, &format!("u-{n}"), "k")
                .await
                .order_id();
            tokio::time::sleep(Duration::from_millis(700 + 50 * n as u64)).await;
            let path = format!("/v1/orders/{order}/cancel");
            let cancels = apis.map(|api| api.post(&path, Value::Null));
            for cancelled in join_all(cancels).await {
                let status = cancelled.status;
                assert!([200, 503].contains(&status), "{cancelled:?}");
            }
        }
    });
    join_all(ends).await;
    until("every order is closed", || async {
        one.api.stock(&sale, "phone").await == (ORDERS as i64, ORDERS as i64, 0, 0)
    })
    .await;
    assert_eq!(ground.number(RELEASES).await, ORDERS as i64);
    until_at_rest(&ground).await;
}
