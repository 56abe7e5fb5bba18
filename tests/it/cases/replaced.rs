//! An order is given up for another, and both are paid: who gets the units, and who the money?

use serde_json::{Value, json};

use crate::world::{Service, world};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_replaced_order_and_its_successor_one_is_paid() {
    let url = world().database("postgres").await;
    let service = Service::start(&world().everything(&url)).await;
    let api = &service.api;
    for strategy in ["redis-lua", "db-conditional-update"] {
        let sale = json!({"strategy": strategy, "skus": [{"sku": "phone", "stock": 2}]});
        let sale = api.open(sale).await;
        let buy = async |key: &'static str| {
            let answer = api.buy_surely(&sale, "alice", key, &[("phone", 1)]).await;
            assert_eq!(answer.status, 201, "{strategy}: {answer:?}");
            answer.order_id()
        };
        let pay = async |order: &str| {
            let body = json!({"provider": "p", "provider_txn": order});
            let paid = api
                .post(&format!("/v1/orders/{order}/payments"), body)
                .await;
            (paid.status, paid.body["outcome"].clone())
        };
        let replaced = buy("k1").await;
        let cancel = format!("/v1/orders/{replaced}/cancel");
        assert_eq!(api.post(&cancel, Value::Null).await.status, 200);
        let successor = buy("k2").await;
        assert_ne!(replaced, successor);
        let (first, second) = tokio::join!(pay(&replaced), pay(&successor));
        assert_eq!(first, (200, "REFUND_DUE".into()), "{strategy}");
        assert_eq!(second, (200, "APPLIED".into()), "{strategy}");
        assert_eq!(api.stock(&sale, "phone").await, (2, 1, 0, 1), "{strategy}");
    }
}
