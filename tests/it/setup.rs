//! Which set-ups of the servers is a service not started with, and which is it started with and warns?

use std::time::Duration;

use flashlock::strategy::zookeeper::granted_session_timeout;
use serde_json::{Value, json};

use crate::gate::server::RedisServer;
use crate::servers::Server;
use crate::world::{Api, Refused, Service, Start, world};

/// Longer than anything here takes on a loaded machine.
const DEADLINE: Duration = Duration::from_secs(30);
const EVICTING: [&str; 2] = ["--maxmemory-policy", "allkeys-lru"];

async fn start(options: &[(&str, &str)]) -> Result<Service, Refused> {
    let url = world().database("sqlite").await;
    let mut env = vec![("FLASHLOCK_DATABASE_URL".to_string(), url)];
    let options = options.iter();
    env.extend(options.map(|(name, value)| (format!("FLASHLOCK_{name}"), value.to_string())));
    Service::start_with(&Start {
        env,
        ..Start::default()
    })
    .await
}

async fn refused(options: &[(&str, &str)], says: &[&str]) {
    let refused = match start(options).await {
        Ok(service) => panic!("it listens on {} with {options:?}", service.api.url),
        Err(refused) => refused,
    };
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(!refused.said.contains("panicked"), "{refused:?}");
    for says in ["this set-up is refused"].iter().chain(says) {
        assert!(refused.said.contains(says), "{says:?}: {}", refused.said);
    }
}

async fn started(options: &[(&str, &str)]) -> Service {
    match start(options).await {
        Ok(service) => service,
        Err(refused) => panic!("it does not start with {options:?}: {}", refused.said),
    }
}

async fn strategy(api: &Api, name: &str) -> Value {
    let list = api.get("/v1/strategies").await;
    let all = list.body["strategies"].as_array().expect("a list").clone();
    let found = all.into_iter().find(|s| s["name"] == name);
    found.expect("every strategy is listed")
}

