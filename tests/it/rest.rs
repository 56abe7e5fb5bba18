//! Does the service keep its contract: scopes, resources, payments, limits, and a clean end?

mod idempotent;
mod limits;
mod payment;
mod resources;
mod shutdown;
mod tokens;

use serde_json::{Value, json};
use std::time::Duration;

use crate::world::{DATABASES, Service, world};

/// Longer than anything here takes on a loaded machine.
const DEADLINE: Duration = Duration::from_secs(30);

fn env(options: &[(&str, &str)]) -> Vec<(String, String)> {
    let options = options.iter();
    options
        .map(|(name, value)| (format!("FLASHLOCK_{name}"), value.to_string()))
        .collect()
}

/// A service on a fresh database of this kind, with these options.
async fn service_on(database: &str, options: &[(&str, &str)]) -> Service {
    let url = world().database(database).await;
    let mut all = vec![("DATABASE_URL", url.as_str())];
    all.extend(options);
    Service::start(&env(&all)).await
}

/// A service on a fresh SQLite file.
async fn service(options: &[(&str, &str)]) -> Service {
    service_on(DATABASES[0], options).await
}

/// An activity of `stock` phones, but for `change`.
fn phones(stock: i64, change: Value) -> Value {
    let mut sale =
        json!({"strategy": "db-conditional-update", "skus": [{"sku": "phone", "stock": stock}]});
    let fields = change.as_object().expect("an object").clone();
    sale.as_object_mut().expect("an object").extend(fields);
    sale
}

/// Waits until `holds`, and fails with `what` when that takes too long.
async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let deadline = flashlock::clock::now() + DEADLINE;
    while !holds().await {
        assert!(flashlock::clock::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
