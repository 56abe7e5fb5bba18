//! Does a repeat get the same answer, also eight at once through two processes, and is it done once?

use std::future::Future;
use std::time::Duration;

use flashlock::store::{Store, StoreOptions};
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::AnyPool;

use super::DEADLINE;
use crate::books::Books;
use crate::world::{Answer, Api, Service, world};

/// Requests at once.
const AT_ONCE: usize = 8;

/// Two processes with every server, on one database.
struct Two {
    services: [Service; 2],
    url: String,
}

impl Two {
    async fn on(database: &str) -> Self {
        let url = world().database(database).await;
        let env = world().everything(&url);
        let (one, two) = tokio::join!(Service::start(&env), Service::start(&env));
        Self {
            services: [one, two],
            url,
        }
    }

    fn api(&self, n: usize) -> Api {
        self.services[n % 2].api.clone()
    }

    /// Asks eight times at once and then twice in turn, by turns through both; the answers.
    async fn ten_times<F: Future<Output = Answer>>(&self, ask: impl Fn(Api) -> F) -> Vec<Answer> {
        let at_once = (0..AT_ONCE).map(|n| ask(self.api(n)));
        let mut answers = futures::future::join_all(at_once).await;
        for n in 0..2 {
            answers.push(ask(self.api(n)).await);
        }
        answers
    }

    /// The same of a step that leads to `state`; every answer says so.
    async fn leads_to(&self, sale: &str, step: &str, state: &str) {
        let path = format!("/v1/activities/{sale}/{step}");
        let answers = self.ten_times(|api| {
            let path = path.clone();
            async move { api.post(&path, Value::Null).await }
        });
        for answer in answers.await {
            let told = (answer.status, &answer.body["state"]);
            assert_eq!(told, (200, &json!(state)), "{step}: {answer:?}");
        }
    }

    async fn count(&self, sql: &str) -> i64 {
        let raw = AnyPool::connect(&self.url).await.expect("it answers");
        let row: (i64,) = sqlx::query_as(sqlx::AssertSqlSafe(sql.to_string()))
            .fetch_one(&raw)
            .await
            .expect("read");
        row.0
    }

    async fn assert_balanced(&self, sale: &str) -> Books {
        let options = StoreOptions {
            url: self.url.clone(),
            connections_max: 1,
        };
        let store = Store::open(&options).await.expect("it answers");
        let books = Books::read(&store, sale).await;
        books.assert_balanced(sale);
        books
    }
}

fn same(answers: &[Answer]) -> &Value {
    for answer in answers {
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.body, answers[0].body);
    }
    &answers[0].body
}

