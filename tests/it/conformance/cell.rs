//! A strategy on a database: two service processes, a client of each, and the database itself.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use flashlock::clock;
use flashlock::keys::GateKeys;
use flashlock::sale::Sku;
use flashlock::store::{Store, StoreOptions};
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use tokio::task::JoinSet;

use crate::books::Books;
use crate::world::{Answer, Api, DATABASES, Service, world};

/// Longest time for a crowd to be served: far above what any strategy needs on a busy machine, and
/// far below a deadlock that nobody resolves.
const CROWD: Duration = Duration::from_secs(90);
/// A restock is seen by the other process within 200 ms; the rest is for a busy machine.
const RESTOCK_SEEN: Duration = Duration::from_secs(10);
/// The gate follows the database within a round trip; the rest is for a busy machine.
const GATE_SETTLES: Duration = Duration::from_secs(5);

/// Two service processes on one database, which all tests of that database share.
struct Pair {
    services: [Service; 2],
    url: String,
}

/// One strategy on one database, with a client of each process and the database itself.
pub(super) struct Cell {
    pub(super) strategy: String,
    pub(super) name: String,
    apis: [Api; 2],
    pub(super) store: Store,
}

// === impl Pair ===

impl Pair {
    async fn of(database: &'static str) -> &'static Self {
        static PAIRS: [OnceCell<Pair>; 3] = [const { OnceCell::const_new() }; 3];
        let at = DATABASES
            .iter()
            .position(|d| *d == database)
            .expect("a database of the suite");
        let start = async move || {
            let url = world().database(database).await;
            let env = world().everything(&url);
            // Both at once: they also create the tables at once.
            let (one, two) = tokio::join!(Service::start(&env), Service::start(&env));
            Pair {
                services: [one, two],
                url,
            }
        };
        PAIRS[at].get_or_init(|| world().keep(start())).await
    }
}

// === impl Cell ===

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

impl Cell {
    pub(super) async fn of(strategy: &str, database: &'static str) -> Self {
        let pair = Pair::of(database).await;
        let options = StoreOptions {
            url: pair.url.clone(),
            connections_max: 2,
        };
        Self {
            strategy: strategy.to_string(),
            name: format!("{strategy} on {database}"),
            // Clients of this test's own: a connection ends with the runtime it was made on.
            apis: pair
                .services
                .each_ref()
                .map(|s| Api::new(s.api.url.clone())),
            store: Store::open(&options).await.expect("the database answers"),
        }
    }

    /// A client of one of the two processes, by turns.
    pub(super) fn api(&self, n: usize) -> Api {
        self.apis[n % 2].clone()
    }

    pub(super) async fn open(&self, stock: &[(&str, i64)], settings: Value) -> String {
        let skus: Vec<Value> = stock
            .iter()
            .map(|(sku, stock)| json!({"sku": sku, "stock": stock}))
            .collect();
        let mut body = json!({"strategy": self.strategy, "skus": skus});
        for (name, value) in settings.as_object().into_iter().flatten() {
            body[name] = value.clone();
        }
        self.apis[0].open(body).await
    }

    /// Runs all at once, each in a task of its own, and waits for their answers within a bound.
    pub(super) async fn all<T, F>(&self, futures: impl Iterator<Item = F>) -> Vec<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let tasks: JoinSet<T> = futures.collect();
        match tokio::time::timeout(CROWD, tasks.join_all()).await {
            Ok(all) => all,
            Err(_elapsed) => panic!("{self}: not all were answered within {CROWD:?}"),
        }
    }

    /// 200 buyers over both processes, each for one phone.
    pub(super) async fn crowd(&self, sale: &str) -> Vec<Answer> {
        let buyers = (0..200).map(|n| {
            let (api, sale) = (self.api(n), sale.to_string());
            async move {
                api.buy_surely(&sale, &format!("u-{n}"), "k", &[("phone", 1)])
                    .await
            }
        });
        self.all(buyers).await
    }

    pub(super) async fn crowd_gets_what_there_is(&self, settings: Value) {
        let sale = self.open(&[("phone", 20)], settings).await;
        let answers = self.crowd(&sale).await;
        let books = self.books(&sale).await;
        let ledger = books.ledger("phone");
        assert_eq!((ledger.available, ledger.held), (0, 20), "{self}");
        let mut stored: Vec<String> = books
            .live()
            .map(|order| format!("{sale}.{}", order.rid))
            .collect();
        let (booked, refused): (Vec<_>, Vec<_>) = answers.iter().partition(|a| a.is_booked());
        let mut told: Vec<String> = booked.iter().map(|a| a.order_id()).collect();
        stored.sort();
        told.sort();
        assert_eq!(
            told, stored,
            "{self}: what buyers were told is what is stored"
        );
        for answer in refused {
            answer.assert_problem(409, "sold-out", "0 of phone are left");
        }
    }

    /// Buys what another has just given back: a process may remember for a moment that it is sold out.
    pub(super) async fn buy_until_restocked(
        &self,
        sale: &str,
        user: &str,
        lines: &[(&str, i64)],
    ) -> Answer {
        let deadline = clock::now() + RESTOCK_SEEN;
        loop {
            let answer = self.apis[1].buy_surely(sale, user, "k", lines).await;
            if answer.is_booked() || clock::now() >= deadline {
                assert!(answer.is_booked(), "{self}: {answer:?}");
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The final state; asserts that it obeys the law.
    pub(super) async fn books(&self, sale: &str) -> Books {
        let books = Books::read(&self.store, sale).await;
        books.assert_balanced(&self.name);
        if self.strategy == "redis-lua" {
            self.gate_agrees(sale, &books).await;
        }
        books
    }

    /// The Redis gate at rest: nothing pending, and the same units as in the database.
    async fn gate_agrees(&self, sale: &str, books: &Books) {
        let url = world().lab.redis_url().expect("redis runs");
        let client = redis::Client::open(url).expect("a Redis URL");
        let mut redis = client
            .get_multiplexed_async_connection()
            .await
            .expect("redis answers");
        let keys = GateKeys::of(&sale.parse().expect("an activity id"));
        // What is given back is given back in the database first.
        let deadline = clock::now() + GATE_SETTLES;
        loop {
            let mut gate = Vec::new();
            for hash in [&keys.stock, &keys.pending, &keys.committed] {
                let read = redis::cmd("HGETALL")
                    .arg(hash)
                    .query_async(&mut redis)
                    .await;
                let units: BTreeMap<String, i64> = read.expect("redis answers");
                gate.push(units);
            }
            let of = |hash: usize, sku: &Sku| gate[hash].get(sku.as_str()).copied().unwrap_or(0);
            let agrees = books.0.skus.iter().all(|row| {
                let ledger = books.ledger(row.sku.as_str());
                let told = (of(0, &row.sku), of(1, &row.sku), of(2, &row.sku));
                told == (ledger.available, 0, ledger.live())
            });
            if agrees {
                return;
            }
            assert!(
                clock::now() < deadline,
                "{self}: the gate has {gate:?}, and the database {books:?}"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

// === impl Answer ===

impl Answer {
    /// An order is there: booked by this request, or by an earlier one with the same key.
    pub(super) fn is_booked(&self) -> bool {
        matches!(self.status, 200 | 201)
    }
}

/// Posts until the answer is not "later".
pub(super) async fn post_surely(api: &Api, path: &str) -> Answer {
    for _ in 0..100 {
        let answer = api.post(path, Value::Null).await;
        if answer.status != 503 {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{path} was answered 503 a hundred times");
}
