//! Two lines of one SKU that each fit the stock, and together do not: is the order sold?

use flashlock::strategy::Strategy;
use futures::future::join_all;
use serde_json::json;

use crate::world::{Service, world};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lines_that_only_fit_alone_are_refused_together_by_every_strategy() {
    let url = world().database("postgres").await;
    let service = Service::start(&world().everything(&url)).await;
    let api = &service.api;
    join_all(Strategy::all().iter().map(|strategy| async move {
        let strategy = strategy.name().to_string();
        let skus = [
            json!({"sku": "A", "stock": 3}),
            json!({"sku": "B", "stock": 3}),
        ];
        let sale = api.open(json!({"strategy": strategy, "skus": skus})).await;
        let twice = [("A", 2), ("B", 1), ("A", 2)];
        let refused = api.buy_surely(&sale, "alice", "k", &twice).await;
        refused.assert_problem(409, "sold-out", "3 of A are left");
        for (sku, expected) in [("A", (3, 3, 0, 0)), ("B", (3, 3, 0, 0))] {
            assert_eq!(api.stock(&sale, sku).await, expected, "{strategy}");
        }
        let fits = [("A", 1), ("B", 1), ("A", 2)];
        let bought = api.buy_surely(&sale, "alice", "k2", &fits).await;
        assert_eq!(bought.status, 201, "{strategy}: {bought:?}");
        let lines = json!([{"sku": "A", "quantity": 3}, {"sku": "B", "quantity": 1}]);
        assert_eq!(bought.body["lines"], lines, "{strategy}");
        assert_eq!(api.stock(&sale, "A").await, (3, 0, 3, 0), "{strategy}");
    }))
    .await;
}
