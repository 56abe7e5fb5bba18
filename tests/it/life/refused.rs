//! Is an operator, whose request the state of an activity does not allow, told what to do instead?

use flashlock::sale::ActivityState as Is;
use flashlock::store::{Store, StoreOptions};
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::{AnyPool, AssertSqlSafe};

use crate::gate::server::RedisServer;
use crate::world::{Answer, Service, world};

const ENDED: &str = "it has ended, and what has ended stays so: create another";
const REBUILT: &str = "its gate is being rebuilt";
const NOT_SOLD: &str = "nothing is sold yet";

/// What each request is told in each state; `None`: it is done.
const TOLD: [(Is, [Option<&str>; 5]); 9] = [
    // warm-up, open, pause, strategy, close
    (
        Is::Draft,
        [None, Some("warm it up first"), Some(NOT_SOLD), None, None],
    ),
    (
        Is::Warming,
        [
            None,
            Some("ask for the warm-up again"),
            Some(NOT_SOLD),
            Some("until it is READY"),
            None,
        ],
    ),
    (Is::Ready, [None, None, Some(NOT_SOLD), None, None]),
    (
        Is::Open,
        [
            Some("pause it first"),
            None,
            None,
            Some("pause it and wait until it is PAUSED"),
            None,
        ],
    ),
    (
        Is::Fenced,
        [
            Some(REBUILT),
            None,
            Some(REBUILT),
            Some("wait until it is OPEN, then pause it"),
            None,
        ],
    ),
    (
        Is::Pausing,
        [
            Some("wait until it is PAUSED"),
            Some("wait until it is PAUSED, then warm it up"),
            None,
            Some("wait until it is PAUSED"),
            None,
        ],
    ),
    (
        Is::Paused,
        [None, Some("warm it up first"), None, None, None],
    ),
    (
        Is::Closing,
        [Some(ENDED), Some(ENDED), Some(ENDED), Some(ENDED), None],
    ),
    (
        Is::Sealed,
        [Some(ENDED), Some(ENDED), Some(ENDED), Some(ENDED), None],
    ),
];

/// A service without the roles that move an activity on by themselves.
struct Desk {
    service: Service,
    raw: AnyPool,
}

// === impl Desk ===

impl Desk {
    async fn open() -> Self {
        let url = world().database("sqlite").await;
        let set = |name: &str, value: &str| (format!("FLASHLOCK_{name}"), value.to_string());
        let env = [set("DATABASE_URL", &url), set("ROLES", "api")];
        let service = Service::start(&env).await;
        // It makes the driver known.
        let options = StoreOptions {
            url: url.clone(),
            connections_max: 1,
        };
        Store::open(&options).await.expect("the database answers");
        let raw = AnyPool::connect(&url).await.expect("the database answers");
        Self { service, raw }
    }

    /// A fresh activity in this state.
    async fn activity_in(&self, state: Is) -> String {
        let skus = json!([{"sku": "phone", "stock": 1}]);
        let sale = json!({"strategy": "db-conditional-update", "skus": skus});
        let id = self.service.api.create(sale).await;
        let sql = format!("UPDATE activity SET state = '{state}' WHERE id = '{id}'");
        let moved = sqlx::query(AssertSqlSafe(sql)).execute(&self.raw).await;
        moved.expect("moved");
        id
    }

    async fn ask(&self, id: &str, what: &str) -> Answer {
        let (method, body) = match what {
            "strategy" => (Method::PUT, json!({"strategy": "db-version"})),
            _step => (Method::POST, Value::Null),
        };
        let path = format!("/v1/activities/{id}/{what}");
        let request = self.service.api.request(method, &path);
        let answer = self.service.api.send(request.body(body.to_string()));
        answer.await.expect("an answer")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_state_does_not_allow_is_refused_with_what_to_do_instead() {
    let desk = Desk::open().await;
    let states: Vec<Is> = TOLD.iter().map(|(state, _)| *state).collect();
    assert_eq!(states, Is::ALL, "a state is missing");
    for (state, told) in TOLD {
        let requests = ["warm-up", "open", "pause", "strategy", "close"];
        for (what, told) in requests.into_iter().zip(told) {
            let id = desk.activity_in(state).await;
            let answer = desk.ask(&id, what).await;
            let Some(says) = told else {
                assert_eq!(answer.status, 200, "{state}, {what}: {answer:?}");
                continue;
            };
            answer.assert_problem(409, "not-allowed-in-state", says);
            let is = format!("the activity is {state}, which does not allow");
            answer.assert_problem(409, "not-allowed-in-state", &is);
            assert_eq!(answer.body["state"], state.as_str(), "{what}: {answer:?}");
            let after = desk.service.api.get(&format!("/v1/activities/{id}")).await;
            assert_eq!(after.body["state"], state.as_str(), "{what}: {after:?}");
        }
    }
}

/// What cannot be opened any more is told so, whether its servers answer or not.
#[tokio::test(flavor = "multi_thread")]
async fn an_ended_sale_is_not_opened_though_its_redis_is_away() {
    let mut redis = RedisServer::start(&[]).await;
    let url = world().database("sqlite").await;
    let set = |name: &str, value: &str| (format!("FLASHLOCK_{name}"), value.to_string());
    let service = Service::start(&[
        set("DATABASE_URL", &url),
        set("REDIS_URL", &redis.url()),
        set("ROLES", "api"),
    ])
    .await;
    let skus = json!([{"sku": "phone", "stock": 1}]);
    let sale = json!({"strategy": "redis-lua", "skus": skus});
    let ended = service.api.open(sale.clone()).await;
    let closed = format!("/v1/activities/{ended}/close");
    assert_eq!(service.api.post(&closed, Value::Null).await.status, 200);
    let ready = service.api.create(sale).await;
    let warmed = format!("/v1/activities/{ready}/warm-up");
    assert_eq!(service.api.post(&warmed, Value::Null).await.status, 200);
    redis.kill();
    let open = async |id: &str| {
        let path = format!("/v1/activities/{id}/open");
        service.api.post(&path, Value::Null).await
    };
    // The first call finds the connection broken.
    let broken = open(&ready).await;
    assert_eq!(broken.status, 503);
    let detail = broken.body["detail"].as_str().expect("a detail");
    let said = detail.matches("did not say").count() + detail.matches("out of reach").count();
    assert_eq!(said, 1, "{detail}");
    open(&ended)
        .await
        .assert_problem(409, "not-allowed-in-state", ENDED);
    open(&ready)
        .await
        .assert_problem(503, "strategy-unavailable", "redis");
}
