//! Two scopes: who may change activities, who may buy, who may read.

use reqwest::Method;
use serde_json::Value;

use super::{phones, service};
use crate::world::{Answer, Api};

const OPERATOR: &str = "op-3f9a";
const CALLER: &str = "ca-7b21";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    Operator,
    Caller,
    Either,
    Open,
}

/// Every route, and who may use it. The ids name nothing: what counts is who is let through.
const ROUTES: [(&str, &str, Scope); 22] = [
    ("GET", "/v1/strategies", Scope::Either),
    ("GET", "/v1/activities", Scope::Either),
    ("GET", "/v1/activities/a", Scope::Either),
    ("POST", "/v1/activities", Scope::Operator),
    ("POST", "/v1/activities/a/warm-up", Scope::Operator),
    ("POST", "/v1/activities/a/open", Scope::Operator),
    ("POST", "/v1/activities/a/pause", Scope::Operator),
    ("PUT", "/v1/activities/a/strategy", Scope::Operator),
    ("POST", "/v1/activities/a/close", Scope::Operator),
    ("POST", "/v1/activities/a/orders", Scope::Caller),
    ("GET", "/v1/orders/a", Scope::Either),
    ("POST", "/v1/orders/a/payments", Scope::Caller),
    ("POST", "/v1/orders/a/cancel", Scope::Caller),
    ("GET", "/v1/outbox/dead", Scope::Operator),
    ("GET", "/v1/compensations", Scope::Operator),
    ("POST", "/v1/activities/a/reconcile", Scope::Operator),
    ("POST", "/v1/outbox/dead/a/replay", Scope::Operator),
    ("GET", "/healthz", Scope::Open),
    ("GET", "/readyz", Scope::Open),
    ("GET", "/metrics", Scope::Open),
    ("GET", "/openapi.json", Scope::Open),
    ("GET", "/problems/limited", Scope::Open),
];

async fn ask(api: &Api, method: &str, path: &str) -> Answer {
    let method: Method = method.parse().expect("a method");
    api.send(api.request(method, path))
        .await
        .expect("an answer")
}

#[tokio::test(flavor = "multi_thread")]
async fn each_endpoint_takes_the_token_of_its_scope_and_no_other() {
    let service = service(&[("OPERATOR_TOKEN", OPERATOR), ("CALLER_TOKEN", CALLER)]).await;
    let nobody = &service.api;
    for (method, path, scope) in ROUTES {
        for (given, token) in [(Scope::Operator, OPERATOR), (Scope::Caller, CALLER)] {
            let answer = ask(&nobody.with_token(token), method, path).await;
            if scope == given || scope == Scope::Either || scope == Scope::Open {
                assert!(
                    ![401, 403].contains(&answer.status),
                    "{method} {path}: {answer:?}"
                );
            } else {
                let needs = if scope == Scope::Operator {
                    "operator"
                } else {
                    "caller"
                };
                let says = format!("this needs the {needs} token");
                answer.assert_problem(403, "forbidden", &says);
            }
        }
        for stranger in [
            nobody.clone(),
            nobody.with_token("guess"),
            nobody.with_token(""),
        ] {
            let answer = ask(&stranger, method, path).await;
            if scope == Scope::Open {
                assert_eq!(answer.status, 200, "{method} {path}: {answer:?}");
            } else {
                answer.assert_problem(401, "unauthorized", "send ");
                assert_eq!(answer.headers["www-authenticate"], "Bearer");
            }
        }
    }
    let log = service.log();
    assert!(!log.contains(OPERATOR) && !log.contains(CALLER), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_scheme_is_bearer_in_any_case_and_no_other() {
    let service = service(&[("OPERATOR_TOKEN", OPERATOR), ("CALLER_TOKEN", CALLER)]).await;
    let api = &service.api;
    for (value, status) in [
        (format!("Bearer {CALLER}"), 200),
        (format!("bearer {CALLER}"), 200),
        (format!("Basic {CALLER}"), 401),
        (CALLER.to_string(), 401),
        (format!("Bearer {CALLER}{CALLER}"), 401),
        (format!("Bearer {}", &CALLER[..4]), 401),
    ] {
        let request = api.request(Method::GET, "/v1/activities");
        let request = request.header("Authorization", &value);
        let answer = api.send(request).await.expect("an answer");
        assert_eq!(answer.status, status, "{value}: {answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_and_caller_run_a_sale_together() {
    let service = service(&[("OPERATOR_TOKEN", OPERATOR), ("CALLER_TOKEN", CALLER)]).await;
    let operator = service.api.with_token(OPERATOR);
    let caller = service.api.with_token(CALLER);
    let activity = operator.open(phones(1, serde_json::json!({}))).await;
    let bought = caller.buy(&activity, "alice", "k-1", &[("phone", 1)]).await;
    assert_eq!(bought.status, 201, "{bought:?}");
    let path = format!("/v1/orders/{}/cancel", bought.order_id());
    let refused = operator.post(&path, Value::Null).await;
    refused.assert_problem(403, "forbidden", "caller");
    assert_eq!(caller.post(&path, Value::Null).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_tokens_loopback_may_do_anything_and_the_log_says_so() {
    let service = service(&[]).await;
    for (method, path, _) in ROUTES {
        let answer = ask(&service.api, method, path).await;
        assert!(
            ![401, 403].contains(&answer.status),
            "{method} {path}: {answer:?}"
        );
    }
    let log = service.log();
    assert!(log.contains("no tokens are configured"), "{log}");
    assert!(log.contains("only loopback is listened on"), "{log}");
}
