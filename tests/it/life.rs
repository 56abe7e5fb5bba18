//! The whole life of an activity: paused, sold in another way, warmed up again, and ended.

mod end;
mod pause;
mod proxy;
mod reconcile;
mod refused;
mod strategy;
mod table;
mod warm_up;

use std::future::Future;
use std::time::Duration;

use flashlock::clock;
use flashlock::gate::{Audit, Gate};
use flashlock::store::{Store, StoreOptions};
use reqwest::Method;
use serde_json::{Value, json};

use crate::books::Books;
use crate::world::{Answer, Api, Service, world};

/// Everything moves on well within this, on a busy machine.
const SOON: Duration = Duration::from_secs(60);

/// Two service processes with every server, and their database.
struct Shop {
    services: Vec<Service>,
    store: Store,
    database_url: String,
    redis_url: String,
}

// === impl Shop ===

impl Shop {
    /// On a fresh database of this kind.
    async fn on(database: &str) -> Self {
        Self::with(database, &[]).await
    }

    /// The same with more options.
    async fn with(database: &str, options: &[(&str, &str)]) -> Self {
        let url = world().database(database).await;
        let mut env = world().everything(&url);
        for (name, value) in options {
            env.push((format!("FLASHLOCK_{name}"), (*value).to_string()));
        }
        let (one, two) = tokio::join!(Service::start(&env), Service::start(&env));
        let options = StoreOptions {
            url: url.clone(),
            connections_max: 4,
        };
        Self {
            services: vec![one, two],
            store: Store::open(&options).await.expect("the database answers"),
            database_url: url,
            redis_url: world().lab.redis_url().expect("redis runs"),
        }
    }

    /// A client of one of the two processes, by turns.
    fn api(&self, n: usize) -> &Api {
        &self.services[n % 2].api
    }

    /// An open sale of phones.
    async fn open(&self, strategy: &str, stock: i64) -> String {
        let skus = json!([{"sku": "phone", "stock": stock}]);
        self.api(0)
            .open(json!({"strategy": strategy, "skus": skus}))
            .await
    }

    async fn step(&self, n: usize, sale: &str, step: &str) -> Answer {
        let path = format!("/v1/activities/{sale}/{step}");
        self.api(n).post(&path, Value::Null).await
    }

    /// The same, and the state it leads to.
    async fn steps(&self, sale: &str, steps: &[(&str, &str)]) {
        for (n, (step, state)) in steps.iter().enumerate() {
            let answer = self.step(n, sale, step).await;
            assert_eq!(
                (answer.status, &answer.body["state"]),
                (200, &json!(state)),
                "{step}: {answer:?}"
            );
        }
    }

    async fn set_strategy(&self, n: usize, sale: &str, body: Value) -> Answer {
        let path = format!("/v1/activities/{sale}/strategy");
        let request = self.api(n).request(Method::PUT, &path);
        let answer = self.api(n).send(request.body(body.to_string())).await;
        answer.expect("an answer")
    }

    async fn buy(&self, n: usize, sale: &str, user: &str) -> Answer {
        self.api(n)
            .buy_surely(sale, user, "k", &[("phone", 1)])
            .await
    }

    async fn pay(&self, n: usize, order: &str) -> Answer {
        let body = json!({"provider": "acme", "provider_txn": format!("t-{order}")});
        self.api(n)
            .post(&format!("/v1/orders/{order}/payments"), body)
            .await
    }

    async fn cancel(&self, n: usize, order: &str) -> Answer {
        let path = format!("/v1/orders/{order}/cancel");
        let mut answer = self.api(n).post(&path, Value::Null).await;
        for _ in 0..100 {
            if answer.status != 503 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
            answer = self.api(n).post(&path, Value::Null).await;
        }
        answer
    }

    async fn state(&self, sale: &str) -> String {
        let answer = self.api(0).get(&format!("/v1/activities/{sale}")).await;
        let state = answer.body["state"].as_str().expect("a state");
        state.to_string()
    }

    /// Waits until the activity has come to `state`.
    async fn until(&self, sale: &str, state: &str) {
        until(state, async || self.state(sale).await == state).await;
    }

    /// What the database holds; asserts that it obeys the law.
    async fn books(&self, sale: &str) -> Books {
        let books = Books::read(&self.store, sale).await;
        books.assert_balanced(sale);
        books
    }

    fn gate(&self) -> Gate {
        Gate::new(&self.redis_url).expect("a gate")
    }

    async fn audit(&self, sale: &str) -> Option<Audit> {
        let id = sale.parse().expect("an id");
        self.gate().audit(&id).await.expect("redis answers")
    }

    /// Asserts that the stores agree, and have nothing on its way.
    async fn assert_agrees(&self, sale: &str) {
        let path = format!("/v1/activities/{sale}/reconcile");
        let told = async || self.api(1).post(&path, json!({"dry_run": true})).await.body;
        until("they agree", async || told().await["verdict"] == "OK").await;
    }
}

/// Asks until `is_so`, and fails when it does not become so.
async fn until<F: Future<Output = bool>>(what: &str, is_so: impl Fn() -> F) {
    let deadline = clock::now() + SOON;
    while !is_so().await {
        assert!(clock::now() < deadline, "{what}: not after {SOON:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
