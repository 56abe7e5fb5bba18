//! The end of an order: paid, cancelled, or closed because nobody paid.

use serde_json::{Value, json};

use super::{phones, service, service_on, until};
use crate::world::{Answer, Api, DATABASES};

async fn pay(api: &Api, order: &str, txn: &str) -> Answer {
    let body = json!({"provider": "acme", "provider_txn": txn});
    api.post(&format!("/v1/orders/{order}/payments"), body)
        .await
}

async fn cancel(api: &Api, order: &str) -> Answer {
    api.post(&format!("/v1/orders/{order}/cancel"), Value::Null)
        .await
}

async fn buy(api: &Api, activity: &str, user: &str) -> String {
    let answer = api.buy(activity, user, "k-1", &[("phone", 1)]).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    answer.order_id()
}

#[track_caller]
fn assert_paid(answer: &Answer, outcome: &str, status: &str) {
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.body["outcome"], outcome, "{answer:?}");
    assert_eq!(answer.body["order"]["status"], status, "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payment_is_applied_once_on_every_database() {
    for database in DATABASES {
        let service = service_on(database, &[]).await;
        let api = &service.api;
        let activity = api.open(phones(3, json!({}))).await;
        let order = buy(api, &activity, "alice").await;
        for _ in 0..3 {
            assert_paid(&pay(api, &order, "交易-1 💳").await, "APPLIED", "PAID");
        }
        assert_eq!(
            api.stock(&activity, "phone").await,
            (3, 2, 0, 1),
            "{database}"
        );
        // A second transaction for the same order is money to give back.
        for _ in 0..2 {
            assert_paid(&pay(api, &order, "t-2").await, "REFUND_DUE", "PAID");
        }
        // Transactions that differ in case are two.
        let other = buy(api, &activity, "bob").await;
        assert_paid(&pay(api, &other, "T-2").await, "APPLIED", "PAID");
        let third = buy(api, &activity, "carol").await;
        let elsewhere = pay(api, &third, "T-2").await;
        elsewhere.assert_problem(
            409,
            "payment-used-elsewhere",
            "T-2 of acme paid another order",
        );
        assert_eq!(
            api.stock(&activity, "phone").await,
            (3, 0, 1, 2),
            "{database}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn payments_at_once_apply_one() {
    for database in DATABASES {
        let service = service_on(database, &[]).await;
        let api = &service.api;
        let activity = api.open(phones(1, json!({}))).await;
        let order = buy(api, &activity, "alice").await;
        let txns = ["same", "same", "same", "other", "third"];
        let answers = futures::future::join_all(txns.map(|txn| pay(api, &order, txn))).await;
        let mut outcomes = std::collections::BTreeMap::new();
        for (txn, answer) in txns.iter().zip(answers) {
            assert_eq!(answer.status, 200, "{database}: {answer:?}");
            let outcome = answer.body["outcome"].as_str().expect("text").to_string();
            let first = outcomes.entry(*txn).or_insert_with(|| outcome.clone());
            assert_eq!(*first, outcome, "{database}: {txn} came out in two ways");
        }
        let applied = outcomes.values().filter(|o| *o == "APPLIED").count();
        assert_eq!(applied, 1, "{database}: {outcomes:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_order_gives_its_units_back_once_on_every_database() {
    for database in DATABASES {
        let service = service_on(database, &[]).await;
        let api = &service.api;
        let activity = api.open(phones(1, json!({}))).await;
        let order = buy(api, &activity, "alice").await;
        let late = api.buy(&activity, "bob", "k-1", &[("phone", 1)]).await;
        late.assert_problem(409, "sold-out", "0 of phone");
        for _ in 0..3 {
            let cancelled = cancel(api, &order).await;
            assert_eq!(cancelled.status, 200, "{database}: {cancelled:?}");
            assert_eq!(cancelled.body["status"], "CLOSED");
            assert_eq!(cancelled.body["close_reason"], "user");
            assert_eq!(
                api.stock(&activity, "phone").await,
                (1, 1, 0, 0),
                "{database}"
            );
        }
        // The same key answers the order as it stands; another one buys anew.
        let again = api.buy(&activity, "alice", "k-1", &[("phone", 1)]).await;
        assert_eq!(
            (again.status, &again.body["status"]),
            (200, &json!("CLOSED"))
        );
        let bob = api.buy(&activity, "bob", "k-1", &[("phone", 1)]).await;
        assert_eq!(bob.status, 201, "{database}: {bob:?}");
        assert_paid(&pay(api, &order, "late").await, "REFUND_DUE", "CLOSED");
        assert_eq!(
            api.stock(&activity, "phone").await,
            (1, 0, 1, 0),
            "{database}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cancellations_at_once_give_back_once() {
    for database in DATABASES {
        let service = service_on(database, &[]).await;
        let api = &service.api;
        let activity = api.open(phones(5, json!({}))).await;
        let order = buy(api, &activity, "alice").await;
        buy(api, &activity, "bob").await;
        let answers = futures::future::join_all((0..8).map(|_| cancel(api, &order))).await;
        for answer in answers {
            assert_eq!(answer.status, 200, "{database}: {answer:?}");
            assert_eq!(answer.body["status"], "CLOSED");
        }
        assert_eq!(
            api.stock(&activity, "phone").await,
            (5, 4, 1, 0),
            "{database}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paid_order_cannot_be_cancelled() {
    let service = service(&[]).await;
    let api = &service.api;
    let activity = api.open(phones(1, json!({}))).await;
    let order = buy(api, &activity, "alice").await;
    pay(api, &order, "t-1").await;
    let refused = cancel(api, &order).await;
    refused.assert_problem(409, "not-allowed-in-state", "the order is PAID");
    assert_eq!(refused.body["state"], "PAID");
    assert_eq!(api.stock(&activity, "phone").await, (1, 0, 0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_nobody_pays_is_closed_and_its_unit_sold_again() {
    for database in DATABASES {
        let service = service_on(database, &[]).await;
        let api = &service.api;
        let activity = api.open(phones(2, json!({"pay_window_s": 1}))).await;
        let paid = buy(api, &activity, "paul").await;
        assert_paid(&pay(api, &paid, "t-1").await, "APPLIED", "PAID");
        let order = buy(api, &activity, "alice").await;
        let path = format!("/v1/orders/{order}");
        until("the order is closed", async || {
            api.get(&path).await.body["status"] == "CLOSED"
        })
        .await;
        let read = api.get(&path).await;
        assert_eq!(read.body["close_reason"], "timeout", "{database}: {read:?}");
        assert_eq!(
            api.stock(&activity, "phone").await,
            (2, 1, 0, 1),
            "{database}"
        );
        assert_paid(&pay(api, &order, "late").await, "REFUND_DUE", "CLOSED");
        buy(api, &activity, "bob").await;
    }
}
