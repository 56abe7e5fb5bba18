//! Do the rate limits have the sizes they are said to have, in the process and in Redis, and does
//! what a process remembers of a sold-out stand in nobody's way?

mod script;
mod shared;
mod sizes;
mod sold_out;

use serde_json::{Value, json};
use std::time::Duration;

use crate::world::{Answer, Service, world};

/// Longer than anything here takes on a loaded machine.
const DEADLINE: Duration = Duration::from_secs(30);

/// A service on this database, with these options besides.
async fn service_on(database_url: &str, options: &[(&str, &str)]) -> Service {
    let mut env = vec![(
        "FLASHLOCK_DATABASE_URL".to_string(),
        database_url.to_string(),
    )];
    let options = options.iter();
    env.extend(options.map(|(name, value)| (format!("FLASHLOCK_{name}"), value.to_string())));
    Service::start(&env).await
}

async fn service(options: &[(&str, &str)]) -> Service {
    service_on(&world().database("sqlite").await, options).await
}

/// A sale of `stock` phones, but for `change`.
fn phones(stock: i64, change: Value) -> Value {
    let mut sale =
        json!({"strategy": "db-conditional-update", "skus": [{"sku": "phone", "stock": stock}]});
    let fields = change.as_object().expect("an object").clone();
    sale.as_object_mut().expect("an object").extend(fields);
    sale
}

/// Seconds of `Retry-After`, which the `RateLimit` field repeats.
#[track_caller]
fn retry_after(limited: &Answer) -> u64 {
    let text = limited.headers["retry-after"].to_str().expect("text");
    let seconds = text.parse().expect("whole seconds");
    assert!(seconds >= 1, "{limited:?}");
    let field = limited.headers["ratelimit"].to_str().expect("text");
    assert!(field.ends_with(&format!(";r=0;t={seconds}")), "{field}");
    seconds
}

/// Waits until `holds`, and fails with `what` when that takes too long.
async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let deadline = flashlock::clock::now() + DEADLINE;
    while !holds().await {
        assert!(flashlock::clock::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
