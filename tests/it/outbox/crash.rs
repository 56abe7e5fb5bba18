//! A relay that is paused past its lease, or killed between publishing and settling.

use std::time::Duration;

use flashlock::lab::process::Signal;
use redis::AsyncCommands;
use serde_json::json;
use sqlx::AnyPool;

use super::proxy::{Keep, Proxy};
use super::{number, until};
use crate::servers;
use crate::world::{DATABASES, Service, world};

/// What happens to the relay that has claimed the event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// SIGSTOP before its XADD is out, SIGCONT after another has settled the row.
    Paused,
    /// SIGKILL after its XADD, before the answer.
    Killed,
}

/// One event, whose relay meets `fate`; another relay delivers it.
async fn outlived(fate: Fate, database: &str) {
    let keep = match fate {
        Fate::Paused => Keep::Request,
        Fate::Killed => Keep::Answer,
    };
    let redis = servers::redis();
    let mut proxy = Proxy::before(&redis.url(), keep).await;
    let url = world().database(database).await;
    let env = |redis_url: &str| {
        let set = |name: &str, value: &str| (format!("FLASHLOCK_{name}"), value.to_string());
        vec![set("DATABASE_URL", &url), set("REDIS_URL", redis_url)]
    };
    let first = Service::start(&env(&proxy.url)).await;
    let sale = first
        .api
        .open(json!({"strategy": "redis-lua", "skus": [{"sku": "phone", "stock": 3}]}))
        .await;
    let bought = first.api.buy(&sale, "u", "k", &[("phone", 1)]).await;
    assert_eq!(bought.status, 201, "{bought:?}");
    proxy.kept().await;
    match fate {
        Fate::Paused => first.signal(Signal::STOP),
        Fate::Killed => first.kill().await,
    }
    let raw = AnyPool::connect(&url).await.expect("the database answers");
    let claimed =
        "SELECT COUNT(*) FROM outbox WHERE lease_token IS NOT NULL AND published_at IS NULL";
    assert_eq!(number(&raw, claimed).await, 1, "{fate:?} {database}");

    let second = Service::start(&env(&redis.url())).await;
    let published = "SELECT COUNT(*) FROM outbox WHERE published_at IS NOT NULL";
    until("the other relay has published it", || async {
        (number(&raw, published).await == 1).then_some(())
    })
    .await;
    let settled_at = number(&raw, "SELECT published_at FROM outbox").await;
    proxy.go_on();
    if fate == Fate::Paused {
        first.signal(Signal::CONT);
        until("the paused relay finds its lease gone", || async {
            first
                .log()
                .contains("lease of these outbox rows")
                .then_some(())
        })
        .await;
    }
    // The lease that lapsed is the one attempt.
    let now = "SELECT published_at FROM outbox WHERE attempts = 1 AND lease_token IS NULL";
    assert_eq!(number(&raw, now).await, settled_at, "{fate:?} {database}");

    // Both copies are in the stream, both are done with, and one had an effect.
    let client = redis::Client::open(redis.url()).expect("a URL");
    let con = client
        .get_multiplexed_async_connection()
        .await
        .expect("redis answers");
    let keys: Vec<String> = con
        .clone()
        .keys("flashlock:events:*")
        .await
        .expect("an answer");
    assert_eq!(keys.len(), 1, "{keys:?}");
    let (con, stream) = (&con, &keys[0]);
    until("both deliveries are done with", || async move {
        let mut con = con.clone();
        let len: usize = con.xlen(stream).await.ok()?;
        let groups: redis::streams::StreamInfoGroupsReply = con.xinfo_groups(stream).await.ok()?;
        let group = groups.groups.first()?;
        (len == 2 && group.pending == 0 && group.lag == Some(0)).then_some(())
    })
    .await;
    assert_eq!(number(&raw, "SELECT COUNT(*) FROM inbox").await, 1);
    let gate = flashlock::gate::Gate::new(&redis.url()).expect("a gate");
    let id = sale.parse().expect("an id");
    let audit = gate.audit(&id).await.expect("audited").expect("warmed");
    let phone = &audit.ledgers[0];
    assert_eq!((phone.available, phone.held, phone.sold), (2, 0, 1));
    assert!(
        second.stop(Duration::from_secs(10)).await,
        "{}",
        second.log()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_paused_past_its_lease_settles_nothing_and_doubles_no_effect() {
    tokio::join!(
        outlived(Fate::Paused, DATABASES[0]),
        outlived(Fate::Paused, DATABASES[1]),
        outlived(Fate::Paused, DATABASES[2]),
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_killed_relay_had_published_is_delivered_again_with_one_effect() {
    tokio::join!(
        outlived(Fate::Killed, DATABASES[0]),
        outlived(Fate::Killed, DATABASES[1]),
        outlived(Fate::Killed, DATABASES[2]),
    );
}
