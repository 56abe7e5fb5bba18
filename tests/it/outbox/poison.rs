//! An event that ends whoever carries it out: a panic, or the end of the process.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use flashlock::broker::{Consumer, Failure, InProcess};
use flashlock::flow::outbox::ATTEMPTS_MAX;
use flashlock::lab::process::Signal;
use flashlock::sale::GuardMode;
use flashlock::store::{Event, EventKind};
use redis::AsyncCommands;
use redis::streams::{StreamInfoGroupsReply, StreamReadOptions, StreamReadReply};
use serde_json::json;
use sqlx::AnyPool;

use super::{number, raw, run, shop, until};
use crate::servers;
use crate::world::{DATABASES, Service, world};

/// Panics over events of one kind.
#[derive(Debug)]
struct Panics(EventKind);

#[async_trait]
impl Consumer for Panics {
    fn name(&self) -> &'static str {
        "panics"
    }

    async fn take(&self, events: &[Event]) -> Vec<Result<(), Failure>> {
        assert!(events.iter().all(|e| e.kind != self.0), "I cannot stand it");
        vec![Ok(()); events.len()]
    }

    async fn give_back(&self, _event: &Event, why: &Failure) -> Result<(), Failure> {
        Err(why.clone())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_panics_over_one_event_gets_the_others_and_the_relay_goes_on() {
    let shop = shop("sqlite", 1).await;
    let flow = &shop.flows[0];
    let sale = shop.sale(GuardMode::Fence, 3).await;
    shop.crowd(&sale, 3).await;
    let order = flow.app.store.live_orders(&sale, None, 1).await;
    let order = order.expect("the database answers").remove(0);
    flow.cancel(&order.id).await.expect("cancelled");
    let raw = raw(flow).await;
    let broker = InProcess::new(vec![Arc::new(Panics(EventKind::Closed))]);
    let batch = flow.relay_once(&broker).await.expect("relayed");
    let batch = batch.expect("some were due");
    assert_eq!((batch.published, batch.retried), (3, 1));
    for _ in 2..=ATTEMPTS_MAX {
        run(
            &raw,
            "UPDATE outbox SET next_at = 0 WHERE published_at IS NULL",
        )
        .await;
        flow.relay_once(&broker).await.expect("relayed");
    }
    let dead = flow.dead_events(0, 10).await.expect("listed");
    assert_eq!(dead.len(), 1, "{dead:?}");
    assert!(dead[0].last_error.contains("panicked"), "{dead:?}");
}

/// Its relay is killed in the middle of every delivery: the row is claimed and never settled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_that_ends_its_relay_each_time_becomes_a_dead_letter_and_takes_no_other_with_it() {
    for database in DATABASES {
        let shop = shop(database, 1).await;
        let flow = &shop.flows[0];
        let sale = shop.sale(GuardMode::Fence, 3).await;
        shop.crowd(&sale, 3).await;
        let raw = raw(flow).await;
        let broker = InProcess::new(vec![Arc::new(Panics(EventKind::Paid))]);
        // The relay that has all three ends, and its lease with it.
        let none = Duration::ZERO;
        let claimed = flow.app.store.claim_events(100, none).await;
        let poison = claimed.expect("claimed").rows;
        assert_eq!(poison.len(), 3, "{database}");
        let poison = poison[0].row;
        let mut ended = 1;
        let mut delivered = 0;
        // Each further relay is ended by this one row and settles any other.
        while ended < ATTEMPTS_MAX {
            let claimed = flow.app.store.claim_events(100, none).await;
            let claimed = claimed.expect("claimed");
            assert_eq!(claimed.rows.len(), 1, "{database}");
            let row = claimed.rows[0].row;
            if row == poison {
                ended += 1;
            } else {
                let settled = flow.app.store.settle_published(claimed.token, &[row]).await;
                delivered += settled.expect("settled");
            }
        }
        assert_eq!(delivered, 2, "{database}: they waited for the poison");
        // The relay that comes now is not given it any more.
        let batch = flow.relay_once(&broker).await.expect("relayed");
        assert_eq!(batch.expect("it was due").dead, 1, "{database}");
        let letters = flow.dead_events(0, 10).await.expect("listed");
        assert_eq!(letters.len(), 1, "{database}: {letters:?}");
        assert_eq!(letters[0].row, poison, "{database}");
        assert!(letters[0].last_error.contains("lapsed"), "{letters:?}");
        let left = number(
            &raw,
            "SELECT COUNT(*) FROM outbox WHERE published_at IS NULL",
        );
        assert_eq!(left.await, 1, "{database}");
    }
}

