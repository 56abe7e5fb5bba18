//! Does the gate of `redis-lua` hear from the outbox what it was not told?

use std::sync::Arc;

use flashlock::app::App;
use flashlock::config::Config;
use flashlock::flow::Flow;
use flashlock::gate::Gate;
use flashlock::order::CloseReason;
use flashlock::sale::{ActivityId, GuardMode, StrategyName};
use tokio_util::sync::CancellationToken;

use super::{number, raw, run, until};
use crate::embedded::{activity, purchase};
use crate::world::world;

/// A flow on the lab's Redis, and its open sale by `redis-lua`.
async fn lua_flow(database: &str) -> (Arc<Flow>, ActivityId) {
    let config = Config {
        database_url: world().database(database).await,
        redis_url: world().lab.redis_url(),
        database_connections_max: 8,
        ..Config::default()
    };
    let app = App::open(config).await.expect("the database answers");
    let flow = Flow::new(app);
    let mut activity = activity(GuardMode::Fence, 5);
    activity.strategy = StrategyName::new("redis-lua");
    flow.create(&activity).await.expect("a new activity");
    flow.warm_up(&activity.id).await.expect("warmed up");
    flow.open(&activity.id).await.expect("opened");
    (flow, activity.id)
}

/// The gate is made to forget what it was told; the events tell it again, late and out of order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_gate_is_told_through_the_stream_what_a_dead_process_left_out() {
    let database = "postgres";
    let (flow, sale) = lua_flow(database).await;
    let url = world().lab.redis_url().expect("redis runs");
    let gate = Gate::new(&url).expect("a gate");
    let live = flow.purchase(purchase(&sale, "live")).await;
    live.expect("sold");
    let closed = flow.purchase(purchase(&sale, "closed")).await;
    closed.expect("sold");
    let rid = purchase(&sale, "closed").rid();
    let order = flow
        .app
        .store
        .order(rid)
        .await
        .expect("read")
        .expect("an order");
    // Closed in the database alone: its process died before it told the gate.
    let activity = flow
        .app
        .store
        .activity(&sale)
        .await
        .expect("read")
        .expect("it is there");
    let why = CloseReason::User;
    flashlock::deduct::close(
        &flow.app.store,
        &activity,
        std::slice::from_ref(&order.id),
        why,
    )
    .await;
    let counts = async || {
        let audit = gate.audit(&sale).await.expect("audited").expect("warmed");
        let phone = &audit.ledgers[0];
        (phone.available, phone.held, phone.sold)
    };
    assert_eq!(counts().await, (3, 0, 2));
    let stop = CancellationToken::new();
    let relays = [
        tokio::spawn(Arc::clone(&flow).relay(stop.clone())),
        tokio::spawn(Arc::clone(&flow).relay(stop.clone())),
    ];
    let raw = raw(&flow).await;
    let taken = "SELECT COUNT(*) FROM inbox WHERE consumer = 'gate-mirror'";
    until("all has taken effect", || async {
        (number(&raw, taken).await == 3).then_some(())
    })
    .await;
    assert_eq!(counts().await, (4, 0, 1));
    // Once more, all of it, the oldest last.
    run(
        &raw,
        "UPDATE outbox SET published_at = NULL, next_at = 1000 - id",
    )
    .await;
    let unpublished = "SELECT COUNT(*) FROM outbox WHERE published_at IS NULL";
    until("all is published again", || async {
        (number(&raw, unpublished).await == 0).then_some(())
    })
    .await;
    stop.cancel();
    for relay in relays {
        relay.await.expect("it ends");
    }
    assert_eq!(counts().await, (4, 0, 1));
    assert_eq!(number(&raw, taken).await, 3);
}
