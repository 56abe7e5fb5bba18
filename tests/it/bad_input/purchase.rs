//! Purchases that cannot be.

use serde_json::{Value, json};

use super::{api, opened, post, sale, untouched};
use crate::world::Answer;

async fn buy(activity: &str, lines: Value) -> Answer {
    let body = json!({"user_id": "alice", "lines": lines}).to_string();
    let path = format!("/v1/activities/{activity}/orders");
    post(&path, &[("Idempotency-Key", "k-1")], body).await
}

async fn refused(lines: Value, says: &str) {
    let activity = opened().await;
    let answer = buy(&activity, lines).await;
    answer.assert_problem(400, "invalid-request", says);
    untouched(&activity).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quantity_below_one_is_refused() {
    for quantity in [0, -1, i64::MIN] {
        let says = format!("quantity of phone is {quantity}; it must be a whole number from 1");
        refused(json!([{"sku": "phone", "quantity": quantity}]), &says).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quantity_that_is_no_whole_number_is_refused() {
    for quantity in [
        json!(1.5),
        json!(1.0),
        json!("1"),
        json!(true),
        json!(null),
        json!([1]),
    ] {
        refused(
            json!([{"sku": "phone", "quantity": quantity}]),
            "expected i64",
        )
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn more_than_one_user_may_buy_is_refused() {
    let api = api().await;
    let activity = api.open(sale(json!({"units_per_user_max": 2}))).await;
    let says = "3 units are more than the 2 that one user may buy";
    for lines in [
        json!([{"sku": "phone", "quantity": 3}]),
        json!([{"sku": "phone", "quantity": 2}, {"sku": "phone", "quantity": 1}]),
        json!([{"sku": "phone", "quantity": 2}, {"sku": "case", "quantity": 1}]),
    ] {
        buy(&activity, lines)
            .await
            .assert_problem(400, "invalid-request", says);
    }
    untouched(&activity).await;
    let answer = buy(&activity, json!([{"sku": "phone", "quantity": 2}])).await;
    assert_eq!(answer.status, 201, "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_huge_quantity_is_refused_and_never_wraps_round() {
    let huge = json!({"sku": "phone", "quantity": i64::MAX});
    refused(json!([huge, huge]), "it must be a whole number").await;
    // The largest that one line may ask for, as often as lines may be.
    let many = vec![json!({"sku": "phone", "quantity": 1_000_000_000}); 20];
    refused(json!(many), "20000000000 units are more than the 10").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_sku_is_told_what_is_sold() {
    for sku in ["tablet", "Phone", "phone."] {
        let says = format!("does not sell {sku}; it sells case, phone");
        refused(json!([{"sku": sku, "quantity": 1}]), &says).await;
    }
    let mixed = json!([{"sku": "phone", "quantity": 1}, {"sku": "tablet", "quantity": 1}]);
    refused(mixed, "it sells case, phone").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_of_one_sku_are_summed() {
    let activity = opened().await;
    let lines = json!([{"sku": "phone", "quantity": 1}, {"sku": "case", "quantity": 1}, {"sku": "phone", "quantity": 2}]);
    let answer = buy(&activity, lines).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    let summed = json!([{"sku": "case", "quantity": 1}, {"sku": "phone", "quantity": 3}]);
    assert_eq!(answer.body["lines"], summed);
    assert_eq!(api().await.stock(&activity, "phone").await, (5, 2, 3, 0));
    // Written otherwise, it is the same purchase.
    let same = json!([{"sku": "phone", "quantity": 3}, {"sku": "case", "quantity": 1}]);
    let again = buy(&activity, same).await;
    assert_eq!((again.status, again.order_id()), (200, answer.order_id()));
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_of_one_sku_that_are_together_over_the_stock_sell_nothing() {
    let activity = opened().await;
    let lines = json!([{"sku": "case", "quantity": 1}, {"sku": "phone", "quantity": 3}, {"sku": "phone", "quantity": 3}]);
    let answer = buy(&activity, lines).await;
    answer.assert_problem(409, "sold-out", "5 of phone are left");
    untouched(&activity).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_or_too_many_lines_are_refused() {
    refused(json!([]), "lines must have 1 to 20 entries; it has 0").await;
    let many = vec![json!({"sku": "phone", "quantity": 1}); 21];
    refused(json!(many), "lines must have 1 to 20 entries; it has 21").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_or_empty_idempotency_key_is_required() {
    let activity = opened().await;
    let path = format!("/v1/activities/{activity}/orders");
    let body = json!({"user_id": "alice", "lines": [{"sku": "phone", "quantity": 1}]}).to_string();
    let missing = post(&path, &[], body.clone()).await;
    missing.assert_problem(400, "idempotency-key-required", "send an Idempotency-Key");
    for empty in ["", "  ", "\"\""] {
        let answer = post(&path, &[("Idempotency-Key", empty)], body.clone()).await;
        answer.assert_problem(400, "idempotency-key-required", "one key per intent to buy");
    }
    untouched(&activity).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idempotency_key_that_cannot_be_one_is_refused() {
    let activity = opened().await;
    let path = format!("/v1/activities/{activity}/orders");
    let body = json!({"user_id": "alice", "lines": [{"sku": "phone", "quantity": 1}]}).to_string();
    let long = "k".repeat(129);
    for (key, says) in [
        (long.as_str(), "129 bytes long; at most 128"),
        ("a b", "printable ASCII without spaces"),
        ("schlüssel", "printable ASCII without spaces"),
    ] {
        let answer = post(&path, &[("Idempotency-Key", key)], body.clone()).await;
        answer.assert_problem(400, "invalid-request", says);
    }
    let two = [("Idempotency-Key", "a"), ("Idempotency-Key", "b")];
    let answer = post(&path, &two, body.clone()).await;
    answer.assert_problem(400, "invalid-request", "one Idempotency-Key, not several");
    untouched(&activity).await;

    let longest = "k".repeat(128);
    let answer = post(&path, &[("Idempotency-Key", &longest)], body.clone()).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    // The quoted string of the IETF draft is the same key.
    let quoted = format!("\"{longest}\"");
    let again = post(&path, &[("Idempotency-Key", &quoted)], body).await;
    assert_eq!((again.status, again.order_id()), (200, answer.order_id()));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_key_with_another_body_is_told_so() {
    let activity = api()
        .await
        .open(sale(json!({"units_per_user_max": 1})))
        .await;
    let first = buy(&activity, json!([{"sku": "phone", "quantity": 1}])).await;
    assert_eq!(first.status, 201, "{first:?}");
    // Also where the other body could not be bought with any key.
    for other in [
        json!([{"sku": "case", "quantity": 1}]),
        json!([{"sku": "phone", "quantity": 2}]),
        json!([{"sku": "phone", "quantity": 1}, {"sku": "case", "quantity": 1}]),
        json!([{"sku": "tablet", "quantity": 1}]),
    ] {
        let answer = buy(&activity, other).await;
        answer.assert_problem(422, "idempotency-key-reused", "use a new key");
        assert_eq!(answer.body["retry_with_same_key"], false);
    }
    assert_eq!(api().await.stock(&activity, "phone").await, (5, 4, 1, 0));
    // Another user's key of the same text is another key.
    let bob = api()
        .await
        .buy(&activity, "bob", "k-1", &[("case", 1)])
        .await;
    assert_eq!(bob.status, 201, "{bob:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purchase_with_an_unknown_missing_or_mistyped_field_is_refused() {
    let activity = opened().await;
    let path = format!("/v1/activities/{activity}/orders");
    let line = r#"[{"sku": "phone", "quantity": 1}]"#;
    for (body, says) in [
        (format!(r#"{{"lines": {line}}}"#), "missing field `user_id`"),
        (
            r#"{"user_id": "alice"}"#.to_string(),
            "missing field `lines`",
        ),
        (
            format!(r#"{{"user_id": "alice", "lines": {line}, "price": 1}}"#),
            "unknown field `price`",
        ),
        (
            format!(r#"{{"user_id": 7, "lines": {line}}}"#),
            "expected a string",
        ),
        (
            r#"{"user_id": "alice", "lines": {"phone": 1}}"#.to_string(),
            "expected a sequence",
        ),
        (
            r#"{"user_id": "alice", "lines": [["phone"]]}"#.to_string(),
            "the body is not what is expected",
        ),
        (
            "user_id=alice&sku=phone".to_string(),
            "the body is not what is expected",
        ),
        ("<order/>".to_string(), "the body is not what is expected"),
        (String::new(), "the body is empty"),
        ("{}{}".to_string(), "the body is not what is expected"),
    ] {
        let answer = post(&path, &[("Idempotency-Key", "k-1")], body).await;
        answer.assert_problem(400, "invalid-request", says);
    }
    untouched(&activity).await;
}
