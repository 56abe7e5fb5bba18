//! A service is started again in mid-sale, with events still to be delivered: does a warm-up put
//! sold stock back?

use serde_json::Value;

use crate::boundary::{buy, phones, post, until_at_rest};
use crate::gate::server::RedisServer;
use crate::soak::laws::Ground;
use crate::world::{Service, world};

const QUEUED: &str = "SELECT COUNT(*) FROM outbox WHERE activity_id = $1 AND published_at IS NULL";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_warm_up_in_mid_sale_puts_no_sold_unit_back() {
    let database = world().database("postgres").await;
    let everysec = ["--appendonly", "yes", "--appendfsync", "everysec"];
    let mut redis = RedisServer::start(&everysec).await;
    let first = Service::start(&post(&database, &redis.url(), "api")).await;
    let sale = first.api.open(phones(3)).await;
    let ground = Ground::open(sale.parse().expect("an id"), &database, &redis.url()).await;
    for user in ["alice", "bob"] {
        let bought = buy(&first.api, &sale, user, "k").await;
        assert_eq!(bought.status, 201, "{bought:?}");
    }
    assert_eq!(ground.number(QUEUED).await, 2);
    first.kill().await;
    redis.kill();
    redis.start_again().await;
    let again = Service::start(&post(&database, &redis.url(), "api,relay,sweeper")).await;
    for _ in 0..2 {
        for step in ["warm-up", "open"] {
            let path = format!("/v1/activities/{sale}/{step}");
            let done = again.api.post(&path, Value::Null).await;
            // It is open already; whatever it answers, nothing is put back.
            assert!([200, 409].contains(&done.status), "{step}: {done:?}");
        }
    }
    let carol = buy(&again.api, &sale, "carol", "k").await;
    assert_eq!(carol.status, 201, "{carol:?}");
    let dave = buy(&again.api, &sale, "dave", "k").await;
    dave.assert_problem(409, "sold-out", "0 of phone are left");
    until_at_rest(&ground).await;
}