#[tokio::test(flavor = "multi_thread")]
async fn each_step_of_an_activitys_life_may_be_repeated() {
    let two = Two::on("postgres").await;
    for (strategy, other) in [
        ("redis-lua", "db-unique-insert"),
        ("db-conditional-update", "redis-lua"),
    ] {
        let skus = json!([{"sku": "phone", "stock": 5}]);
        let body = json!({"strategy": strategy, "skus": skus});
        let sale = two.api(0).create(body).await;
        two.leads_to(&sale, "warm-up", "READY").await;
        two.leads_to(&sale, "open", "OPEN").await;
        let alice = two.api(1).buy(&sale, "alice", "k", &[("phone", 1)]).await;
        two.leads_to(&sale, "pause", "PAUSED").await;
        let path = format!("/v1/activities/{sale}/strategy");
        let body = json!({"strategy": other, "batch_max": 4}).to_string();
        let answers = two.ten_times(|api| {
            let request = api.request(Method::PUT, &path).body(body.clone());
            async move { api.send(request).await.expect("an answer") }
        });
        let answers = answers.await;
        let told = same(&answers);
        assert_eq!(
            (&told["strategy"], &told["state"]),
            (&json!(other), &json!("DRAFT"))
        );
        two.leads_to(&sale, "warm-up", "READY").await;
        two.leads_to(&sale, "open", "OPEN").await;
        let bob = two.api(0).buy(&sale, "bob", "k", &[("phone", 1)]).await;
        assert_eq!(bob.status, 201, "{bob:?}");
        two.leads_to(&sale, "close", "CLOSING").await;
        for order in [alice, bob] {
            let path = format!("/v1/orders/{}/cancel", order.order_id());
            let answers = two.ten_times(|api| {
                let path = path.clone();
                async move { surely(&api, &path, Value::Null).await }
            });
            assert_eq!(same(&answers.await)["status"], "CLOSED");
        }
        let deadline = flashlock::clock::now() + DEADLINE;
        loop {
            let now = two.api(0).get(&format!("/v1/activities/{sale}")).await;
            if now.body["state"] == "SEALED" {
                break;
            }
            assert!(flashlock::clock::now() < deadline, "{now:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        two.leads_to(&sale, "close", "SEALED").await;
        let books = two.assert_balanced(&sale).await;
        assert_eq!(books.ledger("phone").available, 5, "{strategy}");
    }
}

/// Posts until the answer is not "later": a close under a lock may be told to try again.
async fn surely(api: &Api, path: &str, body: Value) -> Answer {
    for _ in 0..100 {
        let answer = api.post(path, body.clone()).await;
        if answer.status != 503 {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{path} was answered 503 a hundred times");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payment_is_applied_once_and_a_late_one_refunded_once() {
    for database in crate::world::DATABASES {
        let two = Two::on(database).await;
        for strategy in ["db-conditional-update", "redis-lua"] {
            let skus = json!([{"sku": "phone", "stock": 5}]);
            let body = json!({"strategy": strategy, "skus": skus});
            let sale = two.api(0).open(body).await;
            let pay = |order: &str, txn: &str| {
                let path = format!("/v1/orders/{order}/payments");
                let body = json!({"provider": "acme", "provider_txn": format!("{order}-{txn}")});
                two.ten_times(move |api| {
                    let (path, body) = (path.clone(), body.clone());
                    async move { surely(&api, &path, body).await }
                })
            };
            let bought = |user: &'static str| {
                let (api, sale) = (two.api(0), sale.clone());
                async move {
                    let bought = api.buy(&sale, user, "k", &[("phone", 1)]).await;
                    bought.order_id()
                }
            };
            let alice = bought("alice").await;
            let answers = pay(&alice, "first").await;
            let told = same(&answers);
            assert_eq!(told["outcome"], "APPLIED", "{database}");
            assert_eq!(told["order"]["status"], "PAID", "{database}");
            // Another payment of the same order goes back, once.
            let answers = pay(&alice, "second").await;
            assert_eq!(same(&answers)["outcome"], "REFUND_DUE", "{database}");
            let bob = bought("bob").await;
            let path = format!("/v1/orders/{bob}/cancel");
            assert_eq!(surely(&two.api(1), &path, Value::Null).await.status, 200);
            let answers = pay(&bob, "late").await;
            assert_eq!(same(&answers)["outcome"], "REFUND_DUE", "{database}");
            // A paid order cannot be cancelled, however often.
            let path = format!("/v1/orders/{alice}/cancel");
            let refused = two.ten_times(|api| {
                let path = path.clone();
                async move { surely(&api, &path, Value::Null).await }
            });
            for answer in refused.await {
                answer.assert_problem(409, "not-allowed-in-state", "PAID");
            }
            let books = two.assert_balanced(&sale).await;
            let ledger = books.ledger("phone");
            assert_eq!(
                (ledger.available, ledger.held, ledger.sold),
                (4, 0, 1),
                "{database}"
            );
        }
        for (sql, rows) in [
            ("SELECT COUNT(*) FROM payment WHERE outcome = 'APPLIED'", 2),
            (
                "SELECT COUNT(*) FROM payment WHERE outcome = 'REFUND_DUE'",
                4,
            ),
            ("SELECT COUNT(*) FROM refund", 4),
        ] {
            assert_eq!(two.count(sql).await, rows, "{database}: {sql}");
        }
    }
}
