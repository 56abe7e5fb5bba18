//! Payments that arrive just as the pay window ends: is each either applied or to be refunded?

use std::time::Duration;

use futures::future::join_all;
use serde_json::json;

use crate::books::Books;
use crate::boundary::{SOON, buy};
use crate::world::{DATABASES, Service, world};
use flashlock::order::OrderState;
use flashlock::store::{Store, StoreOptions};

const ORDERS: usize = 24;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payment_meets_two_closers_and_one_of_them_wins() {
    join_all(DATABASES.map(|database| race(database, "db-conditional-update"))).await;
    race("postgres", "redis-lua").await;
}

async fn race(database: &'static str, strategy: &'static str) {
    let url = world().database(database).await;
    let env = world().everything(&url);
    let (one, other) = tokio::join!(Service::start(&env), Service::start(&env));
    let sale = json!({"strategy": strategy, "skus": [{"sku": "phone", "stock": ORDERS}],
                      "pay_window_s": 1});
    let sale = one.api.open(sale).await;
    let apis = [&one.api, &other.api];
    let paid = (0..ORDERS).map(|n| {
        let (api, sale) = (apis[n % 2], &sale);
        async move {
            let order = buy(api, sale, &format!("u-{n}"), "k").await.order_id();
            // Spread over the end of the window and the closer's next look.
            tokio::time::sleep(Duration::from_millis(600 + 60 * n as u64)).await;
            let path = format!("/v1/orders/{order}/payments");
            let body = json!({"provider": "p", "provider_txn": order});
            loop {
                let answer = api.post(&path, body.clone()).await;
                if answer.status != 503 {
                    assert_eq!(answer.status, 200, "{answer:?}");
                    let outcome = answer.body["outcome"].as_str().expect("an outcome");
                    return (order, outcome.to_string());
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    });
    let paid = tokio::time::timeout(SOON, join_all(paid)).await;
    let paid = paid.expect("everybody is answered");
    let options = StoreOptions {
        url,
        connections_max: 1,
    };
    let store = Store::open(&options).await.expect("it answers");
    let cell = format!("{strategy} on {database}");
    // What was too late is closed by somebody, now or soon.
    let mut books = Books::read(&store, &sale).await;
    while books.ledger("phone").held > 0 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        books = Books::read(&store, &sale).await;
    }
    books.assert_balanced(&cell);
    for (order, outcome) in &paid {
        let rid = order.rsplit_once('.').expect("activity.rid").1;
        let found = books.0.orders.iter().find(|o| o.rid.to_string() == rid);
        let expected = match outcome.as_str() {
            "APPLIED" => OrderState::Paid,
            _ => OrderState::Closed,
        };
        let state = found.map(|o| o.state);
        assert_eq!(state, Some(expected), "{cell}: {order} was {outcome}");
    }
    let applied = paid.iter().filter(|(_, o)| o == "APPLIED").count() as i64;
    let ledger = books.ledger("phone");
    assert_eq!(
        (ledger.sold, ledger.available),
        (applied, ORDERS as i64 - applied),
        "{cell}"
    );
    store.close().await;
}
