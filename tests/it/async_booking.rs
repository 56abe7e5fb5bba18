//! Orders that are accepted by the gate and booked after the answer: each ends, once, whoever fails.

mod crowd;
mod outage;
mod refused;
mod worker_dies;

use std::time::Duration;

use flashlock::clock;
use flashlock::keys::GateKeys;
use flashlock::sale::ActivityId;
use flashlock::store::{Store, StoreOptions};
use redis::aio::MultiplexedConnection;
use serde_json::{Value, json};

use crate::books::Books;
use crate::gate::server::RedisServer;
use crate::world::{Answer, Api, DATABASES, Service, world};

/// Everything ends well within this, on a busy machine.
const SOON: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);

fn sale(stock: i64) -> Value {
    json!({
        "strategy": "redis-lua",
        "booking": "async",
        "batch_max": 32,
        "skus": [{"sku": "phone", "stock": stock}],
    })
}

/// The options of a service on this database and Redis, doing what `roles` say.
fn options(database_url: &str, redis_url: &str, roles: &str) -> Vec<(String, String)> {
    let set = |name: &str, value: &str| (format!("FLASHLOCK_{name}"), value.to_string());
    vec![
        set("DATABASE_URL", database_url),
        set("REDIS_URL", redis_url),
        set("ROLES", roles),
        set("DATABASE_CONNECTIONS_MAX", "8"),
    ]
}

async fn until<T, F: Future<Output = Option<T>>>(what: &str, is_so: impl Fn() -> F) -> T {
    let begun = clock::now();
    loop {
        if let Some(found) = is_so().await {
            return found;
        }
        assert!(begun.elapsed() < SOON, "{what}: not within {SOON:?}");
        tokio::time::sleep(PAUSE).await;
    }
}

/// Buys one phone, and expects that it is accepted; its order's id.
async fn accepted(api: &Api, activity: &str, user: &str) -> String {
    let answer = api.buy(activity, user, "key", &[("phone", 1)]).await;
    assert_accepted(&answer);
    answer.order_id()
}

#[track_caller]
fn assert_accepted(answer: &Answer) {
    assert_eq!(answer.status, 202, "{answer:?}");
    assert_eq!(answer.body["status"], "ACCEPTED", "{answer:?}");
    let location = format!("/v1/orders/{}", answer.order_id());
    assert_eq!(answer.headers["location"], location.as_str(), "{answer:?}");
    assert_eq!(answer.headers["retry-after"], "1", "{answer:?}");
}

/// What the order's own resource says once it is decided. It is there all the time.
async fn decided(api: &Api, order: &str) -> Answer {
    until("the order is decided", || async {
        let told = api.get(&format!("/v1/orders/{order}")).await;
        match told.status {
            202 => {
                assert_accepted(&told);
                assert_eq!(told.order_id(), order);
                None
            }
            503 => None,
            status => {
                assert_eq!(status, 200, "{told:?}");
                Some(told)
            }
        }
    })
    .await
}

async fn status(api: &Api, order: &str) -> String {
    let told = decided(api, order).await;
    told.body["status"].as_str().expect("a status").to_string()
}

async fn store(url: &str) -> Store {
    let options = StoreOptions {
        url: url.to_string(),
        connections_max: 4,
    };
    Store::open(&options).await.expect("the database answers")
}

async fn lab_redis() -> MultiplexedConnection {
    let url = world().lab.redis_url().expect("redis runs");
    let client = redis::Client::open(url).expect("a url");
    let con = client.get_multiplexed_async_connection().await;
    con.expect("redis answers")
}

fn keys(activity: &str) -> GateKeys {
    let id: ActivityId = activity.parse().expect("an activity's id");
    GateKeys::of(&id)
}

async fn count(con: &mut MultiplexedConnection, command: &str, key: &str) -> i64 {
    let mut cmd = redis::cmd(command);
    cmd.arg(key);
    cmd.query_async(con).await.expect("a count")
}