/// An entry that consumers took again and again and never acknowledged, before another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_that_ends_its_consumers_is_buried_and_the_next_is_carried_out() {
    let redis = servers::redis();
    let url = world().database("sqlite").await;
    let set = |name: &str, value: &str| (format!("FLASHLOCK_{name}"), value.to_string());
    let env = [
        set("DATABASE_URL", &url),
        set("REDIS_URL", &redis.url()),
        set("ROLES", "api,relay"),
    ];
    let first = Service::start(&env).await;
    let sale = first
        .api
        .open(json!({"strategy": "redis-lua", "skus": [{"sku": "phone", "stock": 3}]}))
        .await;
    let client = redis::Client::open(redis.url()).expect("a URL");
    let mut con = client
        .get_multiplexed_async_connection()
        .await
        .expect("redis answers");
    let raw = AnyPool::connect(&url).await.expect("the database answers");
    assert_eq!(
        first.api.buy(&sale, "u", "k", &[("phone", 1)]).await.status,
        201
    );
    let taken = "SELECT COUNT(*) FROM inbox";
    until("the first is carried out", || async {
        (number(&raw, taken).await == 1).then_some(())
    })
    .await;
    first.signal(Signal::KILL);
    let keys: Vec<String> = con.keys("flashlock:events:*").await.expect("an answer");
    let stream = keys.first().expect("a stream").clone();
    let group = "gate-mirror";

    // As the relay writes it, for the group to be read: the entry is given out six times, each time
    // to a consumer that is gone.
    let all: StreamReadReply = con
        .xread_options(&[&stream], &["0"], &StreamReadOptions::default())
        .await
        .expect("read");
    let written: Vec<(String, String)> = all.keys[0].ids[0]
        .map
        .iter()
        .map(|(name, value)| {
            let value: String = redis::from_redis_value(value.clone()).expect("a text");
            (name.clone(), value)
        })
        .collect();
    let poison: String = con.xadd(&stream, "*", &written).await.expect("added");
    let other: String = con.xadd(&stream, "*", &written).await.expect("added");
    run(&raw, "DELETE FROM inbox").await;
    let options = StreamReadOptions::default().group(group, "gone").count(1);
    let _given: StreamReadReply = con
        .xread_options(&[&stream], &[">"], &options)
        .await
        .expect("read");
    let () = redis::cmd("XCLAIM")
        .arg(&[&stream, group, "gone", "0", &poison])
        .arg(&["IDLE", "60000", "RETRYCOUNT", "5", "JUSTID"])
        .query_async(&mut con)
        .await
        .expect("claimed");

    let second = Service::start(&env).await;
    let dead = until("the entry is a dead letter", || async {
        let answer = second.api.get("/v1/outbox/dead").await;
        answer.body["dead"].as_array()?.first().cloned()
    })
    .await;
    let why = dead["last_error"].as_str().expect("a text");
    assert!(why.contains("never came to an end"), "{dead}");
    until("the entry behind it is carried out", || async {
        let groups: StreamInfoGroupsReply = con.clone().xinfo_groups(&stream).await.ok()?;
        let group = groups.groups.first()?;
        (group.pending == 0 && group.last_delivered_id == other).then_some(())
    })
    .await;
    assert_eq!(number(&raw, taken).await, 1);
    second.signal(Signal::TERM);
}
