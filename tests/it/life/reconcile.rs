//! Reconciliation: a lost gate is rebuilt, wrong counters never open again, and what is on its way is
//! no finding.

use std::time::Duration;

use flashlock::gate::rebuild::{Rebuilt, rebuild};
use flashlock::gate::reconcile::{fence, reconcile};
use flashlock::gate::sweep::Patience;
use flashlock::gate::{GateError, ReserveOutcome};
use flashlock::keys::GateKeys;
use flashlock::ledger::reconciled::{Mode, Verdict};
use flashlock::order::{Fingerprint, NewOrder};
use flashlock::sale::{Activity, ActivityId};
use flashlock::script::gate::GateState;
use flashlock::strategy::redis_lua::{Book, BookOutcome};
use serde_json::{Value, json};

use super::Shop;
use crate::embedded::purchase;
use crate::reconcile::{NONE, Nobody};

impl Shop {
    async fn redis(&self, command: &str, args: &[&str]) {
        let client = redis::Client::open(self.redis_url.as_str()).expect("a URL");
        let mut con = client
            .get_multiplexed_async_connection()
            .await
            .expect("connected");
        let mut command = redis::cmd(command);
        command.arg(args);
        command.query_async::<()>(&mut con).await.expect("done");
    }

    async fn now(&self, id: &ActivityId) -> Activity {
        let found = self.store.activity(id).await;
        found.expect("an answer").expect("an activity")
    }

    async fn told(&self, sale: &str, body: Value) -> Value {
        let path = format!("/v1/activities/{sale}/reconcile");
        let told = self.api(0).post(&path, body).await;
        assert_eq!(told.status, 200, "{told:?}");
        told.body
    }
}

fn new_order(id: &ActivityId, user: &str) -> NewOrder {
    let purchase = purchase(id, user);
    NewOrder {
        rid: purchase.rid(),
        user: purchase.user.clone(),
        fingerprint: Fingerprint::of(&purchase),
        lines: purchase.lines().to_vec(),
        admitted_at_ms: 1,
    }
}