/// Waits until the reason why this strategy is not available says `says`; empty: it is available.
async fn until_unavailable_because(api: &Api, name: &str, says: &str) {
    let deadline = flashlock::clock::now() + DEADLINE;
    loop {
        let found = strategy(api, name).await;
        let because = found["unavailable_because"].as_str().unwrap_or_default();
        let is_so = match says {
            "" => found["available"] == true,
            says => because.contains(says),
        };
        if is_so {
            return;
        }
        assert!(flashlock::clock::now() < deadline, "{says:?}: {found}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_server_of_the_lab_is_set_up_as_it_should_be() {
    let url = world().database("sqlite").await;
    let service = Service::start(&world().everything(&url)).await;
    let list = service.api.get("/v1/strategies").await;
    for strategy in list.body["strategies"].as_array().expect("a list") {
        assert_eq!(strategy["available"], true, "{strategy}");
        assert_eq!(strategy["warnings"], json!([]), "{strategy}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_evicts_is_refused_where_locks_or_the_gate_live() {
    let evicting = RedisServer::start(&EVICTING).await;
    let says = ["allkeys-lru", "set it to noeviction"];
    refused(
        &[("REDIS_URL", &evicting.url())],
        &[&says[..], &["redis_url"]].concat(),
    )
    .await;
    let (a, b) = (RedisServer::start(&[]).await, RedisServer::start(&[]).await);
    let nodes = [a.url(), b.url(), evicting.url()].join(",");
    refused(
        &[("REDLOCK_URLS", &nodes)],
        &[&says[..], &["RedLock node"]].concat(),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_redis_behind_two_redlock_urls_is_refused() {
    let (a, b) = (RedisServer::start(&[]).await, RedisServer::start(&[]).await);
    // The same server by another name: the addresses differ, and the run_id does not.
    let alias = a.url().replace("127.0.0.1", "localhost");
    let nodes = [a.url(), alias, b.url()].join(",");
    let says = ["would count twice", "localhost", "name independent servers"];
    refused(&[("REDLOCK_URLS", &nodes)], &says).await;
    let c = RedisServer::start(&[]).await;
    let nodes = [a.url(), b.url(), c.url()].join(",");
    let service = started(&[("REDLOCK_URLS", &nodes)]).await;
    assert_eq!(strategy(&service.api, "redlock").await["available"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_forgets_at_a_restart_is_warned_about() {
    let forgetful = RedisServer::start(&["--appendonly", "no"]).await;
    let service = started(&[("REDIS_URL", &forgetful.url())]).await;
    for name in ["redis-lua", "redis-set-nx"] {
        let warned = strategy(&service.api, name).await;
        assert_eq!(warned["available"], true, "{warned}");
        let warning = warned["warnings"][0].as_str().unwrap_or_default();
        for says in ["appendonly off", "set appendonly yes"] {
            assert!(warning.contains(says), "{warned}");
            assert!(service.log().contains(says), "{}", service.log());
        }
    }
    let other = strategy(&service.api, "db-unique-insert").await;
    assert_eq!(other["warnings"], json!([]));
    let lasting = RedisServer::start(&["--appendonly", "yes"]).await;
    let service = started(&[("REDIS_URL", &lasting.url())]).await;
    let quiet = strategy(&service.api, "redis-lua").await;
    assert_eq!(quiet["warnings"], json!([]), "{quiet}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_zookeeper_that_changes_the_session_timeout_is_refused() {
    // 2 to 20 ticks: 6 to 60 s, and 0.2 to 2 s. Four seconds are asked for.
    for (tick_ms, granted) in [(3_000, "sessions of 6s"), (100, "sessions of 2s")] {
        let server = tokio::task::spawn_blocking(move || Server::zookeeper_ticking(tick_ms));
        let server = server.await.expect("it starts");
        // It listens before it serves.
        let deadline = flashlock::clock::now() + DEADLINE;
        while let Err(why) = granted_session_timeout(&server.address()).await {
            assert!(flashlock::clock::now() < deadline, "{why}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let says = [
            granted,
            "4s are asked for",
            "set tickTime to between 200ms and 2s",
        ];
        refused(&[("ZOOKEEPER", &server.address())], &says).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_away_at_the_start_is_judged_when_it_is_there() {
    let mut redis = RedisServer::start(&EVICTING).await;
    redis.kill();
    let service = started(&[("REDIS_URL", &redis.url()), ("ZOOKEEPER", "127.0.0.1:1")]).await;
    let api = &service.api;
    // It serves what it can meanwhile.
    let sale =
        |strategy: &str| json!({"strategy": strategy, "skus": [{"sku": "phone", "stock": 3}]});
    let activity = api.open(sale("db-conditional-update")).await;
    let booked = api.buy(&activity, "alice", "k", &[("phone", 1)]).await;
    assert_eq!(booked.status, 201, "{booked:?}");
    assert!(
        service.log().contains("redis_url is away"),
        "{}",
        service.log()
    );

    redis.start_again().await;
    for name in ["redis-lua", "redis-set-nx"] {
        until_unavailable_because(api, name, "set it to noeviction").await;
    }
    let activity = api.create(sale("redis-lua")).await;
    let warm_up = format!("/v1/activities/{activity}/warm-up");
    let answer = api.post(&warm_up, Value::Null).await;
    answer.assert_problem(503, "strategy-unavailable", "allkeys-lru");

    // Put right, it is used without a restart of the service.
    let mut set = redis::cmd("CONFIG");
    set.arg(&["SET", "maxmemory-policy", "noeviction"]);
    set.query_async::<()>(&mut redis.con().await)
        .await
        .expect("set");
    until_unavailable_because(api, "redis-lua", "").await;
    assert_eq!(api.post(&warm_up, Value::Null).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_shorter_than_three_node_timeouts_is_refused_for_redlock() {
    let service = started(&[]).await;
    let api = &service.api;
    let sale = |strategy: &str, ttl_ms: i64| {
        json!({"strategy": strategy, "skus": [{"sku": "phone", "stock": 3}],
               "lock": {"ttl_ms": ttl_ms}})
    };
    let short = api.post("/v1/activities", sale("redlock", 749)).await;
    let says = "lock.ttl_ms is 749; for redlock it must be at least 750";
    short.assert_problem(400, "invalid-request", says);
    api.create(sale("redlock", 750)).await;
    let other = api.create(sale("db-unique-insert", 100)).await;
    let change = api.request(
        reqwest::Method::PUT,
        &format!("/v1/activities/{other}/strategy"),
    );
    let change = change.body(json!({"strategy": "redlock"}).to_string());
    let answer = api.send(change).await.expect("an answer");
    answer.assert_problem(400, "invalid-request", "lock.ttl_ms is 100; for redlock");
}
