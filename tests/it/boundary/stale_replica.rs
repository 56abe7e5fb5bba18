//! A replica that had not heard of the last sales becomes the Redis that the gate is on.

use redis::aio::MultiplexedConnection;
use serde_json::Value;

use crate::boundary::{buy, crowd, phones, post, until, until_at_rest};
use crate::gate::server::RedisServer;
use crate::soak::laws::Ground;
use crate::tap::{Act, Tap};
use crate::world::{Service, world};

const EPOCH: &str = "SELECT gate_epoch FROM activity WHERE id = $1";

/// Who is the Redis of the gate after the failover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    /// The replica. It does not know the stamped script.
    TheReplica,
    /// The old one, with the replica's data: it keeps its run_id and its scripts.
    TheOldOne,
}

async fn replicate(replica: &mut MultiplexedConnection, of: &RedisServer) {
    let address = of.address();
    let (host, port) = address.split_once(':').expect("host and port");
    redis::cmd("REPLICAOF")
        .arg(host)
        .arg(port)
        .query_async::<()>(replica)
        .await
        .expect("told");
    until("the replica has it all", || {
        let mut replica = replica.clone();
        async move {
            let mut ask = redis::cmd("INFO");
            let info: String = ask
                .arg("replication")
                .query_async(&mut replica)
                .await
                .expect("told");
            info.contains("master_link_status:up") && !info.contains("sync_in_progress:1")
        }
    })
    .await;
}

async fn promote(replica: &mut MultiplexedConnection) {
    let mut alone = redis::cmd("REPLICAOF");
    alone.arg("NO").arg("ONE");
    alone.query_async::<()>(replica).await.expect("told");
}

async fn fails_over(after: After) {
    let (old, replica) = (RedisServer::start(&[]).await, RedisServer::start(&[]).await);
    let database = world().database("postgres").await;
    let tap = Tap::before(&old.address(), |_| Act::Pass).await;
    let redis = format!("redis://{}", tap.address);
    let service = Service::start(&post(&database, &redis, "api,relay,sweeper")).await;
    let api = &service.api;
    let sale = api.open(phones(5)).await;
    let ground = Ground::open(sale.parse().expect("an id"), &database, &redis).await;
    let alice = buy(api, &sale, "alice", "k").await;
    assert_eq!(alice.status, 201, "{alice:?}");
    until_at_rest(&ground).await;
    // From here on the replica hears nothing.
    let mut stale = replica.con().await;
    replicate(&mut stale, &old).await;
    promote(&mut stale).await;
    let bob = buy(api, &sale, "bob", "k").await;
    let carol = buy(api, &sale, "carol", "k").await;
    assert_eq!((bob.status, carol.status), (201, 201));
    let cancel = format!("/v1/orders/{}/cancel", alice.order_id());
    assert_eq!(api.post(&cancel, Value::Null).await.status, 200);
    until_at_rest(&ground).await;
    let epoch = ground.number(EPOCH).await;
    match after {
        After::TheReplica => tap.switch_to(&replica.address()),
        After::TheOldOne => {
            let mut old_one = old.con().await;
            replicate(&mut old_one, &replica).await;
            promote(&mut old_one).await;
        }
    }

    let booked = crowd(&[api], &sale, 8).await;
    assert_eq!(booked, 3, "{after:?}: bob's and carol's are sold");
    assert!(ground.number(EPOCH).await > epoch, "{after:?}: not fenced");
    let other_key = buy(api, &sale, "carol", "k2").await;
    other_key.assert_problem(409, "already-purchased", &carol.order_id());
    until_at_rest(&ground).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_lagging_replica_is_noticed_before_it_sells() {
    fails_over(After::TheReplica).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_took_over_stale_data_is_noticed_before_it_sells() {
    fails_over(After::TheOldOne).await;
}
