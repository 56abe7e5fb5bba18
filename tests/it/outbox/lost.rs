//! Are events delivered that were published, settled, and then lost with their Redis?

use std::sync::Arc;
use std::time::Duration;

use flashlock::broker::{Broker, RedisStreams, Waiting};
use flashlock::flow::Flow;
use flashlock::flow::mirror::{GATE_MIRROR, GateMirror};
use flashlock::sale::Booking;
use sqlx::AnyPool;
use tokio_util::sync::CancellationToken;

use super::gate::lua_flow;
use super::{number, raw, until};
use crate::embedded::purchase;
use crate::gate::server::RedisServer;
use crate::world::DATABASES;

/// Everything that was published is old enough to be looked at.
const AT_ONCE: Duration = Duration::ZERO;
const BUYERS: [&str; 3] = ["alice", "bob", "carol"];

/// A sale whose events go through a Redis of their own, and are not read yet.
struct Published {
    flow: Arc<Flow>,
    redis: RedisServer,
    broker: Arc<RedisStreams>,
    raw: AnyPool,
}

impl Published {
    async fn stand(database: &str) -> Self {
        let (flow, sale) = lua_flow(database, Booking::Sync).await;
        for user in BUYERS {
            flow.purchase(purchase(&sale, user)).await.expect("sold");
        }
        let redis = RedisServer::start(&["--appendonly", "yes", "--appendfsync", "always"]).await;
        let mirror = Arc::new(GateMirror::new(Arc::clone(&flow)));
        let stream = "events".to_string();
        let broker = RedisStreams::new(&redis.url(), stream, vec![mirror]).expect("a broker");
        let this = Self {
            raw: raw(&flow).await,
            broker: Arc::new(broker),
            flow,
            redis,
        };
        assert_eq!(this.published().await, 3);
        this
    }

    /// Publishes what is due; how many events that were.
    async fn published(&self) -> u64 {
        let relayed = self.flow.relay_once(&*self.broker).await.expect("relayed");
        relayed.map_or(0, |relayed| relayed.published)
    }

    async fn lost(&self) -> u64 {
        let lost = self.flow.return_lost(&*self.broker, AT_ONCE).await;
        lost.expect("the database answers")
    }

    async fn with_effect(&self) -> i64 {
        number(&self.raw, "SELECT COUNT(*) FROM inbox").await
    }

    /// Lets the consumer read until all three events have had their effect.
    async fn deliver(&self) {
        let stop = CancellationToken::new();
        let (broker, stops) = (Arc::clone(&self.broker), stop.clone());
        let delivery = tokio::spawn(async move { broker.deliver(stops).await });
        until("each event has had its effect", || async {
            (self.with_effect().await == 3).then_some(())
        })
        .await;
        until("nothing waits", || async {
            let waiting = self.broker.waiting(GATE_MIRROR).await;
            (waiting == Ok(Waiting::Nothing)).then_some(())
        })
        .await;
        stop.cancel();
        delivery.await.expect("it ends");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_flush_took_before_it_was_read_is_published_again_and_nothing_else() {
    for database in DATABASES {
        let sale = Published::stand(database).await;
        assert_eq!(sale.lost().await, 0, "{database}: they wait in the stream");
        let flush = redis::cmd("FLUSHALL");
        let flushed = flush.query_async::<()>(&mut sale.redis.con().await).await;
        flushed.expect("flushed");
        assert_eq!(sale.published().await, 0, "{database}: they are settled");
        assert_eq!(sale.lost().await, 3, "{database}");
        assert_eq!(sale.published().await, 3, "{database}");
        sale.deliver().await;
        assert_eq!(
            sale.lost().await,
            0,
            "{database}: they have had their effect"
        );
        // Looked at once: what is gone by now has had its effect.
        let checked =
            "SELECT COUNT(*) FROM outbox o, delivery d WHERE o.published_at > d.checked_until";
        assert_eq!(number(&sale.raw, checked).await, 0, "{database}");
        assert_eq!(sale.published().await, 0, "{database}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_cut_history_took_is_published_again_and_the_rest_has_its_effect_once() {
    let mut sale = Published::stand("postgres").await;
    sale.redis.kill();
    sale.redis.tear_at_the_last(&["xadd", "XADD"]);
    sale.redis.start_again().await;
    // Nobody knows before those that are left have been read.
    until("it answers", || async {
        let waiting = sale.broker.waiting(GATE_MIRROR).await;
        matches!(waiting, Ok(Waiting::Since(_))).then_some(())
    })
    .await;
    assert_eq!(sale.lost().await, 0);
    let stop = CancellationToken::new();
    let (broker, stops) = (Arc::clone(&sale.broker), stop.clone());
    let delivery = tokio::spawn(async move { broker.deliver(stops).await });
    until("two have had their effect", || async {
        (sale.with_effect().await == 2).then_some(())
    })
    .await;
    until("the third is found", || async {
        (sale.lost().await == 1).then_some(())
    })
    .await;
    stop.cancel();
    delivery.await.expect("it ends");
    assert_eq!(sale.published().await, 1);
    sale.deliver().await;
    assert_eq!(sale.lost().await, 0);
}

/// The service's own relay, which looks by itself: in the soak. Here, that a relay does not take
/// for lost what is only waiting for its turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_that_waits_is_not_lost_however_long() {
    let sale = Published::stand("sqlite").await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    let lost = sale
        .flow
        .return_lost(&*sale.broker, Duration::from_millis(10))
        .await;
    assert_eq!(lost.expect("the database answers"), 0);
    sale.deliver().await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    let lost = sale
        .flow
        .return_lost(&*sale.broker, Duration::from_millis(10))
        .await;
    assert_eq!(lost.expect("the database answers"), 0);
}
