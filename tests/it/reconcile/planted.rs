//! Differences planted by hand: a dry run shows each, a repair mends each, wrong counters are fenced.

use std::collections::BTreeSet;
use std::process::Output;

use flashlock::deduct::Ending;
use flashlock::keys::GateKeys;
use flashlock::ledger::reconciled::{Difference, Mode, Verdict};
use flashlock::order::NewOrder;
use flashlock::sale::Rid;
use flashlock::script::gate::GateState;
use serde_json::{Value, json};

use super::Sale;
use crate::world::{Service, world};

impl Sale {
    async fn redis(&self, command: &str, args: &[&str]) {
        let client = redis::Client::open(self.redis_url.as_str()).expect("a URL");
        let mut con = client
            .get_multiplexed_async_connection()
            .await
            .expect("connected");
        redis::cmd(command)
            .arg(args)
            .query_async::<()>(&mut con)
            .await
            .expect("done");
    }

    /// As if it had waited for days.
    pub(super) async fn grow_old(&self, order: &NewOrder) {
        let keys = GateKeys::of(&self.id);
        self.redis("ZADD", &[&keys.pend, "1", &order.rid.to_string()])
            .await;
    }

    /// One of each kind that can be mended.
    async fn plant(&self) -> BTreeSet<(Rid, &'static str)> {
        let mut planted = BTreeSet::new();
        let mut plant = |order: &NewOrder, d: Difference| planted.insert((order.rid, d.as_str()));

        let orphan = self.held("orphan").await;
        self.grow_old(&orphan).await;
        plant(&orphan, Difference::HoldWithoutOrder);

        // One that the index of holds has lost, too.
        let hidden = self.held("hidden").await;
        let keys = GateKeys::of(&self.id);
        self.redis("ZREM", &[&keys.pend, &hidden.rid.to_string()])
            .await;
        plant(&hidden, Difference::HoldWithoutOrder);

        let untold = self.held("untold").await;
        self.book(&untold).await;
        self.grow_old(&untold).await;
        plant(&untold, Difference::HoldOfOrder);

        let unbooked = self.held("unbooked").await;
        let committed = self.gate.commit(&self.id, &[unbooked.rid]).await;
        committed.expect("committed");
        plant(&unbooked, Difference::SoldWithoutOrder);

        let unknown = self.new_order("unknown");
        self.book(&unknown).await;
        plant(&unknown, Difference::OrderUnknown);

        let given_back = self.held("given-back").await;
        self.book(&given_back).await;
        let rids = [given_back.rid];
        let released = self.gate.release(&self.id, &rids, "a-test").await;
        released.expect("released");
        plant(&given_back, Difference::OrderGivenBack);
        planted
    }

    /// `flashlock reconcile` on these stores.
    async fn command(&self, more: &[&str]) -> (Output, Value) {
        let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_flashlock"))
            .args(["reconcile", "--activity", self.id.as_str()])
            .args(["--database-url", &self.database_url])
            .args(["--redis-url", &self.redis_url])
            .args(more)
            .output()
            .await
            .expect("it runs");
        let body = serde_json::from_slice(&output.stdout);
        let body = body.unwrap_or_else(|e| panic!("{e}: {output:?}"));
        (output, body)
    }

    async fn gate_state(&self) -> GateState {
        let audit = self.gate.audit(&self.id).await.expect("audited");
        audit.expect("warmed").state
    }
}

