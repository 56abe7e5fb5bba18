//! What a buyer gets, whichever the strategy and the database.

use serde_json::json;

use crate::world::{DATABASES, Service, world};

#[tokio::test(flavor = "multi_thread")]
async fn a_purchase_is_booked_repeated_and_sold_out_on_every_database() {
    for database in DATABASES {
        let url = world().database(database).await;
        let service = Service::start(&[("FLASHLOCK_DATABASE_URL".to_string(), url)]).await;
        let api = &service.api;
        let sale =
            json!({"strategy": "db-conditional-update", "skus": [{"sku": "phone", "stock": 1}]});
        let activity = api.open(sale).await;
        let first = api.buy(&activity, "alice", "k-1", &[("phone", 1)]).await;
        assert_eq!(first.status, 201, "{database}: {first:?}");
        assert_eq!(first.body["left"], 0, "{database}");
        let again = api.buy(&activity, "alice", "k-1", &[("phone", 1)]).await;
        assert_eq!(again.status, 200, "{database}: {again:?}");
        assert_eq!(again.headers["idempotent-replay"], "true");
        assert_eq!(again.order_id(), first.order_id());
        let other = api.buy(&activity, "alice", "k-2", &[("phone", 1)]).await;
        other.assert_problem(409, "already-purchased", &first.order_id());
        let bob = api.buy(&activity, "bob", "k-1", &[("phone", 1)]).await;
        bob.assert_problem(409, "sold-out", "0 of phone are left");
        assert_eq!(
            api.stock(&activity, "phone").await,
            (1, 0, 1, 0),
            "{database}"
        );
        let read = api.get(&format!("/v1/orders/{}", first.order_id())).await;
        assert_eq!(
            read.body["status"], "PENDING_PAYMENT",
            "{database}: {read:?}"
        );
    }
}
