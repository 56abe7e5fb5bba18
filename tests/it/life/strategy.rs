//! A sale changes its strategy in mid-sale, and every order stands.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{Shop, until};
use crate::world::{DATABASES, world};

/// From the gate to each other kind and back.
const WAY: [&str; 6] = [
    "redis-set-nx",
    "db-conditional-update",
    "redis-lua",
    "zookeeper",
    "db-unique-insert",
    "redis-lua",
];

impl Shop {
    /// Pauses, sets the strategy, warms up and opens, each through another process.
    async fn change(&self, sale: &str, strategy: &str) {
        self.steps(sale, &[("pause", "PAUSED")]).await;
        let changed = self
            .set_strategy(1, sale, json!({"strategy": strategy}))
            .await;
        assert_eq!(changed.status, 200, "{changed:?}");
        assert_eq!(changed.body["state"], "DRAFT", "{changed:?}");
        assert_eq!(changed.body["strategy"], strategy, "{changed:?}");
        self.steps(sale, &[("warm-up", "READY"), ("open", "OPEN")])
            .await;
    }

    pub(super) async fn redis_keys(&self, sale: &str) -> Vec<String> {
        let client = redis::Client::open(self.redis_url.as_str()).expect("a URL");
        let mut con = client
            .get_multiplexed_async_connection()
            .await
            .expect("connected");
        let mut keys: Vec<String> = redis::cmd("KEYS")
            .arg(format!("{{fs:{sale}}}:*"))
            .query_async(&mut con)
            .await
            .expect("keys");
        keys.sort();
        keys
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_of_one_strategy_are_paid_cancelled_and_closed_under_the_next() {
    for database in DATABASES {
        let shop = Shop::on(database).await;
        let skus = json!([{"sku": "phone", "stock": 40}]);
        let body = json!({"strategy": "redis-lua", "skus": skus, "pay_window_s": 900});
        let sale = shop.api(0).open(body).await;
        let (mut paid, mut live) = (0, Vec::new());
        for (turn, strategy) in WAY.into_iter().enumerate() {
            let mut orders = Vec::new();
            for buyer in 0..4 {
                let user = format!("u-{turn}-{buyer}");
                let bought = shop.buy(buyer, &sale, &user).await;
                assert_eq!(bought.status, 201, "{database}: {bought:?}");
                orders.push((user, bought.order_id()));
            }
            shop.change(&sale, strategy).await;
            let is_gate = strategy == "redis-lua";
            let audit = shop.audit(&sale).await;
            assert_eq!(
                audit.is_some(),
                is_gate,
                "{database}, {strategy}: {audit:?}"
            );
            assert_eq!(shop.pay(0, &orders[0].1).await.body["outcome"], "APPLIED");
            assert_eq!(shop.cancel(1, &orders[1].1).await.body["status"], "CLOSED");
            // The other two stand, and are found by their keys.
            for (n, (user, order)) in orders.iter().enumerate() {
                let replay = shop.buy(n, &sale, user).await;
                assert_eq!((replay.status, &replay.order_id()), (200, order));
            }
            paid += 1;
            live.extend(orders.drain(2..));
            let held = live.len() as i64;
            let stock = shop.api(turn).stock(&sale, "phone").await;
            assert_eq!(
                stock,
                (40, 40 - paid - held, held, paid),
                "{database}, {strategy}"
            );
            if is_gate {
                shop.assert_agrees(&sale).await;
                let l = shop.audit(&sale).await.expect("warmed").ledgers.remove(0);
                let counts = (l.available, l.held, l.sold);
                assert_eq!(counts, (40 - paid - held, 0, paid + held), "{database}");
            }
        }
        shop.books(&sale).await;
    }
}

/// Buyers do not stop while operators change the strategy under them.
#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_that_does_not_stop_is_sold_each_unit_once() {
    const STOCK: i64 = 120;
    let shop = Arc::new(Shop::on("postgres").await);
    let sale = shop.open("redis-lua", STOCK).await;
    let done = Arc::new(AtomicBool::new(false));
    let mut crowd = JoinSet::new();
    for worker in 0..8 {
        let (shop, sale, done) = (Arc::clone(&shop), sale.clone(), Arc::clone(&done));
        crowd.spawn(async move {
            let mut told = Vec::new();
            for n in 0.. {
                if done.load(Ordering::SeqCst) {
                    break;
                }
                let user = format!("u-{worker}-{n}");
                let answer = loop {
                    let api = shop.api(worker);
                    let answer = api.buy(&sale, &user, "k", &[("phone", 1)]).await;
                    // Nobody is told anything final while the strategy is changed.
                    if answer.status != 503 {
                        break answer;
                    }
                    assert_eq!(answer.body["retry_with_same_key"], true, "{answer:?}");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                };
                match answer.status {
                    200 | 201 => told.push(answer.order_id()),
                    _refused => {
                        answer.assert_problem(409, "sold-out", "phone are left");
                        break;
                    }
                }
                // One in four changes their mind.
                if n % 4 == 0 {
                    let order = told.pop().expect("just bought");
                    let cancelled = shop.cancel(worker + 1, &order).await;
                    assert_eq!(cancelled.body["status"], "CLOSED", "{cancelled:?}");
                }
            }
            told
        });
    }
    for strategy in WAY {
        shop.change(&sale, strategy).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    done.store(true, Ordering::SeqCst);
    let told: Vec<String> = crowd.join_all().await.into_iter().flatten().collect();
    let books = shop.books(&sale).await;
    let stored: BTreeSet<String> = books.live().map(|o| format!("{sale}.{}", o.rid)).collect();
    assert_eq!(told.len(), stored.len());
    assert_eq!(told.into_iter().collect::<BTreeSet<_>>(), stored);
    assert!(!stored.is_empty());
    shop.assert_agrees(&sale).await;
    let ledger = books.ledger("phone");
    let gate = shop.audit(&sale).await.expect("warmed").ledgers.remove(0);
    let counts = (gate.available, gate.held, gate.sold);
    assert_eq!(counts, (ledger.available, 0, ledger.live()));
}

/// The pay window of an order ends under another strategy than it was made under.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_is_not_paid_is_closed_under_the_next_strategy() {
    let shop = Shop::on("postgres").await;
    for (first, next) in [
        ("redis-lua", "redis-set-nx"),
        ("db-unique-insert", "redis-lua"),
    ] {
        let skus = json!([{"sku": "phone", "stock": 2}]);
        let body = json!({"strategy": first, "skus": skus, "pay_window_s": 8});
        let sale = shop.api(0).open(body).await;
        let alice = shop.buy(0, &sale, "alice").await;
        assert_eq!(alice.status, 201, "{alice:?}");
        shop.change(&sale, next).await;
        let path = format!("/v1/orders/{}", alice.order_id());
        until("its time is over", async || {
            shop.api(1).get(&path).await.body["status"] == "CLOSED"
        })
        .await;
        let order = shop.api(0).get(&path).await;
        assert_eq!(order.body["close_reason"], "timeout", "{order:?}");
        assert_eq!(shop.api(1).stock(&sale, "phone").await, (2, 2, 0, 0));
        shop.assert_agrees(&sale).await;
        shop.books(&sale).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_redis_lua_kept_is_gone_when_it_is_left() {
    let shop = Shop::on("sqlite").await;
    let sale = shop.open("redis-lua", 3).await;
    shop.buy(0, &sale, "alice").await;
    assert!(shop.redis_keys(&sale).await.len() > 5);
    shop.change(&sale, "db-conditional-update").await;
    assert_eq!(shop.redis_keys(&sale).await, Vec::<String>::new());
    // Neither a cancellation nor a purchase brings any of them back.
    let bob = shop.buy(1, &sale, "bob").await.order_id();
    shop.cancel(0, &bob).await;
    assert_eq!(shop.redis_keys(&sale).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_strategy_is_changed_only_while_nothing_is_sold() {
    let shop = Shop::on("sqlite").await;
    let sale = shop.open("db-conditional-update", 3).await;
    let other = json!({"strategy": "db-unique-insert"});
    let open = shop.set_strategy(0, &sale, other.clone()).await;
    open.assert_problem(409, "not-allowed-in-state", "pause it");
    assert_eq!(open.body["state"], "OPEN");
    shop.steps(&sale, &[("pause", "PAUSED")]).await;
    // Twice, and through both processes: the same answer.
    let settings = json!({"strategy": "db-unique-insert", "guard": "lease", "batch_max": 8});
    let first = shop.set_strategy(0, &sale, settings.clone()).await;
    let again = shop.set_strategy(1, &sale, settings).await;
    assert_eq!((first.status, &first.body), (200, &again.body), "{again:?}");
    let told = ["strategy", "guard", "batch_max", "state"].map(|name| first.body[name].clone());
    let wanted = [
        json!("db-unique-insert"),
        json!("lease"),
        json!(8),
        json!("DRAFT"),
    ];
    assert_eq!(told, wanted);
    shop.steps(&sale, &[("warm-up", "READY")]).await;
    let ready = shop.set_strategy(0, &sale, other.clone()).await;
    assert_eq!((ready.status, &ready.body["state"]), (200, &json!("DRAFT")));
    for (body, says) in [
        (json!({"strategy": "best"}), "the strategies are"),
        (
            json!({"strategy": "redis-lua", "guard": "fence"}),
            "leave guard out",
        ),
        (
            json!({"strategy": "redis-set-nx", "batch_max": 0}),
            "batch_max is 0",
        ),
        (json!({"strategy": "redis-set-nx", "stock": 9}), "stock"),
        (json!({}), "strategy"),
    ] {
        let wrong = shop.set_strategy(1, &sale, body).await;
        wrong.assert_problem(400, "invalid-request", says);
    }
    let unknown = "0190f5c8a3b17c3e8d1f2a4b5c6d7e8f";
    let missing = shop.set_strategy(0, unknown, other.clone()).await;
    missing.assert_problem(404, "not-found", unknown);
    shop.step(0, &sale, "close").await;
    let closed = shop.set_strategy(0, &sale, other).await;
    closed.assert_problem(
        409,
        "not-allowed-in-state",
        "does not allow a change of strategy",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_strategy_that_is_not_configured_is_refused_and_nothing_changes() {
    let url = world().database("sqlite").await;
    let env = [("FLASHLOCK_DATABASE_URL".to_string(), url)];
    let service = crate::world::Service::start(&env).await;
    let skus = json!([{"sku": "phone", "stock": 1}]);
    let sale = json!({"strategy": "db-conditional-update", "skus": skus});
    let sale = service.api.create(sale).await;
    let path = format!("/v1/activities/{sale}/strategy");
    let request = service.api.request(reqwest::Method::PUT, &path);
    let request = request.body(json!({"strategy": "redis-lua"}).to_string());
    let refused = service.api.send(request).await.expect("an answer");
    refused.assert_problem(422, "strategy-not-configured", "redis_url");
    let there = service.api.get(&format!("/v1/activities/{sale}")).await;
    assert_eq!(there.body["strategy"], "db-conditional-update");
    let paused = service
        .api
        .post(&format!("/v1/activities/{sale}/pause"), Value::Null)
        .await;
    paused.assert_problem(409, "not-allowed-in-state", "the activity is DRAFT");
}
