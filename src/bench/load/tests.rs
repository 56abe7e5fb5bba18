//! Does the load generator count what its buyers were answered? A small shop over real HTTP says.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};

use super::*;
use crate::bench::buyer;
use crate::bench::plan::tests::plan;

/// How the shop misbehaves.
#[derive(Clone, Copy, PartialEq)]
enum Mood {
    Good,
    /// Answers each key's first request 503 after it has booked it.
    UnknownFirst,
    /// Refuses everything with 503 `busy`.
    AlwaysBusy,
    /// Takes `STALL` for each answer.
    Slow,
    /// Answers 500.
    Broken,
}

const STALL: Duration = Duration::from_millis(100);

struct Shop {
    mood: Mood,
    stock: usize,
    /// Order by user and key.
    orders: Mutex<BTreeMap<(String, String), String>>,
    in_flight: AtomicUsize,
    in_flight_max: AtomicUsize,
}

impl Shop {
    fn problem(status: u16, name: &str) -> Response {
        let body =
            json!({"type": format!("/problems/{name}"), "retry_with_same_key": status == 503});
        let status = StatusCode::from_u16(status).expect("a status");
        (status, [("retry-after", "1")], Json(body)).into_response()
    }

    fn sell(&self, user: &str, key: &str) -> Response {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        let request = (user.to_string(), key.to_string());
        if let Some(order) = orders.get(&request) {
            let body = Json(json!({"id": order}));
            return (StatusCode::OK, [("idempotent-replay", "true")], body).into_response();
        }
        if orders.keys().any(|(u, _)| u == user) {
            return Self::problem(409, "already-purchased");
        }
        if orders.len() == self.stock {
            return Self::problem(409, "sold-out");
        }
        let id = format!("a.{}", orders.len());
        orders.insert(request, id.clone());
        if self.mood == Mood::UnknownFirst {
            return Self::problem(503, "outcome-unknown");
        }
        (StatusCode::CREATED, Json(json!({"id": id}))).into_response()
    }
}

async fn order(
    State(shop): State<Arc<Shop>>,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> Response {
    let now = shop.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
    shop.in_flight_max.fetch_max(now, Ordering::SeqCst);
    tokio::task::yield_now().await;
    let user = body["user_id"].as_str().expect("a user");
    let key = headers["idempotency-key"].to_str().expect("a key");
    let answer = match shop.mood {
        Mood::Good | Mood::UnknownFirst => shop.sell(user, key),
        Mood::Slow => {
            tokio::time::sleep(STALL).await;
            shop.sell(user, key)
        }
        Mood::AlwaysBusy => Shop::problem(503, "busy"),
        Mood::Broken => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    };
    shop.in_flight.fetch_sub(1, Ordering::SeqCst);
    answer
}

/// Runs one burst against a shop with two addresses.
async fn run(mood: Mood, load: &LoadPlan) -> (Burst, Arc<Shop>) {
    let shop = Arc::new(Shop {
        mood,
        stock: usize::try_from(load.stock).expect("a small stock"),
        orders: Mutex::default(),
        in_flight: AtomicUsize::new(0),
        in_flight_max: AtomicUsize::new(0),
    });
    let app = Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route("/v1/activities/a/orders", post(order))
        .with_state(Arc::clone(&shop));
    let mut instances = Vec::new();
    for _ in 0..2 {
        let socket = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        instances.push(format!("http://{}", socket.local_addr().expect("bound")));
        tokio::spawn(axum::serve(socket, app.clone()).into_future());
    }
    let target = Target {
        instances,
        activity: "a".to_string(),
        sku: "S".to_string(),
    };
    let clicks = buyer::clicks(load, 7, 2);
    let client = client(load.concurrency, &load.patience).expect("a client");
    connect(&client, &target, load.concurrency)
        .await
        .expect("both answer");
    let burst = burst(&client, &target, load, &clicks, Arc::new(|_| ())).await;
    assert_eq!(burst.ends.len(), clicks.len(), "every click ends");
    (burst, shop)
}

#[tokio::test]
async fn every_unit_is_booked_once_and_every_click_is_counted() {
    let load = plan().load;
    let (burst, shop) = run(Mood::Good, &load).await;
    assert_eq!(burst.booked.len(), 10);
    assert_eq!(
        burst.count(ClickEnd::Unexpected),
        0,
        "{:?}",
        burst.surprises
    );
    assert_eq!(burst.answers.values().sum::<u64>(), burst.ends.len() as u64);
    assert!(burst.count(ClickEnd::SoldOut) > 0);
    let sold: BTreeSet<String> = shop
        .orders
        .lock()
        .expect("unpoisoned")
        .values()
        .cloned()
        .collect();
    assert_eq!(burst.booked, sold);
}

#[tokio::test]
async fn requests_in_flight_stay_within_the_bound() {
    let mut load = plan().load;
    load.concurrency = 3;
    let (_, shop) = run(Mood::Good, &load).await;
    assert!(shop.in_flight_max.load(Ordering::SeqCst) <= 3);
}

#[tokio::test]
async fn an_unknown_outcome_is_resolved_by_the_same_key() {
    let mut load = plan().load;
    load.patience.pause_max = Duration::from_millis(5);
    let (burst, _) = run(Mood::UnknownFirst, &load).await;
    assert_eq!(burst.booked.len(), 10);
    assert_eq!(burst.count(ClickEnd::Unknown), 0);
    let info = burst
        .events
        .iter()
        .filter(|e| matches!(e.what, What::Info { .. }));
    assert!(
        info.count() >= 10,
        "an open outcome is `info`, never `fail`"
    );
}

#[tokio::test]
async fn a_buyer_gives_up_on_a_busy_service_and_is_counted_busy() {
    let mut load = plan().load;
    load.patience.tries_max = 3;
    load.patience.pause_max = Duration::from_millis(5);
    let (burst, _) = run(Mood::AlwaysBusy, &load).await;
    assert_eq!(burst.count(ClickEnd::Busy), burst.ends.len() as u64);
    assert_eq!(burst.attempts, 3 * burst.ends.len() as u64);
    assert!(burst.booked.is_empty());
}

#[tokio::test]
async fn what_is_outside_the_contract_is_counted_as_such() {
    let (burst, _) = run(Mood::Broken, &plan().load).await;
    assert_eq!(burst.count(ClickEnd::Unexpected), burst.ends.len() as u64);
    assert!(
        burst.surprises[0].starts_with("500"),
        "{:?}",
        burst.surprises
    );
}

#[tokio::test]
async fn latency_counts_from_the_opening_and_service_time_from_the_request() {
    let mut load = plan().load;
    (load.users, load.concurrency) = (20, 1);
    let (burst, _) = run(Mood::Slow, &load).await;
    let latency = burst.latency.quantiles().max.expect("samples");
    let service = burst.service.quantiles().max.expect("samples");
    // One at a time: the last buyer waits for all who were before.
    assert!(latency > 19.0 * 100.0, "{latency} ms");
    assert!(service < latency / 4.0, "{service} ms");
}
