//! Requests that mean harm, or come from a broken client.

use serde_json::{Value, json};

use super::{api, opened, post, untouched};
use crate::wire::{Wire, exchange};

/// The limit of a body unless it is configured.
const BODY_BYTES_MAX: usize = 16 * 1024;

#[tokio::test(flavor = "multi_thread")]
async fn a_body_over_the_limit_is_too_large() {
    let activity = opened().await;
    let path = format!("/v1/activities/{activity}/orders");
    let key = [("Idempotency-Key", "k-1")];
    let fits = json!({"user_id": "a", "lines": []}).to_string();
    let fits = format!("{fits}{}", " ".repeat(BODY_BYTES_MAX - fits.len()));
    let answer = post(&path, &key, fits.clone()).await;
    answer.assert_problem(400, "invalid-request", "1 to 20 entries");
    let answer = post(&path, &key, format!("{fits} ")).await;
    answer.assert_problem(413, "body-too-large", "body_bytes_max");
    let answer = post("/v1/activities", &[], format!("{fits} ")).await;
    answer.assert_problem(413, "body-too-large", "send less");
    // In chunks, so that no length announces it.
    let chunk = format!("{:x}\r\n{}\r\n", 1024, "x".repeat(1024));
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: t\r\nIdempotency-Key: k-1\r\nTransfer-Encoding: chunked\r\n\r\n{}0\r\n\r\n",
        chunk.repeat(BODY_BYTES_MAX / 1024 + 1)
    );
    let answer = exchange(&api().await.url, request).await;
    answer.assert_problem(413, "body-too-large", "body_bytes_max");
    untouched(&activity).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let activity = opened().await;
    let path = format!("/v1/activities/{activity}/orders");
    let headers = ["Idempotency-Key: k-1"];
    let mut wire = Wire::begin(&api().await.url, &path, &headers, 100).await;
    wire.go_on(b"{\"user_id\": ").await;
    let answer = wire.answer().await.expect("an answer");
    answer.assert_problem(408, "body-too-slow", "send the request again");
    untouched(&activity).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_with_path_tricks_names_nothing() {
    let api = api().await;
    let url = &api.url;
    for id in [
        "..%2f..%2fetc%2fpasswd",
        "%2e%2e",
        "a%00b",
        "%00",
        "a%0d%0aX-Injected:%201",
        "'%20OR%20'1'='1",
        "%7bfs:x%7d",
        "x%7c|y",
        "%E6%89%8B",
    ] {
        for path in [format!("/v1/activities/{id}"), format!("/v1/orders/{id}")] {
            let request = format!("GET {path} HTTP/1.1\r\nHost: t\r\n\r\n");
            let answer = exchange(url, request).await;
            answer.assert_problem(404, "not-found", "there is no");
            assert!(!answer.headers.contains_key("x-injected"), "{answer:?}");
        }
    }
    for path in ["/v1/activities/%FF", "/v1/activities/%C3%28"] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: t\r\n\r\n");
        let answer = exchange(url, request).await;
        answer.assert_problem(400, "invalid-request", "UTF-8");
    }
    for path in [
        "/v1/activities/../../etc/passwd",
        "//",
        "/v1//activities",
        "/v1/activities/",
    ] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: t\r\n\r\n");
        exchange(url, request)
            .await
            .assert_problem(404, "not-found", "/openapi.json");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_very_long_id_is_not_repeated_at_length() {
    let long = "x".repeat(4000);
    for path in [
        format!("/v1/activities/{long}"),
        format!("/v1/orders/{long}"),
        format!("/v1/orders/{}.{long}", "x".repeat(32)),
        format!("/problems/{long}"),
        format!("/{long}"),
    ] {
        let answer = api().await.get(&path).await;
        answer.assert_problem(404, "not-found", "there is no");
        let length = answer.body["detail"].as_str().map_or(0, str::len);
        assert!(length < 300, "{length} bytes");
    }
    let answer = api().await.buy(&long, "alice", "k", &[("phone", 1)]).await;
    answer.assert_problem(404, "not-found", "at most 36");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_that_is_no_name_is_refused() {
    let activity = opened().await;
    let long = "u".repeat(65);
    for (user, says) in [
        ("", "user_id is empty"),
        ("a|b", "'|'"),
        ("a;b", "';'"),
        ("{a}", "'{'"),
        ("张三", "'张'"),
        ("ünal", "'ü'"),
        ("a b", "' '"),
        ("a\u{0}b", "'\\0'"),
        ("a\nb", "'\\n'"),
        ("\u{202e}ecila", "'\\u{202e}'"),
        (long.as_str(), "65 bytes long; at most 64"),
    ] {
        let answer = api()
            .await
            .buy(&activity, user, "k-1", &[("phone", 1)])
            .await;
        answer.assert_problem(400, "invalid-request", says);
    }
    untouched(&activity).await;
    let answer = api()
        .await
        .buy(&activity, "A.b_c:d@e+f-1", "k-1", &[("phone", 1)])
        .await;
    assert_eq!(answer.status, 201, "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn users_that_differ_in_case_are_two() {
    let activity = opened().await;
    for user in ["alice", "Alice"] {
        let answer = api()
            .await
            .buy(&activity, user, "k-1", &[("phone", 1)])
            .await;
        assert_eq!(answer.status, 201, "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn json_that_means_harm_is_refused() {
    let activity = opened().await;
    let path = format!("/v1/activities/{activity}/orders");
    let line = |quantity: &str| {
        format!(r#"{{"user_id": "alice", "lines": [{{"sku": "phone", "quantity": {quantity}}}]}}"#)
    };
    let nested = |open: &str, close: &str| {
        let deep = format!("{}{}", open.repeat(2000), close.repeat(2000));
        format!(r#"{{"user_id": "alice", "lines": {deep}}}"#)
    };
    for (body, says) in [
        (line("1e999"), "number out of range"),
        (line("-1e999"), "number out of range"),
        (line("1e2"), "expected i64"),
        (line("9223372036854775808"), "expected i64"),
        (line("99999999999999999999999999"), "expected i64"),
        (line("NaN"), "expected"),
        (line("0x1"), "expected"),
        (line("1, \"quantity\": 2"), "duplicate field `quantity`"),
        (
            r#"{"user_id": "a", "user_id": "b", "lines": []}"#.to_string(),
            "duplicate field `user_id`",
        ),
        (nested("[", "]"), "the body is not what is expected"),
        (nested("{\"a\":", "}"), "the body is not what is expected"),
        (
            "[".repeat(BODY_BYTES_MAX),
            "the body is not what is expected",
        ),
        (
            r#"{"user_id": "\ud800", "lines": []}"#.to_string(),
            "the body is not what is expected",
        ),
        ("\u{feff}{}".to_string(), "the body is not what is expected"),
    ] {
        let answer = post(&path, &[("Idempotency-Key", "k-1")], body).await;
        answer.assert_problem(400, "invalid-request", says);
    }
    let not_utf8 = b"{\"user_id\": \"\xff\", \"lines\": []}".to_vec();
    let answer = post(&path, &[("Idempotency-Key", "k-1")], not_utf8).await;
    answer.assert_problem(400, "invalid-request", "the body is not what is expected");
    untouched(&activity).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payment_that_cannot_be_is_refused() {
    let activity = opened().await;
    let api = api().await;
    let order = api
        .buy(&activity, "alice", "k-1", &[("phone", 1)])
        .await
        .order_id();
    let path = format!("/v1/orders/{order}/payments");
    let long = "t".repeat(129);
    for (body, says) in [
        (json!({"provider": "acme"}), "missing field `provider_txn`"),
        (
            json!({"provider": "", "provider_txn": "t"}),
            "provider must be 1 to 64 bytes",
        ),
        (
            json!({"provider": "acme", "provider_txn": ""}),
            "provider_txn must be 1 to 128 bytes",
        ),
        (
            json!({"provider": "acme", "provider_txn": long}),
            "provider_txn must be 1 to 128 bytes",
        ),
        (
            json!({"provider": "acme", "provider_txn": "a\u{0}"}),
            "without control characters",
        ),
        (
            json!({"provider": "acme", "provider_txn": 7}),
            "expected a string",
        ),
        (
            json!({"provider": "acme", "provider_txn": "t", "amount": 1}),
            "unknown field `amount`",
        ),
        (Value::Null, "the body is not what is expected"),
    ] {
        let answer = api.post(&path, body).await;
        answer.assert_problem(400, "invalid-request", says);
    }
    let read = api.get(&format!("/v1/orders/{order}")).await;
    assert_eq!(read.body["status"], "PENDING_PAYMENT");
}
