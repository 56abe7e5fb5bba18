//! Purchases at the wrong time, or of nothing that is there.

use serde_json::{Value, json};

use super::{api, sale};

const FUTURE: &str = "2999-11-11T12:00:00Z";

#[tokio::test(flavor = "multi_thread")]
async fn an_activity_that_is_not_open_yet_says_when_it_opens() {
    let api = api().await;
    let activity = api.create(sale(json!({"opens_at": FUTURE}))).await;
    // DRAFT, READY, and OPEN ahead of its time.
    for step in [None, Some("warm-up"), Some("open")] {
        if let Some(step) = step {
            let path = format!("/v1/activities/{activity}/{step}");
            let answer = api.post(&path, Value::Null).await;
            assert_eq!(answer.status, 200, "{answer:?}");
        }
        let answer = api.buy(&activity, "alice", "k-1", &[("phone", 1)]).await;
        answer.assert_problem(409, "activity-not-open", FUTURE);
        assert_eq!(answer.body["opens_at"], FUTURE, "{step:?}");
    }
    assert_eq!(api.stock(&activity, "phone").await, (5, 5, 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_activity_opens_only_after_its_warm_up() {
    let api = api().await;
    let activity = api.create(sale(json!({}))).await;
    let path = |step: &str| format!("/v1/activities/{activity}/{step}");
    let early = api.post(&path("open"), Value::Null).await;
    early.assert_problem(409, "not-allowed-in-state", "the activity is DRAFT");
    assert_eq!(early.body["state"], "DRAFT");
    for step in ["warm-up", "warm-up", "open", "open"] {
        let answer = api.post(&path(step), Value::Null).await;
        assert_eq!(answer.status, 200, "{step}: {answer:?}");
    }
    let late = api.post(&path("warm-up"), Value::Null).await;
    late.assert_problem(409, "not-allowed-in-state", "the activity is OPEN");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_activity_sells_nothing_and_answers_its_buyers() {
    let api = api().await;
    let activity = api.open(sale(json!({}))).await;
    let booked = api.buy(&activity, "alice", "k-1", &[("phone", 1)]).await;
    for _ in 0..2 {
        let path = format!("/v1/activities/{activity}/close");
        let closed = api.post(&path, Value::Null).await;
        assert_eq!(
            (closed.status, &closed.body["state"]),
            (200, &json!("CLOSING"))
        );
    }
    let late = api.buy(&activity, "bob", "k-1", &[("phone", 1)]).await;
    late.assert_problem(410, "activity-ended", "no more is sold");
    assert!(late.body["closes_at"].is_string(), "{late:?}");
    let again = api.buy(&activity, "alice", "k-1", &[("phone", 1)]).await;
    assert_eq!((again.status, again.order_id()), (200, booked.order_id()));
    let other_key = api.buy(&activity, "alice", "k-2", &[("phone", 1)]).await;
    other_key.assert_problem(409, "already-purchased", &booked.order_id());
    let path = format!("/v1/activities/{activity}/open");
    let reopened = api.post(&path, Value::Null).await;
    reopened.assert_problem(409, "not-allowed-in-state", "CLOSING");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_activity_past_its_time_sells_nothing() {
    let times = json!({"opens_at": "2001-01-01T00:00:00Z", "closes_at": "2001-01-02T00:00:00Z"});
    let activity = api().await.open(sale(times)).await;
    let late = api()
        .await
        .buy(&activity, "bob", "k-1", &[("phone", 1)])
        .await;
    late.assert_problem(410, "activity-ended", "2001-01-02T00:00:00Z");
    assert_eq!(late.body["closes_at"], "2001-01-02T00:00:00Z");
    assert_eq!(api().await.stock(&activity, "phone").await, (5, 5, 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_exist_is_not_found() {
    let api = api().await;
    let nobody = "0190f5c8a3b17c3e8d1f2a4b5c6d7e8f";
    let bought = api.buy(nobody, "alice", "k-1", &[("phone", 1)]).await;
    bought.assert_problem(404, "not-found", &format!("there is no activity {nobody}"));
    let read = api.get(&format!("/v1/activities/{nobody}")).await;
    read.assert_problem(404, "not-found", nobody);
    for step in ["warm-up", "open", "close"] {
        let path = format!("/v1/activities/{nobody}/{step}");
        api.post(&path, Value::Null)
            .await
            .assert_problem(404, "not-found", nobody);
    }
    let order = format!("{nobody}.0190f5c8-a3b1-7c3e-8d1f-2a4b5c6d7e8f");
    let payment = json!({"provider": "acme", "provider_txn": "t"});
    let path = format!("/v1/orders/{order}");
    api.get(&path)
        .await
        .assert_problem(404, "not-found", &order);
    let paid = api.post(&format!("{path}/payments"), payment).await;
    paid.assert_problem(404, "not-found", &order);
    let cancelled = api.post(&format!("{path}/cancel"), Value::Null).await;
    cancelled.assert_problem(404, "not-found", &order);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_booked_purchase_is_answered_after_the_sell_out() {
    let api = api().await;
    let activity = api
        .open(sale(json!({"skus": [{"sku": "phone", "stock": 1}]})))
        .await;
    let booked = api.buy(&activity, "alice", "k-1", &[("phone", 1)]).await;
    for _ in 0..3 {
        let late = api.buy(&activity, "bob", "k-1", &[("phone", 1)]).await;
        late.assert_problem(409, "sold-out", "0 of phone are left");
        let again = api.buy(&activity, "alice", "k-1", &[("phone", 1)]).await;
        assert_eq!((again.status, again.order_id()), (200, booked.order_id()));
        assert_eq!(again.headers["idempotent-replay"], "true");
        assert_eq!(again.body["status"], "PENDING_PAYMENT");
    }
}