/// Sums that are right by chance, sums that are wrong, and counters that are none.
#[tokio::test(flavor = "multi_thread")]
async fn wrong_counters_are_counted_anew_before_the_gate_opens_again() {
    let shop = Shop::with("sqlite", &[("ROLES", "api")]).await;
    let gate = shop.gate();
    let damages: [&[(&str, &str, &str)]; 5] = [
        &[("HINCRBY", "stock", "1"), ("HINCRBY", "committed", "-1")],
        &[("HINCRBY", "stock", "3")],
        &[("HINCRBY", "pending", "1"), ("HINCRBY", "stock", "-1")],
        &[("HSET", "committed", "many")],
        &[("HSET", "stock", "")],
    ];
    for damage in damages {
        let sale = shop.open("redis-lua", 6).await;
        let id: ActivityId = sale.parse().expect("an id");
        for user in ["alice", "bob"] {
            shop.buy(0, &sale, user).await;
        }
        // One that is still held keeps its hold.
        let held = new_order(&id, "held");
        let outcomes = gate.reserve(&shop.now(&id).await, &[held]).await;
        assert!(matches!(outcomes[0], Ok(ReserveOutcome::Held { .. })));
        let keys = GateKeys::of(&id);
        for (command, counter, value) in damage {
            let key = match *counter {
                "stock" => &keys.stock,
                "pending" => &keys.pending,
                _committed => &keys.committed,
            };
            shop.redis(command, &[key, "phone", value]).await;
        }
        let told = shop.told(&sale, Value::Null).await;
        assert_eq!(told["verdict"], "CORRUPT", "{damage:?}: {told}");
        let refused = shop.api(0).buy(&sale, "carol", "k", &[("phone", 1)]).await;
        let told = (refused.status, refused.problem());
        assert_ne!(refused.status, 201, "{damage:?}: {told:?}");
        let rebuilt = rebuild(&gate, &shop.store, &id).await;
        assert!(
            matches!(rebuilt, Ok(Rebuilt::Open(_))),
            "{damage:?}: {rebuilt:?}"
        );
        let audit = shop.audit(&sale).await.expect("warmed");
        let l = &audit.ledgers[0];
        let counts = (l.available, l.held, l.sold, audit.holds);
        assert_eq!(counts, (3, 1, 2, 1), "{damage:?}");
        let carol = shop.buy(0, &sale, "carol").await;
        assert!([200, 201].contains(&carol.status), "{damage:?}: {carol:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purchase_has_a_corrupt_gate_rebuilt_with_the_right_counters() {
    let shop = Shop::with("postgres", &[("ROLES", "api")]).await;
    let sale = shop.open("redis-lua", 3).await;
    shop.buy(0, &sale, "alice").await;
    let keys = GateKeys::of(&sale.parse().expect("an id"));
    shop.redis("HINCRBY", &[&keys.stock, "phone", "1"]).await;
    shop.redis("HINCRBY", &[&keys.committed, "phone", "-1"])
        .await;
    let told = shop.told(&sale, Value::Null).await;
    assert_eq!(told["verdict"], "CORRUPT", "{told}");
    let state = shop.audit(&sale).await.expect("warmed").state;
    assert_eq!(state, GateState::Fenced);
    super::until("a purchase is let in", async || {
        let bob = shop.api(1).buy(&sale, "bob", "k", &[("phone", 1)]).await;
        if bob.status == 503 {
            assert_eq!(bob.body["retry_with_same_key"], true, "{bob:?}");
        }
        [200, 201].contains(&bob.status)
    })
    .await;
    assert_eq!(shop.buy(0, &sale, "carol").await.status, 201);
    let sold_out = shop.buy(1, &sale, "dave").await;
    sold_out.assert_problem(409, "sold-out", "0 of phone are left");
    shop.assert_agrees(&sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gate_whose_reservations_cannot_be_read_stays_shut() {
    let shop = Shop::with("sqlite", &[("ROLES", "api")]).await;
    let sale = shop.open("redis-lua", 3).await;
    let id: ActivityId = sale.parse().expect("an id");
    let rid = new_order(&id, "nobody").rid.to_string();
    shop.redis("HSET", &[&GateKeys::of(&id).rsv, &rid, "what?"])
        .await;
    fence(&shop.gate(), &id).await.expect("fenced");
    let rebuilt = rebuild(&shop.gate(), &shop.store, &id).await;
    assert!(
        matches!(rebuilt, Err(GateError::Corrupt { .. })),
        "{rebuilt:?}"
    );
    let state = shop.audit(&sale).await.expect("warmed").state;
    assert_ne!(state, GateState::Open);
    let refused = shop.api(0).buy(&sale, "alice", "k", &[("phone", 1)]).await;
    refused.assert_problem(503, "gate-recovering", "rebuilt");
    // The operator's way out: by the database for a moment, which leaves no key behind.
    shop.steps(&sale, &[("pause", "PAUSED")]).await;
    for strategy in ["db-conditional-update", "redis-lua"] {
        let set = json!({"strategy": strategy});
        assert_eq!(shop.set_strategy(0, &sale, set).await.status, 200);
    }
    let again = [("warm-up", "READY"), ("open", "OPEN")];
    shop.steps(&sale, &again).await;
    assert_eq!(shop.buy(0, &sale, "alice").await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_gate_is_rebuilt_and_told() {
    let shop = Shop::with("postgres", &[("ROLES", "api")]).await;
    let sale = shop.open("redis-lua", 4).await;
    shop.buy(0, &sale, "alice").await;
    let id = sale.parse().expect("an id");
    shop.gate().expire(&id, Duration::ZERO).await.expect("gone");
    let shown = shop.told(&sale, json!({"dry_run": true})).await;
    let finding = &shown["findings"][0];
    assert_eq!(finding["finding"], "GATE_LOST", "{shown}");
    assert_eq!(finding["repaired"], false, "{shown}");
    let reason = finding["reason"].as_str().expect("a reason");
    assert!(reason.contains("to be rebuilt"), "{shown}");
    assert_eq!(shop.audit(&sale).await, None);
    let told = shop.told(&sale, Value::Null).await;
    let finding = &told["findings"][0];
    assert_eq!(finding["finding"], "GATE_LOST", "{told}");
    assert_eq!(finding["repaired"], true, "{told}");
    let audit = shop.audit(&sale).await.expect("rebuilt");
    let l = &audit.ledgers[0];
    let counts = (audit.state, l.available, l.held, l.sold);
    assert_eq!(counts, (GateState::Open, 3, 0, 1));
    let bob = shop.api(1).buy(&sale, "bob", "k", &[("phone", 1)]).await;
    assert!(bob.status != 201 || bob.body["left"] == 2, "{bob:?}");
    assert_eq!(shop.told(&sale, Value::Null).await["findings"], json!([]));

    // What does not sell needs no gate.
    shop.steps(&sale, &[("pause", "PAUSED")]).await;
    shop.gate().expire(&id, Duration::ZERO).await.expect("gone");
    let told = shop.told(&sale, Value::Null).await;
    assert_eq!(
        (&told["verdict"], &told["findings"]),
        (&json!("OK"), &json!([]))
    );
    assert_eq!(shop.audit(&sale).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_on_its_way_to_the_gate_is_no_finding() {
    let shop = Shop::with("sqlite", &[("ROLES", "api")]).await;
    let sale = shop.open("redis-lua", 4).await;
    let id: ActivityId = sale.parse().expect("an id");
    let gate = shop.gate();
    // Booked by a purchase whose hold the gate has lost: it is held again right after.
    let order = new_order(&id, "alice");
    let booked = Book::book(&shop.store, &shop.now(&id).await, &[order]).await;
    let Ok(BookOutcome::Booked(booked)) = &booked[0] else {
        panic!("{booked:?}");
    };
    let patience = Patience {
        age: Duration::from_secs(3),
        ..NONE
    };
    let told = reconcile(&gate, &shop.store, &Nobody, &id, patience, Mode::Repair);
    let reheld = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let reheld = gate.rehold(&id, std::slice::from_ref(booked)).await;
        reheld.expect("reheld");
    };
    let (told, ()) = tokio::join!(told, reheld);
    let told = told.expect("told");
    assert_eq!(told.findings, [], "{told:?}");
    assert!(told.verdict <= Verdict::Inconclusive, "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_over_rest_gives_a_reason_for_each_reservation() {
    let shop = Shop::with("postgres", &[("ROLES", "api")]).await;
    let sale = shop.open("redis-lua", 9).await;
    let id: ActivityId = sale.parse().expect("an id");
    let gate = shop.gate();
    let [orphan, unknown] = ["orphan", "unknown"].map(|user| new_order(&id, user));
    let now = shop.now(&id).await;
    let held = gate.reserve(&now, std::slice::from_ref(&orphan)).await;
    assert!(held[0].is_ok(), "{held:?}");
    let orphan = orphan.rid.to_string();
    shop.redis("ZADD", &[&GateKeys::of(&id).pend, "1", &orphan])
        .await;
    let unbooked = unknown.rid.to_string();
    Book::book(&shop.store, &shop.now(&id).await, &[unknown]).await;
    for (body, repaired) in [(json!({"dry_run": true}), false), (Value::Null, true)] {
        let told = shop.told(&sale, body).await;
        let findings = told["findings"].as_array().expect("findings");
        assert_eq!(findings.len(), 2, "{told}");
        for (rid, name, says) in [
            (&orphan, "HOLD_WITHOUT_ORDER", "give"),
            (&unbooked, "ORDER_UNKNOWN", "held again"),
        ] {
            let of = findings.iter().find(|f| f["rid"] == rid.as_str());
            let of = of.unwrap_or_else(|| panic!("no {rid} in {told}"));
            assert_eq!(
                (&of["finding"], &of["repaired"]),
                (&json!(name), &json!(repaired))
            );
            let reason = of["reason"].as_str().expect("a reason");
            assert!(reason.contains(says), "{told}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_says_that_an_activity_is_unknown() {
    let shop = Shop::with("sqlite", &[("ROLES", "api")]).await;
    let nobody = "0190f5c8a3b17c3e8d1f2a4b5c6d7e8f";
    let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_flashlock"))
        .args(["reconcile", "--activity", nobody])
        .args(["--database-url", &shop.database_url])
        .output()
        .await
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains(&format!("there is no activity {nobody}")),
        "{said}"
    );
    assert!(output.stdout.is_empty());
}