fn shown(body: &Value) -> BTreeSet<(Rid, &str)> {
    let findings = body["findings"].as_array().expect("findings");
    let of = |f: &'_ Value| -> Rid { f["rid"].as_str().expect("a rid").parse().expect("a rid") };
    findings
        .iter()
        .map(|f| (of(f), f["finding"].as_str().expect("a finding")))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_shows_every_difference_and_a_repair_mends_it() {
    let sale = Sale::open("postgres", 20).await;
    let whole = sale.buy("whole").await;
    assert!(matches!(whole, Ending::Booked { .. }), "{whole:?}");
    let planted = sale.plant().await;
    let before = sale.gate.audit(&sale.id).await.expect("audited");

    let (output, body) = sale.command(&["--dry-run"]).await;
    assert_eq!(output.status.code(), Some(1), "{body}");
    assert_eq!(body["verdict"], "OVERSOLD", "{body}");
    assert_eq!(shown(&body), planted, "{body}");
    let findings = body["findings"].as_array().expect("findings");
    assert!(findings.iter().all(|f| f["repaired"] == false), "{body}");
    assert_eq!(sale.gate.audit(&sale.id).await.expect("audited"), before);

    let (output, body) = sale.command(&[]).await;
    assert_eq!(output.status.code(), Some(0), "{body}");
    assert_eq!(shown(&body), planted, "{body}");
    let findings = body["findings"].as_array().expect("findings");
    assert!(findings.iter().all(|f| f["repaired"] == true), "{body}");

    let (output, body) = sale.command(&[]).await;
    assert_eq!(
        (output.status.code(), &body["verdict"]),
        (Some(0), &json!("OK")),
        "{body}"
    );
    // whole, untold, unknown and given-back have their units; the others' can be sold.
    assert_eq!(sale.gate_counts().await, (16, 0, 4));
    assert_eq!(sale.database_counts().await, (16, 4, 0));
    assert_eq!(sale.gate_state().await, GateState::Open);
    // Nobody is blocked without a live order, and whoever has one is known.
    for user in ["next", "another"] {
        let ending = sale.buy(user).await;
        assert!(matches!(ending, Ending::Booked { .. }), "{ending:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn counters_that_are_wrong_are_corrupt_and_nobody_is_let_in() {
    // The law of stock broken; and kept, but by counters that no reservation accounts for.
    for (stock, committed) in [("3", "0"), ("1", "-1")] {
        let sale = Sale::open("sqlite", 5).await;
        assert!(matches!(sale.buy("alice").await, Ending::Booked { .. }));
        let keys = GateKeys::of(&sale.id);
        sale.redis("HINCRBY", &[&keys.stock, "phone", stock]).await;
        sale.redis("HINCRBY", &[&keys.committed, "phone", committed])
            .await;
        let shown = sale.flow.reconcile(&sale.id, Mode::DryRun).await;
        assert_eq!(shown.expect("told").verdict, Verdict::Corrupt);
        assert_eq!(sale.gate_state().await, GateState::Open);
        let told = sale.flow.reconcile(&sale.id, Mode::Repair).await;
        let told = told.expect("told");
        assert_eq!(told.verdict, Verdict::Corrupt, "{told:?}");
        assert_eq!(told.findings[0].difference, Difference::CountersWrong);
        assert!(!told.is_mended());
        assert_eq!(sale.gate_state().await, GateState::Fenced);
        assert_eq!(sale.buy("bob").await, Ending::Recovering);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_strategy_is_compared_and_never_changed() {
    let url = world().database("sqlite").await;
    let service = Service::start(&world().everything(&url)).await;
    let body = json!({"strategy": "db-conditional-update", "skus": [{"sku": "phone", "stock": 3}]});
    let id = service.api.open(body).await;
    service.api.buy(&id, "alice", "k", &[("phone", 1)]).await;
    let path = format!("/v1/activities/{id}/reconcile");
    for body in [Value::Null, json!({"dry_run": true})] {
        let told = service.api.post(&path, body.clone()).await;
        assert_eq!(
            (told.status, &told.body["verdict"]),
            (200, &json!("OK")),
            "{told:?}"
        );
        assert_eq!(told.body["dry_run"], body["dry_run"] == true);
    }
    let wrong = service.api.post(&path, json!({"dry": true})).await;
    wrong.assert_problem(400, "invalid-request", "dry_run");
    let none = service.api.get("/v1/compensations").await;
    assert_eq!(
        (none.status, &none.body["compensations"]),
        (200, &json!([]))
    );
}
