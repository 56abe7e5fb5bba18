//! What one buyer gets, and the next: the same for every strategy on every database.

use flashlock::strategy::Strategy;
use serde_json::json;

use crate::world::{Api, DATABASES, Service, world};

#[tokio::test(flavor = "multi_thread")]
async fn a_purchase_is_booked_repeated_and_sold_out_whatever_the_strategy() {
    for database in DATABASES {
        let url = world().database(database).await;
        let service = Service::start(&world().everything(&url)).await;
        let api = &service.api;
        for strategy in Strategy::all() {
            one_purchase(api, strategy.name().as_str()).await;
        }
    }
}

async fn one_purchase(api: &Api, strategy: &str) {
    let sale = json!({"strategy": strategy, "skus": [{"sku": "phone", "stock": 1}]});
    let activity = api.open(sale).await;
    let first = api.buy(&activity, "alice", "k-1", &[("phone", 1)]).await;
    assert_eq!(first.status, 201, "{strategy}: {first:?}");
    assert_eq!(first.body["left"], 0, "{strategy}");
    let again = api.buy(&activity, "alice", "k-1", &[("phone", 1)]).await;
    assert_eq!(again.status, 200, "{strategy}: {again:?}");
    assert_eq!(again.headers["idempotent-replay"], "true");
    assert_eq!(again.order_id(), first.order_id());
    let other = api.buy(&activity, "alice", "k-2", &[("phone", 1)]).await;
    other.assert_problem(409, "already-purchased", &first.order_id());
    let bob = api.buy(&activity, "bob", "k-1", &[("phone", 1)]).await;
    bob.assert_problem(409, "sold-out", "0 of phone are left");
    assert_eq!(
        api.stock(&activity, "phone").await,
        (1, 0, 1, 0),
        "{strategy}"
    );
    let read = api.get(&format!("/v1/orders/{}", first.order_id())).await;
    assert_eq!(
        read.body["status"], "PENDING_PAYMENT",
        "{strategy}: {read:?}"
    );

    let path = format!("/v1/orders/{}/cancel", first.order_id());
    for _ in 0..2 {
        let cancelled = api.post(&path, serde_json::Value::Null).await;
        assert_eq!(
            (cancelled.status, &cancelled.body["status"]),
            (200, &json!("CLOSED")),
            "{strategy}"
        );
    }
    assert_eq!(
        api.stock(&activity, "phone").await,
        (1, 1, 0, 0),
        "{strategy}"
    );
    let bob = api.buy(&activity, "bob", "k-1", &[("phone", 1)]).await;
    assert_eq!(bob.status, 201, "{strategy}: {bob:?}");
    let path = format!("/v1/orders/{}/payments", bob.order_id());
    let payment = json!({"provider": "acme", "provider_txn": bob.order_id()});
    for _ in 0..2 {
        let paid = api.post(&path, payment.clone()).await;
        assert_eq!(
            (paid.status, &paid.body["outcome"]),
            (200, &json!("APPLIED")),
            "{strategy}: {paid:?}"
        );
    }
    assert_eq!(
        api.stock(&activity, "phone").await,
        (1, 0, 0, 1),
        "{strategy}"
    );
}
