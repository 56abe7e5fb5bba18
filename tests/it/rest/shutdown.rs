//! Nothing is cut in the middle: not by a stop, and not by a buyer who leaves.

use std::collections::BTreeSet;
use std::time::Duration;

use flashlock::lab::process::Signal;
use flashlock::sale::{ActivityId, OrderId};
use flashlock::store::{FinalState, Store, StoreOptions};
use serde_json::json;

use super::{env, phones, until};
use crate::held::Held;
use crate::wire::Wire;
use crate::world::{Service, world};

/// Buyers in flight when the service is told to stop.
const BUYERS: usize = 50;
/// A stop with nothing left to do.
const PROMPTLY: Duration = Duration::from_secs(5);

fn body(user: &str) -> String {
    json!({"user_id": user, "lines": [{"sku": "phone", "quantity": 1}]}).to_string()
}

/// A purchase whose handler runs and waits for its body.
async fn begin(service: &Service, activity: &str, user: &str) -> Wire {
    let path = format!("/v1/activities/{activity}/orders");
    let headers = ["Idempotency-Key: k-1"];
    Wire::begin(&service.api.url, &path, &headers, body(user).len()).await
}

async fn final_state(url: &str, activity: &str) -> FinalState {
    let options = StoreOptions {
        url: url.to_string(),
        connections_max: 1,
    };
    let store = Store::open(&options).await.expect("it opens");
    let id: ActivityId = activity.parse().expect("an id");
    store.final_state(&id).await.expect("it reads")
}

/// Asserts that the database holds exactly these orders, each of them whole.
fn assert_holds(state: &FinalState, acknowledged: &BTreeSet<String>, activity: &str) {
    let name = |rid| {
        let activity = activity.parse().expect("an id");
        OrderId { activity, rid }.to_string()
    };
    let orders: BTreeSet<String> = state.orders.iter().map(|o| name(o.rid)).collect();
    assert_eq!(orders, *acknowledged);
    let n = acknowledged.len();
    assert!(
        state
            .orders
            .iter()
            .all(|o| o.lines.len() == 1 && o.lines[0].quantity == 1)
    );
    assert_eq!(state.ledger.len(), n);
    assert!(state.ledger.iter().all(|row| row.taken == 1));
    assert_eq!(state.outbox.len(), n);
    let sku = &state.skus[0];
    assert_eq!(sku.total - sku.available, i64::try_from(n).expect("few"));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_purchase_in_flight_is_answered_before_a_stop() {
    let url = world().database("postgres").await;
    let service = Service::start(&env(&[("DATABASE_URL", &url)])).await;
    let activity = service.api.open(phones(1000, json!({}))).await;
    let mut held = Held::take(&url, &activity).await;
    let mut buyers = Vec::new();
    for n in 0..BUYERS {
        let user = format!("u{n}");
        let wire = begin(&service, &activity, &user).await;
        buyers.push((user, wire));
    }
    // Half of them are in the middle of a transaction, the others have not sent their body.
    let (early, late) = buyers.split_at_mut(BUYERS / 2);
    for (user, wire) in early {
        wire.go_on(body(user).as_bytes()).await;
    }
    held.until_waiters(10).await;
    service.signal(Signal::TERM);
    until("it stops", async || service.log().contains("stopping")).await;
    for (user, wire) in late {
        wire.go_on(body(user).as_bytes()).await;
    }
    held.let_go().await;

    let mut acknowledged = BTreeSet::new();
    for (user, wire) in &mut buyers {
        let answer = wire.answer().await;
        let answer = answer.unwrap_or_else(|error| panic!("{user} got no answer: {error}"));
        if answer.status == 201 {
            acknowledged.insert(answer.order_id());
        } else {
            answer.assert_problem(503, "busy", "nothing was");
        }
    }
    assert!(
        acknowledged.len() >= BUYERS / 2,
        "{} booked",
        acknowledged.len()
    );
    drop(buyers);
    assert!(service.stop(PROMPTLY).await, "{}", service.log());
    assert_holds(
        &final_state(&url, &activity).await,
        &acknowledged,
        &activity,
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_buyer_who_leaves_in_mid_purchase_loses_nothing() {
    let url = world().database("postgres").await;
    let service = Service::start(&env(&[("DATABASE_URL", &url)])).await;
    for (strategy, batch_max) in [
        ("db-conditional-update", 1),
        ("db-conditional-update", 8),
        ("db-unique-insert", 1),
    ] {
        let sale = phones(3, json!({"strategy": strategy, "batch_max": batch_max}));
        let activity = service.api.open(sale).await;
        let mut held = Held::take(&url, &activity).await;
        let mut wire = begin(&service, &activity, "alice").await;
        wire.go_on(body("alice").as_bytes()).await;
        held.until_waiters(1).await;
        drop(wire);
        held.let_go().await;
        until("the order is booked though nobody waits", async || {
            service.api.stock(&activity, "phone").await == (3, 2, 1, 0)
        })
        .await;
        let again = service
            .api
            .buy(&activity, "alice", "k-1", &[("phone", 1)])
            .await;
        assert_eq!(again.status, 200, "{strategy}: {again:?}");
        assert_eq!(again.headers["idempotent-replay"], "true");
        let state = final_state(&url, &activity).await;
        assert_holds(&state, &BTreeSet::from([again.order_id()]), &activity);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purchase_whose_buyer_has_left_ends_before_a_stop() {
    let url = world().database("postgres").await;
    let service = Service::start(&env(&[("DATABASE_URL", &url)])).await;
    let activity = service.api.open(phones(3, json!({}))).await;
    let mut held = Held::take(&url, &activity).await;
    let mut wire = begin(&service, &activity, "alice").await;
    wire.go_on(body("alice").as_bytes()).await;
    held.until_waiters(1).await;
    drop(wire);
    service.signal(Signal::TERM);
    until("it stops", async || service.log().contains("stopping")).await;
    held.let_go().await;
    assert!(service.stop(PROMPTLY).await, "{}", service.log());
    let state = final_state(&url, &activity).await;
    assert_eq!((state.orders.len(), state.skus[0].available), (1, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_waits_for_no_idle_combiner_and_no_idle_connection() {
    for batch_max in [1, 8] {
        let service = super::service(&[]).await;
        let sale = phones(3, json!({"batch_max": batch_max}));
        let activity = service.api.open(sale).await;
        let bought = service
            .api
            .buy(&activity, "alice", "k-1", &[("phone", 1)])
            .await;
        assert_eq!(bought.status, 201, "{bought:?}");
        assert!(
            service.stop(PROMPTLY).await,
            "batch_max {batch_max}: {}",
            service.log()
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_gives_up_on_a_client_that_sends_nothing() {
    let service = super::service(&[("SHUTDOWN_S", "1")]).await;
    let activity = service.api.open(phones(3, json!({}))).await;
    let _silent = begin(&service, &activity, "alice").await;
    assert!(service.stop(PROMPTLY).await, "{}", service.log());
    let log = service.log();
    assert!(
        log.contains("connections were still open after 1 s"),
        "{log}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_stops_it_as_well() {
    let service = super::service(&[]).await;
    service.signal(Signal::INT);
    assert!(service.stop(PROMPTLY).await, "{}", service.log());
}
