//! Redis is killed and comes back without its last writes, or without any: is it noticed before it
//! sells?

use flashlock::keys::GateKeys;
use serde_json::{Value, json};

use crate::boundary::{buy, crowd, phones, post, until_at_rest};
use crate::gate::server::RedisServer;
use crate::soak::laws::Ground;
use crate::world::{Service, world};

/// What Redis comes back with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Back {
    WithoutItsLastWrites,
    Empty,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_lost_its_last_writes_sells_nothing_twice_and_blocks_nobody() {
    loses(Back::WithoutItsLastWrites).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_lost_everything_sells_nothing_twice_and_blocks_nobody() {
    loses(Back::Empty).await;
}

async fn loses(back: Back) {
    let everysec = ["--appendonly", "yes", "--appendfsync", "everysec"];
    let mut redis = RedisServer::start(&everysec).await;
    let database = world().database("postgres").await;
    let env = post(&database, &redis.url(), "api,relay,sweeper");
    let (one, other) = tokio::join!(Service::start(&env), Service::start(&env));
    let sale = one.api.open(phones(6)).await;
    let ground = Ground::open(sale.parse().expect("an id"), &database, &redis.url()).await;
    let empty = tempfile::tempdir().expect("a directory");
    for user in ["alice", "bob", "carol"] {
        let bought = buy(&one.api, &sale, user, "k").await;
        assert_eq!(bought.status, 201, "{bought:?}");
    }
    until_at_rest(&ground).await;
    let older = redis.history();
    // What is lost: an order, and what a cancelled one gave back.
    let dave = buy(&other.api, &sale, "dave", "k").await;
    assert_eq!(dave.status, 201, "{dave:?}");
    let alice = buy(&one.api, &sale, "alice", "k").await;
    let cancel = format!("/v1/orders/{}/cancel", alice.order_id());
    assert_eq!(one.api.post(&cancel, Value::Null).await.status, 200);
    until_at_rest(&ground).await;
    redis.kill();
    let away = one.api.buy(&sale, "early", "k", &[("phone", 1)]).await;
    assert_eq!(away.status, 503, "{away:?}");
    redis.go_back_to(match back {
        Back::WithoutItsLastWrites => &older,
        Back::Empty => &empty,
    });
    redis.start_again().await;

    // Three of six are left, whoever asks first and through whichever process.
    assert_eq!(
        crowd(&[&one.api, &other.api], &sale, 10).await,
        3,
        "{back:?}"
    );
    for (user, api) in [("bob", &one.api), ("dave", &other.api)] {
        let again = buy(api, &sale, user, "k").await;
        assert_eq!(again.status, 200, "{back:?}: {again:?}");
        let other_key = buy(api, &sale, user, "k2").await;
        other_key.assert_problem(409, "already-purchased", &again.order_id());
    }
    let alice = buy(&one.api, &sale, "alice", "k2").await;
    alice.assert_problem(409, "sold-out", "0 of phone are left");
    until_at_rest(&ground).await;
    let dave = format!("/v1/orders/{}/cancel", dave.order_id());
    assert_eq!(other.api.post(&dave, Value::Null).await.status, 200);
    tokio::time::sleep(std::time::Duration::from_millis(250)).await;
    let alice = buy(&one.api, &sale, "alice", "k3").await;
    assert_eq!(alice.status, 201, "{back:?}: {alice:?}");
    until_at_rest(&ground).await;
}

/// The file ends inside a script's MULTI. Redis starts without that script, and writes on behind the
/// half of it: its next start carries the half out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_script_in_a_torn_history_is_counted_anew_before_it_sells() {
    let everysec = ["--appendonly", "yes", "--appendfsync", "everysec"];
    let mut redis = RedisServer::start(&everysec).await;
    let database = world().database("postgres").await;
    let env = post(&database, &redis.url(), "api,relay,sweeper");
    let service = Service::start(&env).await;
    let api = &service.api;
    let mut wares = phones(6);
    wares["skus"] = json!([{"sku": "phone", "stock": 6}, {"sku": "case", "stock": 3}]);
    let sale = api.open(wares).await;
    let ground = Ground::open(sale.parse().expect("an id"), &database, &redis.url()).await;
    let case = api.buy_surely(&sale, "alice", "k", &[("case", 1)]).await;
    assert_eq!(case.status, 201, "{case:?}");
    until_at_rest(&ground).await;
    redis.kill();
    // Of alice's hold everything is written but the sequence number. The order is live, so it is held
    // again; nothing writes the case's pending units any more.
    let keys = GateKeys::of(&ground.id);
    redis.tear_between(&keys.user, &keys.meta);
    for user in ["bob", "carol"] {
        redis.start_again().await;
        let bought = buy(api, &sale, user, "k").await;
        assert_eq!(bought.status, 201, "{bought:?}");
        until_at_rest(&ground).await;
        redis.kill();
    }
    redis.start_again().await;
    assert_eq!(crowd(&[api], &sale, 6).await, 4);
    until_at_rest(&ground).await;
    let counters = api.get("/metrics").await.body.to_string();
    let recounted = counters.contains("flashlock_gate_recounted_total");
    assert!(recounted, "no half of a script came back: {counters}");
}
