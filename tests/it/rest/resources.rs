//! What the service says of itself: its document, its health, its problems, its strategies.

use std::collections::BTreeSet;

use flashlock::strategy::Strategy;
use reqwest::Method;
use serde_json::{Value, json};

use super::{phones, service};
use crate::world::{Service, Start, world};

/// Every route, as the document must have it.
const ROUTES: [&str; 22] = [
    "get /v1/strategies",
    "get /v1/activities",
    "post /v1/activities",
    "get /v1/activities/{id}",
    "post /v1/activities/{id}/warm-up",
    "post /v1/activities/{id}/open",
    "post /v1/activities/{id}/pause",
    "put /v1/activities/{id}/strategy",
    "post /v1/activities/{id}/close",
    "post /v1/activities/{id}/orders",
    "get /v1/orders/{id}",
    "post /v1/orders/{id}/payments",
    "post /v1/orders/{id}/cancel",
    "get /v1/outbox/dead",
    "get /v1/compensations",
    "post /v1/activities/{id}/reconcile",
    "post /v1/outbox/dead/{id}/replay",
    "get /healthz",
    "get /readyz",
    "get /metrics",
    "get /openapi.json",
    "get /problems/{name}",
];

#[tokio::test(flavor = "multi_thread")]
async fn the_document_lists_the_routes_that_exist() {
    let service = service(&[]).await;
    let document = service.api.get("/openapi.json").await;
    assert_eq!(document.status, 200);
    assert!(
        document.body["openapi"]
            .as_str()
            .is_some_and(|v| v.starts_with("3."))
    );
    let mut listed = BTreeSet::new();
    for (path, methods) in document.body["paths"].as_object().expect("paths") {
        for (method, operation) in methods.as_object().expect("methods") {
            listed.insert(format!("{method} {path}"));
            assert!(
                operation["summary"].is_string(),
                "{method} {path} has no summary"
            );
            let upper: Method = method.to_uppercase().parse().expect("a method");
            let real = path.replace("{id}", "x").replace("{name}", "x");
            let request = service.api.request(upper, &real);
            let answer = service.api.send(request).await.expect("an answer");
            assert_ne!(answer.status, 405, "{method} {path}");
            let detail = answer.body["detail"].as_str().unwrap_or_default();
            assert!(
                !detail.starts_with("there is no /"),
                "{method} {path}: {detail}"
            );
        }
    }
    assert_eq!(listed, ROUTES.map(String::from).into());
}

#[tokio::test(flavor = "multi_thread")]
async fn every_reference_of_the_document_leads_somewhere() {
    let service = service(&[]).await;
    let document = service.api.get("/openapi.json").await.body;
    let text = document.to_string();
    let references = text.split("\"$ref\":\"#").skip(1);
    let mut found = 0;
    for reference in references {
        let (pointer, _) = reference.split_once('"').expect("an end");
        assert!(
            document.pointer(pointer).is_some(),
            "{pointer} is not there"
        );
        found += 1;
    }
    assert!(found > 10, "{found} references");
}

