//! A sale ends by itself, once and for all, and what it kept in Redis goes.

use flashlock::clock;
use flashlock::order::Fingerprint;
use flashlock::script::gate::ReleaseAnswer;
use flashlock::store::Tombstone;
use serde_json::{Value, json};
use sqlx::AnyPool;

use super::{Shop, until};
use crate::embedded::purchase;
use crate::world::{Service, world};

/// This much later, in RFC 3339.
fn after(ms: i64) -> String {
    clock::rfc3339(clock::wall_ms() + ms)
}

impl Shop {
    async fn close(&self, sale: &str) {
        let closed = self.step(0, sale, "close").await;
        assert_eq!(closed.status, 200, "{closed:?}");
    }

    async fn draining(&self, sale: &str) -> Value {
        let answer = self.api(0).get(&format!("/v1/activities/{sale}")).await;
        answer.body["draining"].clone()
    }

    /// What is left of a key's time, in milliseconds, below zero when it has none.
    async fn ttl_ms(&self, key: &str) -> i64 {
        let client = redis::Client::open(self.redis_url.as_str()).expect("a URL");
        let mut con = client
            .get_multiplexed_async_connection()
            .await
            .expect("connected");
        let ttl = redis::cmd("PTTL").arg(key).query_async(&mut con).await;
        ttl.expect("redis answers")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sale_is_sealed_once_all_of_it_is_settled_and_its_keys_go() {
    let shop = Shop::on("postgres").await;
    for strategy in ["redis-lua", "redis-set-nx"] {
        let sale = shop.open(strategy, 5).await;
        let alice = shop.buy(0, &sale, "alice").await.order_id();
        let bob = shop.buy(1, &sale, "bob").await.order_id();
        shop.close(&sale).await;
        until("all is told but the unpaid orders", async || {
            let draining = shop.draining(&sale).await;
            draining
                == json!({"in_flight": 0, "unpaid_orders": 2, "undelivered_events": 0, "unresolved_reservations": 0})
        })
        .await;
        assert_eq!(shop.state(&sale).await, "CLOSING");
        let refused = shop.buy(1, &sale, "carol").await;
        refused.assert_problem(410, "activity-ended", "no more is sold");
        assert_eq!(shop.pay(0, &alice).await.body["outcome"], "APPLIED");
        assert_eq!(shop.cancel(1, &bob).await.body["status"], "CLOSED");
        shop.until(&sale, "SEALED").await;

        // All keys of the gate go at one moment, and so does the lock's counter.
        let keys = shop.redis_keys(&sale).await;
        assert!(!keys.is_empty(), "{strategy}");
        for key in &keys {
            let ttl_ms = shop.ttl_ms(key).await;
            assert!((1..=3_600_000).contains(&ttl_ms), "{key}: {ttl_ms} ms");
        }
        // Over, and every buyer is answered.
        for step in ["warm-up", "open", "pause"] {
            let refused = shop.step(0, &sale, step).await;
            refused.assert_problem(409, "not-allowed-in-state", "the activity is SEALED");
        }
        shop.steps(&sale, &[("close", "SEALED"), ("close", "SEALED")])
            .await;
        for gone in [false, true] {
            if gone {
                // As after the hour.
                let id = sale.parse().expect("an id");
                let gate = shop.gate();
                let now = std::time::Duration::ZERO;
                gate.expire(&id, now).await.expect("redis answers");
                let rid = alice.split_once('.').expect("an order's id").1;
                let rid = rid.parse().expect("a rid");
                let released = gate.release(&id, &[rid], "late").await;
                assert_eq!(released.expect("told"), [ReleaseAnswer::Gone]);
            }
            for n in 0..2 {
                let late = shop.buy(n, &sale, "carol").await;
                late.assert_problem(410, "activity-ended", "no more is sold");
                let replay = shop.buy(n, &sale, "alice").await;
                let told = (replay.status, &replay.body["status"]);
                assert_eq!(told, (200, &json!("PAID")), "{strategy}");
                let order = shop.api(n).get(&format!("/v1/orders/{bob}")).await;
                assert_eq!(order.body["status"], "CLOSED");
                let again = shop.pay(n, &alice).await;
                assert_eq!(again.body["outcome"], "APPLIED");
                let again = shop.cancel(n, &bob).await;
                assert_eq!(again.body["status"], "CLOSED");
                let late = shop.pay(n, &bob).await;
                assert_eq!(late.body["outcome"], "REFUND_DUE");
            }
            shop.assert_agrees(&sale).await;
        }
        let left = shop.redis_keys(&sale).await;
        let gates = left.iter().filter(|key| !key.ends_with("lock-fence"));
        assert_eq!(gates.count(), 0, "{left:?}");
        shop.books(&sale).await;
    }
    let mut sealed = 0;
    for n in 0..2 {
        let metrics = shop.api(n).get("/metrics").await;
        let text = metrics.body.as_str().expect("text").to_string();
        let of = text
            .lines()
            .find_map(|line| line.strip_prefix("flashlock_activities_sealed_total "));
        sealed += of.map_or(0, |n| n.parse().expect("a number"));
    }
    assert_eq!(sealed, 2, "each sale is sealed once, by one of two");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sale_whose_time_is_over_ends_by_itself() {
    let shop = Shop::on("mysql").await;
    for (strategy, pauses) in [("db-conditional-update", false), ("redis-lua", true)] {
        let skus = json!([{"sku": "phone", "stock": 3}]);
        let body = json!({"strategy": strategy, "skus": skus, "closes_at": after(10_000)});
        let sale = shop.api(0).open(body).await;
        let alice = shop.buy(0, &sale, "alice").await;
        assert_eq!(alice.status, 201, "{alice:?}");
        if pauses {
            shop.steps(&sale, &[("pause", "PAUSED")]).await;
        }
        shop.until(&sale, "CLOSING").await;
        assert_eq!(shop.draining(&sale).await["unpaid_orders"], 1);
        assert_eq!(
            shop.pay(1, &alice.order_id()).await.body["outcome"],
            "APPLIED"
        );
        shop.until(&sale, "SEALED").await;
        shop.books(&sale).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_waits_for_events_and_for_reservations_to_be_resolved() {
    let shop = Shop::with("sqlite", &[("ROLES", "api,closer")]).await;
    let sale = shop.open("redis-lua", 3).await;
    let id = sale.parse().expect("an id");
    let alice = shop.buy(0, &sale, "alice").await.order_id();
    shop.cancel(0, &alice).await;
    let lost = purchase(&id, "lost");
    let unknown = Tombstone {
        rid: lost.rid(),
        user: lost.user.clone(),
        fingerprint: Fingerprint::of(&lost),
    };
    let noted = shop.store.insert_compensations(&id, &[unknown]).await;
    noted.expect("noted");
    shop.close(&sale).await;
    let waits = json!({"in_flight": 0, "unpaid_orders": 0, "undelivered_events": 2, "unresolved_reservations": 1});
    // Some passes of the role later it still waits.
    for _ in 0..30 {
        assert_eq!(shop.draining(&sale).await, waits);
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    let mut env = world().everything(&shop.database_url);
    env.push(("FLASHLOCK_ROLES".into(), "api,relay,sweeper".into()));
    let other = Service::start(&env).await;
    shop.until(&sale, "SEALED").await;
    let late = other.api.buy(&sale, "lost", "k", &[("phone", 1)]).await;
    late.assert_problem(409, "order-abandoned", "use a new one");
}

#[tokio::test(flavor = "multi_thread")]
async fn stores_that_differ_keep_a_sale_from_its_seal_unless_it_is_a_control() {
    let shop = Shop::on("sqlite").await;
    let raw = AnyPool::connect(&shop.database_url)
        .await
        .expect("the database answers");
    let mut sales = Vec::new();
    for strategy in ["db-conditional-update", "no-lock"] {
        let sale = shop.open(strategy, 3).await;
        let lose = format!("UPDATE activity_sku SET available = 2 WHERE activity_id = '{sale}'");
        sqlx::query(sqlx::AssertSqlSafe(lose))
            .execute(&raw)
            .await
            .expect("lost");
        shop.close(&sale).await;
        sales.push(sale);
    }
    shop.until(&sales[1], "SEALED").await;
    until("the loss is told", async || {
        let sql = format!(
            "SELECT COUNT(*) FROM recon_run WHERE activity_id = '{}' AND verdict = 'LEAK'",
            sales[0]
        );
        let row: (i64,) = sqlx::query_as(sqlx::AssertSqlSafe(sql))
            .fetch_one(&raw)
            .await
            .expect("read");
        row.0 > 0
    })
    .await;
    assert_eq!(shop.state(&sales[0]).await, "CLOSING");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sale_that_is_not_warmed_up_in_time_raises_an_alarm_and_nothing_else() {
    let shop = Shop::with("sqlite", &[("ALARM_BEFORE_OPEN_S", "30")]).await;
    let sale = |opens_at: String| {
        let skus = json!([{"sku": "phone", "stock": 3}]);
        json!({"strategy": "db-conditional-update", "skus": skus, "opens_at": opens_at})
    };
    let in_time = shop.api(0).create(sale(after(3_600_000))).await;
    assert_eq!(shop.api(0).get("/readyz").await.body["alarms"], json!([]));
    let late = shop.api(0).create(sale(after(20_000))).await;
    let ready = shop.api(1).get("/readyz").await;
    assert_eq!(
        (ready.status, &ready.body["status"]),
        (200, &json!("ready"))
    );
    let alarms = ready.body["alarms"].as_array().expect("a list").clone();
    assert_eq!(alarms.len(), 1, "{alarms:?}");
    assert_eq!(alarms[0]["activity_id"], late.as_str());
    assert_eq!(alarms[0]["state"], "DRAFT");
    let gauge = async |n: &str| {
        let metrics = shop.api(0).get("/metrics").await;
        let text = metrics.body.as_str().expect("text").to_string();
        text.contains(&format!("flashlock_activities_late {n}\n"))
    };
    until("the metric says one", async || gauge("1").await).await;
    until("the log says so", async || {
        let log = shop.services[0].log();
        log.lines()
            .any(|line| line.contains("not warmed up") && line.contains(&late))
    })
    .await;
    assert!(!shop.services[0].log().contains(&in_time));
    shop.steps(&late, &[("warm-up", "READY")]).await;
    assert_eq!(shop.api(0).get("/readyz").await.body["alarms"], json!([]));
    until("the metric says none", async || gauge("0").await).await;
}
