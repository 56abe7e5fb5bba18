//! Does the gate of `redis-lua` hear from the outbox what it was not told?

use std::sync::Arc;

use flashlock::app::App;
use flashlock::config::Config;
use flashlock::deduct::{self, Closed, Contention, Ending};
use flashlock::flow::{Answer, Flow};
use flashlock::gate::Gate;
use flashlock::order::{CloseReason, Fingerprint, NewOrder};
use flashlock::sale::{ActivityId, Booking, GuardMode, OrderId, Purchase, StrategyName};
use flashlock::store::Tombstone;
use tokio_util::sync::CancellationToken;

use super::{number, raw, run, until};
use crate::embedded::{activity, purchase};
use crate::world::{DATABASES, world};

/// A flow on the lab's Redis, and its open sale by `redis-lua`.
pub(super) async fn lua_flow(database: &str, booking: Booking) -> (Arc<Flow>, ActivityId) {
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
    activity.booking = booking;
    flow.create(&activity).await.expect("a new activity");
    flow.warm_up(&activity.id).await.expect("warmed up");
    flow.open(&activity.id).await.expect("opened");
    (flow, activity.id)
}

/// Closed in the database alone: its process died before it told the gate.
async fn close_untold(flow: &Flow, bought: &Purchase) {
    let store = &flow.app.store;
    let activity = store.activity(&bought.activity).await.expect("read");
    let order = OrderId {
        activity: bought.activity.clone(),
        rid: bought.rid(),
    };
    let activity = activity.expect("it is there");
    let closed = deduct::close(store, &activity, &[order], CloseReason::User).await;
    assert!(
        matches!(closed.as_slice(), [Ok(Closed::Closed)]),
        "{closed:?}"
    );
}

/// The same phone for the same user, under another key.
fn other_key(bought: &Purchase) -> Purchase {
    let key = "other".parse().expect("a key");
    let lines = bought.lines().to_vec();
    Purchase::new(bought.activity.clone(), bought.user.clone(), key, lines).expect("a purchase")
}

/// The gate keeps its user until it has heard; that is not for ever, and no order to pay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_that_has_ended_is_not_named_by_a_gate_that_has_not_heard() {
    for booking in [Booking::Sync, Booking::Async] {
        let (flow, sale) = lua_flow("postgres", booking).await;
        let stop = CancellationToken::new();
        let booker = tokio::spawn(Arc::clone(&flow).booker(stop.clone()));
        let alice = purchase(&sale, "alice");
        flow.purchase(alice.clone()).await.expect("held");
        until("her order is there", || async {
            flow.app.store.order(alice.rid()).await.expect("read")
        })
        .await;
        close_untold(&flow, &alice).await;
        let early = flow.purchase(other_key(&alice)).await.expect("an answer");
        let under_way = Ending::Busy(Contention::OtherPurchase);
        assert_eq!(early, Answer::Ended(under_way), "{booking:?}");
        let relay = tokio::spawn(Arc::clone(&flow).relay(stop.clone()));
        until("she can buy again", || async {
            let again = flow.purchase(other_key(&alice)).await;
            match again.expect("an answer") {
                Answer::Ended(Ending::Busy(Contention::OtherPurchase)) => None,
                ending => Some(ending),
            }
        })
        .await;
        until("she has an order again", || async {
            let rid = other_key(&alice).rid();
            flow.app.store.order(rid).await.expect("read")
        })
        .await;
        stop.cancel();
        relay.await.expect("it ends");
        booker.await.expect("it ends");
    }
}

/// The gate is made to forget what it was told; the events tell it again, late and out of order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_gate_is_told_through_the_stream_what_a_dead_process_left_out() {
    let database = "postgres";
    let (flow, sale) = lua_flow(database, Booking::Sync).await;
    let url = world().lab.redis_url().expect("redis runs");
    let gate = Gate::new(&url).expect("a gate");
    let live = flow.purchase(purchase(&sale, "live")).await;
    live.expect("sold");
    let closed = flow.purchase(purchase(&sale, "closed")).await;
    closed.expect("sold");
    close_untold(&flow, &purchase(&sale, "closed")).await;
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

/// The sweeper died after its row and before it told the gate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dead_sweeper_gave_up_is_given_back_by_its_event() {
    for database in DATABASES {
        let (flow, sale) = lua_flow(database, Booking::Sync).await;
        let gate = Gate::new(&world().lab.redis_url().expect("redis runs")).expect("a gate");
        let store = &flow.app.store;
        let bought = purchase(&sale, "alice");
        let hold = NewOrder {
            rid: bought.rid(),
            user: bought.user.clone(),
            fingerprint: Fingerprint::of(&bought),
            lines: bought.lines().to_vec(),
            admitted_at_ms: 1,
        };
        let stone = Tombstone {
            rid: hold.rid,
            user: hold.user.clone(),
            fingerprint: hold.fingerprint.clone(),
        };
        let activity = store.activity(&sale).await.expect("read").expect("there");
        let held = gate.reserve(&activity, &[hold]).await;
        assert!(held[0].is_ok(), "{held:?}");
        for _ in 0..2 {
            let given_up = store.insert_tombstones(&sale, std::slice::from_ref(&stone));
            given_up.await.expect("written");
        }
        let stop = CancellationToken::new();
        let relay = tokio::spawn(Arc::clone(&flow).relay(stop.clone()));
        until("it is given back", || async {
            let audit = gate.audit(&sale).await.expect("audited").expect("warmed");
            let phone = &audit.ledgers[0];
            ((phone.available, phone.held, phone.sold) == (5, 0, 0)).then_some(())
        })
        .await;
        stop.cancel();
        relay.await.expect("it ends");
        let raw = raw(&flow).await;
        let events = "SELECT COUNT(*) FROM outbox WHERE kind = 'order.abandoned'";
        assert_eq!(number(&raw, events).await, 1, "{database}");
    }
}