#[tokio::test(flavor = "multi_thread")]
async fn health_readiness_and_metrics_answer() {
    let service = service(&[]).await;
    let api = &service.api;
    assert_eq!(api.get("/healthz").await.body, json!({"status": "ok"}));
    let ready = json!({"status": "ready", "database": "sqlite", "alarms": []});
    assert_eq!(api.get("/readyz").await.body, ready);
    let bucket = json!({"limits": {"per_user": {"capacity": 1, "per_s": 0.001}}});
    let activity = api.open(phones(1, bucket)).await;
    for key in ["k-1", "k-2"] {
        api.buy(&activity, "alice", key, &[("phone", 2)]).await;
    }
    let metrics = api.get("/metrics").await;
    assert_eq!(metrics.status, 200);
    let text = metrics.body.as_str().expect("text");
    assert!(
        text.contains("flashlock_limited_total{bucket=\"user\"} 1"),
        "{text}"
    );
    assert!(
        metrics.headers["content-type"]
            .to_str()
            .is_ok_and(|t| t.starts_with("text/plain"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn every_problem_type_is_explained() {
    let service = service(&[]).await;
    for (name, status) in [
        ("invalid-request", 400),
        ("idempotency-key-required", 400),
        ("unauthorized", 401),
        ("forbidden", 403),
        ("not-found", 404),
        ("method-not-allowed", 405),
        ("body-too-slow", 408),
        ("sold-out", 409),
        ("already-purchased", 409),
        ("activity-not-open", 409),
        ("order-abandoned", 409),
        ("not-allowed-in-state", 409),
        ("payment-used-elsewhere", 409),
        ("activity-ended", 410),
        ("body-too-large", 413),
        ("idempotency-key-reused", 422),
        ("strategy-not-configured", 422),
        ("limited", 429),
        ("internal", 500),
        ("lock-timeout", 503),
        ("busy", 503),
        ("gate-recovering", 503),
        ("activity-paused", 503),
        ("outcome-unknown", 503),
        ("strategy-unavailable", 503),
    ] {
        let answer = service.api.get(&format!("/problems/{name}")).await;
        assert_eq!(answer.status, 200, "{name}: {answer:?}");
        assert_eq!(answer.body["type"], format!("/problems/{name}"));
        assert_eq!(answer.body["status"], status, "{name}");
        assert!(answer.body["title"].is_string(), "{name}");
    }
    let answer = service.api.get("/problems/bad-luck").await;
    answer.assert_problem(404, "not-found", "there is no problem type `bad-luck`");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_such_path_and_no_such_method_are_problems() {
    let service = service(&[]).await;
    let api = &service.api;
    for path in [
        "/",
        "/v2/activities",
        "/v1/activities/a/b/c",
        "/favicon.ico",
    ] {
        let answer = api.get(path).await;
        answer.assert_problem(
            404,
            "not-found",
            &format!("there is no {path}; see /openapi.json"),
        );
    }
    for (method, path, allowed) in [
        (Method::DELETE, "/v1/activities/a", "GET,HEAD"),
        (Method::PUT, "/v1/activities", "GET,HEAD,POST"),
        (Method::GET, "/v1/activities/a/orders", "POST"),
        (Method::POST, "/healthz", "GET,HEAD"),
    ] {
        let request = api.request(method.clone(), path);
        let answer = api.send(request).await.expect("an answer");
        answer.assert_problem(405, "method-not-allowed", method.as_str());
        let allow = answer.headers["allow"].to_str().expect("text");
        let mut allow: Vec<&str> = allow.split(',').map(str::trim).collect();
        allow.sort_unstable();
        assert_eq!(allow.join(","), allowed, "{method} {path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn serve_without_options_sells_by_the_database_and_says_what_the_others_need() {
    let dir = world().directory();
    let start = Start {
        dir: Some(dir.clone()),
        ..Start::default()
    };
    let service = Service::start_with(&start).await.expect("it starts");
    assert!(dir.join("flashlock.db").is_file());
    let answer = service.api.get("/v1/strategies").await;
    let listed = answer.body["strategies"]
        .as_array()
        .expect("a list")
        .clone();
    let of = |name: &str| -> Value {
        let found = listed.iter().find(|s| s["name"] == name);
        found
            .unwrap_or_else(|| panic!("no {name} in {listed:?}"))
            .clone()
    };
    assert_eq!(listed.len(), Strategy::all().len());
    let embedded = Strategy::all().iter();
    for strategy in embedded.filter(|s| s.entry().needs.is_empty() && !s.is_control()) {
        let name = &*strategy.name().to_string();
        let strategy = of(name);
        assert_eq!(strategy["available"], true, "{strategy}");
        assert_eq!(strategy.get("unavailable_because"), None);
        assert_eq!(strategy["control"], false);
        let guarantees = &strategy["guarantees"];
        for flag in ["fair", "fenced", "survives_failover"] {
            assert!(guarantees[flag].is_boolean(), "{flag}: {strategy}");
        }
        for text in ["protects_by", "stock_lives_in", "frees_after_crash", "note"] {
            assert!(guarantees[text].is_string(), "{text}: {strategy}");
        }
        let sale = json!({"strategy": name, "skus": [{"sku": "phone", "stock": 1}]});
        let activity = service.api.open(sale).await;
        let bought = service
            .api
            .buy(&activity, "alice", "k-1", &[("phone", 1)])
            .await;
        assert_eq!(bought.status, 201, "{name}: {bought:?}");
    }
    for (name, option) in [
        ("redis-set-nx", "redis_url"),
        ("redis-lua", "redis_url"),
        ("redlock", "redlock_urls"),
        ("zookeeper", "zookeeper"),
    ] {
        let strategy = of(name);
        assert_eq!(strategy["available"], false, "{strategy}");
        let why = strategy["unavailable_because"].as_str().unwrap_or_default();
        assert!(
            why.contains(option),
            "{name}: {why:?} does not name {option}"
        );
        let log = service.log();
        assert!(
            log.contains(&format!("strategy {name} is not available")),
            "{log}"
        );
    }
    assert_eq!(of("no-lock")["control"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_activity_of_a_strategy_that_is_not_configured_is_told_what_is_missing() {
    let service = service(&[]).await;
    let api = &service.api;
    let activity = api
        .create(phones(1, json!({"strategy": "redis-lua"})))
        .await;
    let answer = api
        .post(&format!("/v1/activities/{activity}/warm-up"), Value::Null)
        .await;
    answer.assert_problem(503, "strategy-unavailable", "redis_url");
    assert_eq!(answer.body["strategy"], "redis-lua");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_created_says_where_it_is() {
    let service = service(&[]).await;
    let api = &service.api;
    let created = api.post("/v1/activities", phones(3, json!({}))).await;
    let location = created.headers["location"]
        .to_str()
        .expect("text")
        .to_string();
    assert_eq!(location, format!("/v1/activities/{}", created.order_id()));
    let read = api.get(&location).await;
    assert_eq!(read.body, created.body);
    assert_eq!(read.body["state"], "DRAFT");
    let listed = api.get("/v1/activities").await;
    assert_eq!(listed.body["activities"][0]["id"], created.body["id"]);

    let activity = api.open(phones(3, json!({}))).await;
    let booked = api.buy(&activity, "alice", "k-1", &[("phone", 2)]).await;
    let location = booked.headers["location"]
        .to_str()
        .expect("text")
        .to_string();
    assert_eq!(location, format!("/v1/orders/{}", booked.order_id()));
    let order = api.get(&location).await;
    assert_eq!(order.body["user_id"], "alice");
    assert_eq!(order.body["activity_id"], activity);
    assert_eq!(
        order.body["lines"],
        json!([{"sku": "phone", "quantity": 2}])
    );
}