/// Waits until nothing of the activity is held, in the index or in the stream.
async fn until_drained(con: &MultiplexedConnection, activity: &str) {
    let keys = keys(activity);
    until("nothing is held and nothing is handed over", || async {
        let mut con = con.clone();
        let held = count(&mut con, "ZCARD", &keys.pend).await;
        let handed = count(&mut con, "XLEN", &keys.q).await;
        (held == 0 && handed == 0).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_accepted_order_is_booked_and_told_through_its_life() {
    for database in DATABASES {
        let url = world().database(database).await;
        let service = Service::start(&world().everything(&url)).await;
        let api = &service.api;
        let activity = api.open(sale(3)).await;
        let order = accepted(api, &activity, "alice").await;
        let booked = decided(api, &order).await;
        assert_eq!(booked.body["status"], "PENDING_PAYMENT", "{booked:?}");
        assert_eq!(booked.order_id(), order);
        assert_eq!(
            booked.body["lines"],
            json!([{"sku": "phone", "quantity": 1}])
        );

        let replay = api.buy(&activity, "alice", "key", &[("phone", 1)]).await;
        assert_eq!(
            (replay.status, replay.order_id()),
            (200, order.clone()),
            "{replay:?}"
        );
        assert_eq!(replay.headers["idempotent-replay"], "true", "{replay:?}");
        let reused = api.buy(&activity, "alice", "key", &[("phone", 2)]).await;
        reused.assert_problem(422, "idempotency-key-reused", "another body");
        let second = api.buy(&activity, "alice", "other", &[("phone", 1)]).await;
        second.assert_problem(409, "already-purchased", &order);

        let path = format!("/v1/orders/{order}/payments");
        let payment = json!({"provider": "p", "provider_txn": format!("t-{order}")});
        let paid = api.post(&path, payment).await;
        assert_eq!(paid.body["outcome"], "APPLIED", "{paid:?}");
        assert_eq!(status(api, &order).await, "PAID");
        let bob = accepted(api, &activity, "bob").await;
        assert_eq!(status(api, &bob).await, "PENDING_PAYMENT");
        let cancelled = api
            .post(&format!("/v1/orders/{bob}/cancel"), Value::Null)
            .await;
        assert_eq!(cancelled.status, 200, "{cancelled:?}");
        assert_eq!(api.stock(&activity, "phone").await, (3, 2, 0, 1));
        until_drained(&lab_redis().await, &activity).await;
        let books = Books::read(&store(&url).await, &activity).await;
        books.assert_balanced(database);
    }
}

/// While nobody books: the same key finds out, its user and its stock are taken, and paying waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_that_waits_is_told_as_such_and_never_as_unknown() {
    let url = world().database("sqlite").await;
    let redis = world().lab.redis_url().expect("redis runs");
    let service = Service::start(&options(&url, &redis, "api")).await;
    let api = &service.api;
    let activity = api.open(sale(2)).await;
    let order = accepted(api, &activity, "alice").await;
    for _ in 0..3 {
        assert_accepted(&api.get(&format!("/v1/orders/{order}")).await);
        assert_eq!(accepted(api, &activity, "alice").await, order);
    }
    let reused = api.buy(&activity, "alice", "key", &[("phone", 2)]).await;
    reused.assert_problem(422, "idempotency-key-reused", "another body");
    let second = api.buy(&activity, "alice", "other", &[("phone", 1)]).await;
    second.assert_problem(409, "already-purchased", &order);
    let payment = json!({"provider": "p", "provider_txn": "t"});
    for (step, body) in [("payments", payment), ("cancel", Value::Null)] {
        let early = api.post(&format!("/v1/orders/{order}/{step}"), body).await;
        early.assert_problem(503, "busy", "is being booked");
    }
    accepted(api, &activity, "bob").await;
    let carol = api.buy(&activity, "carol", "key", &[("phone", 1)]).await;
    carol.assert_problem(409, "sold-out", "0 of phone");

    let booker = Service::start(&options(&url, &redis, "booker")).await;
    assert_eq!(status(api, &order).await, "PENDING_PAYMENT");
    until_drained(&lab_redis().await, &activity).await;
    assert_eq!(api.stock(&activity, "phone").await, (2, 0, 2, 0));
    drop(booker);
}

/// A pause keeps what was promised; sold in another way, the sale goes on from there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_is_over_once_all_that_was_accepted_is_booked() {
    let url = world().database("postgres").await;
    let redis = world().lab.redis_url().expect("redis runs");
    let service = Service::start(&options(&url, &redis, "api,closer")).await;
    let api = &service.api;
    let activity = api.open(sale(5)).await;
    let order = accepted(api, &activity, "alice").await;
    let path = |step: &str| format!("/v1/activities/{activity}/{step}");
    let pausing = api.post(&path("pause"), Value::Null).await;
    assert_eq!(pausing.body["state"], "PAUSING", "{pausing:?}");
    let late = api.buy(&activity, "bob", "key", &[("phone", 1)]).await;
    late.assert_problem(503, "activity-paused", "try again");
    assert_eq!(accepted(api, &activity, "alice").await, order);

    let booker = Service::start(&options(&url, &redis, "booker")).await;
    until("it is paused", || async {
        let now = api.get(&format!("/v1/activities/{activity}")).await;
        (now.body["state"] == "PAUSED").then_some(())
    })
    .await;
    assert_eq!(status(api, &order).await, "PENDING_PAYMENT");
    let body = json!({"strategy": "db-conditional-update"}).to_string();
    let put = api.request(reqwest::Method::PUT, &path("strategy"));
    let changed = api.send(put.body(body)).await.expect("an answer");
    assert_eq!(changed.status, 200, "{changed:?}");
    for step in ["warm-up", "open"] {
        let moved = api.post(&path(step), Value::Null).await;
        assert_eq!(moved.status, 200, "{moved:?}");
    }
    let bob = api.buy(&activity, "bob", "key", &[("phone", 1)]).await;
    assert_eq!(bob.status, 201, "{bob:?}");
    assert_eq!(api.stock(&activity, "phone").await, (5, 3, 2, 0));
    drop(booker);
}

#[tokio::test]
async fn only_a_gate_accepts_before_it_books() {
    let url = world().database("sqlite").await;
    let service = Service::start(&world().everything(&url)).await;
    for strategy in ["db-conditional-update", "redis-set-nx", "no-lock"] {
        let mut body = sale(1);
        body["strategy"] = json!(strategy);
        let refused = service.api.post("/v1/activities", body).await;
        refused.assert_problem(
            400,
            "invalid-request",
            "booking async is for redis-lua only",
        );
    }
    let mut body = sale(1);
    body["booking"] = json!("later");
    let refused = service.api.post("/v1/activities", body).await;
    refused.assert_problem(400, "invalid-request", "sync, async");
}
