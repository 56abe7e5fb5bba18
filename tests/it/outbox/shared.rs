//! Do deployments that share a Redis keep their events apart?

use flashlock::lab::process::Signal;
use serde_json::json;
use sqlx::AnyPool;

use super::{number, until};
use crate::servers;
use crate::world::{Service, Start, world};

/// Enough that one of two readers of one stream would get some of the other's.
const ORDERS: i64 = 12;

/// The default database is the same URL in every directory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_databases_of_one_url_do_not_take_each_others_events() {
    let redis = servers::redis();
    let start = || {
        let dir = world().directory();
        let env = vec![("FLASHLOCK_REDIS_URL".to_string(), redis.url())];
        let start = Start {
            env,
            dir: Some(dir.clone()),
            ..Start::default()
        };
        async move { (dir, Service::start_with(&start).await.expect("it starts")) }
    };
    let ((dir, mine), (_, other)) = tokio::join!(start(), start());
    let sale = mine
        .api
        .open(json!({"strategy": "redis-lua", "skus": [{"sku": "phone", "stock": ORDERS}]}))
        .await;
    for n in 0..ORDERS {
        let user = format!("u-{n}");
        let bought = mine.api.buy(&sale, &user, "k", &[("phone", 1)]).await;
        assert_eq!(bought.status, 201, "{bought:?}");
    }
    sqlx::any::install_default_drivers();
    let url = format!("sqlite:{}", dir.join("flashlock.db").display());
    let raw = AnyPool::connect(&url).await.expect("the database answers");
    until("each event has taken effect here", || async {
        let taken = number(&raw, "SELECT COUNT(*) FROM inbox").await;
        (taken == ORDERS).then_some(())
    })
    .await;
    // Its log says so when it meets what is not its own.
    let said = other.log();
    assert!(!said.contains("there is no activity"), "{said}");
    for service in [&mine, &other] {
        service.signal(Signal::TERM);
    }
}
