//! Is whatever is wrong with a request or a set-up refused, and told in words that help?

mod activity;
mod hostile;
mod purchase;
mod start;
mod window;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::world::{Answer, Api, Service, world};

/// A service without any option but its database. These tests share it.
async fn api() -> Api {
    static PLAIN: OnceCell<Service> = OnceCell::const_new();
    let started = PLAIN.get_or_init(async || {
        let url = world().database("sqlite").await;
        let env = vec![("FLASHLOCK_DATABASE_URL".to_string(), url)];
        world()
            .keep(async move { Service::start(&env).await })
            .await
    });
    started.await.api.afresh()
}

/// A valid activity, but for `change`.
fn sale(change: Value) -> Value {
    let mut sale = json!({
        "strategy": "db-conditional-update",
        "skus": [{"sku": "phone", "stock": 5}, {"sku": "case", "stock": 5}],
    });
    let fields = change.as_object().expect("an object").clone();
    sale.as_object_mut().expect("an object").extend(fields);
    sale
}

/// An open activity of five phones and five cases.
async fn opened() -> String {
    api().await.open(sale(json!({}))).await
}

/// POSTs `body` as it is.
async fn post(path: &str, headers: &[(&str, &str)], body: impl Into<reqwest::Body>) -> Answer {
    let api = api().await;
    let mut request = api.request(Method::POST, path).body(body);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    api.send(request).await.expect("an answer")
}

/// Asserts that nothing has been taken from an activity of `opened`.
async fn untouched(activity: &str) {
    for sku in ["phone", "case"] {
        assert_eq!(api().await.stock(activity, sku).await, (5, 5, 0, 0));
    }
}
