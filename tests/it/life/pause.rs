//! A pause lets nobody in, keeps every promise, and is over only once nothing is on its way.

use std::time::Duration;

use flashlock::app::App;
use flashlock::config::Config;
use flashlock::deduct::{Closed, Ending};
use flashlock::flow::activity::Moved;
use flashlock::flow::life::{Changed, Selling};
use flashlock::flow::{Answer, Flow};
use flashlock::gate::sweep::sweep;
use flashlock::order::{CloseReason, Fingerprint, NewOrder};
use flashlock::sale::{Activity, ActivityState, Booking, GuardMode, StrategyName};
use flashlock::store::{Contended, StoreError, Unpaid};
use flashlock::strategy::{Kind, Strategy};
use serde_json::{Value, json};

use super::Shop;
use crate::books::Books;
use crate::embedded::{activity, purchase};
use crate::reconcile::{NONE, Nobody};
use crate::world::{DATABASES, world};

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_sale_lets_nobody_in_and_serves_those_who_have_an_order() {
    let shop = Shop::on("postgres").await;
    for strategy in ["db-conditional-update", "redis-set-nx", "redis-lua"] {
        let sale = shop.open(strategy, 9).await;
        let [alice, bob] = ["alice", "bob"].map(|user| shop.buy(0, &sale, user));
        let (alice, bob) = (alice.await.order_id(), bob.await.order_id());
        shop.steps(&sale, &[("pause", "PAUSED"), ("pause", "PAUSED")])
            .await;
        for n in 0..2 {
            let refused = shop.api(n).buy(&sale, "carol", "k", &[("phone", 1)]).await;
            refused.assert_problem(503, "activity-paused", "try again");
            assert_eq!(refused.body["retry_with_same_key"], true);
            assert_eq!(refused.headers["retry-after"], "5");
            let replay = shop.buy(n, &sale, "alice").await;
            assert_eq!((replay.status, replay.order_id()), (200, alice.clone()));
        }
        assert_eq!(shop.pay(1, &alice).await.body["outcome"], "APPLIED");
        assert_eq!(shop.cancel(0, &bob).await.body["status"], "CLOSED");
        let early = shop.step(0, &sale, "open").await;
        early.assert_problem(409, "not-allowed-in-state", "the activity is PAUSED");
        // Without a change, it is warmed up and opened again.
        let again = [("warm-up", "READY"), ("open", "OPEN")];
        shop.steps(&sale, &again).await;
        let carol = shop.buy(1, &sale, "carol").await;
        assert_eq!(carol.status, 201, "{strategy}: {carol:?}");
        assert_eq!(shop.api(1).stock(&sale, "phone").await, (9, 7, 1, 1));
        shop.assert_agrees(&sale).await;
        shop.books(&sale).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_waits_for_what_is_held_and_the_role_finishes_it() {
    // No sweeper: the hold stays until this test ends it.
    let shop = Shop::with("sqlite", &[("ROLES", "api,closer")]).await;
    let sale = shop.open("redis-lua", 2).await;
    let id = sale.parse().expect("an id");
    let now = shop.store.activity(&id).await.expect("an answer");
    let held = order(&now.expect("an activity"), "alice");
    let now = shop.store.activity(&id).await.expect("an answer");
    let gate = shop.gate();
    for outcome in gate.reserve(&now.expect("an activity"), &[held]).await {
        outcome.expect("held");
    }
    let waiting = shop.step(0, &sale, "pause").await;
    assert_eq!(waiting.body["state"], "PAUSING", "{waiting:?}");
    assert_eq!(waiting.body["draining"]["in_flight"], 1);
    let refused = shop.api(1).buy(&sale, "bob", "k", &[("phone", 1)]).await;
    refused.assert_problem(503, "activity-paused", "try again");
    for (path, says) in [("open", "PAUSING"), ("warm-up", "PAUSING")] {
        let early = shop.step(1, &sale, path).await;
        early.assert_problem(409, "not-allowed-in-state", says);
    }
    let early = json!({"strategy": "db-conditional-update"});
    let early = shop.set_strategy(1, &sale, early).await;
    early.assert_problem(409, "not-allowed-in-state", "wait until it is PAUSED");
    let swept = sweep(&gate, &shop.store, &Nobody, &id, NONE).await;
    assert_eq!(swept.expect("swept").released.len(), 1);
    shop.until(&sale, "PAUSED").await;
    let paused = shop.api(0).get(&format!("/v1/activities/{sale}")).await;
    assert_eq!(paused.body["draining"], Value::Null);
}

fn order(activity: &Activity, user: &str) -> NewOrder {
    let purchase = purchase(&activity.id, user);
    NewOrder {
        rid: purchase.rid(),
        user: purchase.user.clone(),
        fingerprint: Fingerprint::of(&purchase),
        lines: purchase.lines().to_vec(),
        admitted_at_ms: 1,
    }
}

/// Whoever was let in before a pause may be late by minutes: in a queue for the lock, or stopped
/// inside the critical section. Nothing of it is written after the pause, under any strategy and any
/// guard, whatever the new strategy is.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_begun_before_a_pause_writes_nothing_after_it() {
    for database in DATABASES {
        let config = Config {
            database_url: world().database(database).await,
            redis_url: Some(world().lab.redis_url().expect("redis runs")),
            redlock_urls: world().lab.redlock_urls().expect("they run"),
            zookeeper: Some(world().lab.zookeeper().expect("zookeeper runs")),
            allow_control: true,
            ..Config::default()
        };
        let flow = Flow::new(App::open(config).await.expect("the database answers"));
        for strategy in Strategy::all().iter().copied() {
            let guards: &[GuardMode] = match strategy.entry().kind {
                Kind::Lock => &[GuardMode::None, GuardMode::Lease, GuardMode::Fence],
                Kind::Transaction | Kind::Gate | Kind::Control => &[GuardMode::None],
            };
            for guard in guards {
                let cell = format!("{} {guard} on {database}", strategy.name());
                let mut sale = activity(*guard, 5);
                sale.strategy = strategy.name();
                sale.closes_at_ms = 99_999_999_999_999;
                flow.create(&sale).await.expect("created");
                flow.warm_up(&sale.id).await.expect("warmed up");
                flow.open(&sale.id).await.expect("opened");
                let bought = flow.purchase(purchase(&sale.id, "alice")).await;
                let Ok(Answer::Ended(Ending::Booked { order: alice, .. })) = bought else {
                    panic!("{cell}: {bought:?}");
                };
                let before = flow.view(&sale.id).await.expect("there").activity;
                let paused = flow.pause(&sale.id).await.expect("paused");
                let Moved::Done(view) = paused else {
                    panic!("{cell}: {paused:?}");
                };
                assert_eq!(view.activity.state, ActivityState::Paused, "{cell}");
                let other = match strategy {
                    Strategy::DbConditionalUpdate => "db-unique-insert",
                    _other => "db-conditional-update",
                };
                let selling = Selling {
                    strategy: StrategyName::new(other),
                    guard: GuardMode::None,
                    booking: Booking::Sync,
                    batch_max: 1,
                };
                let changed = flow.set_strategy(&sale.id, &selling).await;
                assert!(
                    matches!(changed, Ok(Changed::Done(_))),
                    "{cell}: {changed:?}"
                );
                let deduct = strategy.open(&servers(&flow)).expect("it is here");
                let late = deduct.deduct(&before, &[order(&before, "late")]).await;
                let booked = matches!(late[0], Ok(Ending::Booked { .. }));
                assert!(!booked, "{cell}: {late:?}");
                let ids = [alice.id.clone()];
                let late = deduct.close(&before, &ids, CloseReason::User).await;
                let closed = matches!(late[0], Ok(Closed::Closed));
                assert!(!closed, "{cell}");
                let books = Books::read(&flow.app.store, sale.id.as_str()).await;
                books.assert_balanced(&cell);
                assert_eq!(books.ledger("phone").held, 1, "{cell}");
                // Under the new strategy both go well.
                flow.warm_up(&sale.id).await.expect("warmed up");
                flow.open(&sale.id).await.expect("opened");
                let bought = flow.purchase(purchase(&sale.id, "late")).await;
                let booked = matches!(bought, Ok(Answer::Ended(Ending::Booked { .. })));
                assert!(booked, "{cell}: {bought:?}");
                flow.cancel(&alice.id).await.expect("cancelled");
                let books = Books::read(&flow.app.store, sale.id.as_str()).await;
                books.assert_balanced(&cell);
                assert_eq!(books.ledger("phone").held, 1, "{cell}");
            }
        }
    }
}

fn servers(flow: &Flow) -> flashlock::strategy::Servers {
    flashlock::strategy::Servers {
        store: flow.app.store.clone(),
        redis_url: flow.app.config.redis_url.clone(),
        redlock_urls: flow.app.config.redlock_urls.clone(),
        zookeeper: flow.app.config.zookeeper.clone(),
    }
}

/// The barrier itself: it waits for a transaction that has the stock row, and one that comes to the
/// row after it is refused, though it began before.
#[tokio::test(flavor = "multi_thread")]
async fn the_barrier_waits_for_writers_and_refuses_those_that_come_late() {
    for database in DATABASES {
        let url = world().database(database).await;
        let config = Config {
            database_url: url,
            ..Config::default()
        };
        let app = App::open(config).await.expect("the database answers");
        let store = &app.store;
        let mut sale = activity(GuardMode::None, 5);
        sale.state = ActivityState::Pausing;
        store.insert_activity(&sale).await.expect("inserted");
        let phone = sale.skus[0].sku.clone();
        let settle = |from, to, unpaid| store.settle_activity(&sale.id, from, to, unpaid);
        let (pausing, paused) = (ActivityState::Pausing, ActivityState::Paused);

        let mut writer = store.begin().await.expect("begun");
        let early = order(&sale, "early");
        writer
            .insert_orders(&sale, &[&early])
            .await
            .expect("inserted");
        let left = writer.take(&sale.id, &phone, 1).await;
        assert_eq!(left.expect("taken"), Some(4), "{database}");
        // SQLite has one writer at a time: the late one can only begin after the barrier there.
        let late = match database {
            "sqlite" => None,
            _several => {
                let mut late = store.begin().await.expect("begun");
                let order = order(&sale, "late");
                late.insert_orders(&sale, &[&order])
                    .await
                    .expect("inserted");
                Some(late)
            }
        };
        let settling = settle(pausing, paused, Unpaid::MayStay);
        tokio::pin!(settling);
        let waits = tokio::time::timeout(Duration::from_millis(200), &mut settling).await;
        assert!(waits.is_err(), "{database}: {waits:?}");
        writer.commit().await.expect("committed");
        assert!(settling.await.expect("an answer"), "{database}");
        let mut late = match late {
            Some(late) => late,
            None => {
                let mut late = store.begin().await.expect("begun");
                let order = order(&sale, "late");
                late.insert_orders(&sale, &[&order])
                    .await
                    .expect("inserted");
                late
            }
        };
        let refused = late.take(&sale.id, &phone, 1).await;
        let superseded = matches!(refused, Err(StoreError::Retry(Contended::Superseded)));
        assert!(superseded, "{database}: {refused:?}");
        let refused = late.give_back(&sale.id, &phone, 1).await;
        let superseded = matches!(refused, Err(StoreError::Retry(Contended::Superseded)));
        assert!(superseded, "{database}: {refused:?}");
        let refused = late.write_available(&sale.id, &phone, 3, None).await;
        let superseded = matches!(refused, Err(StoreError::Retry(Contended::Superseded)));
        assert!(superseded, "{database}: {refused:?}");
        late.rollback().await;

        // Moved once; and an unpaid order keeps an activity from its end.
        let again = settle(pausing, paused, Unpaid::MayStay).await;
        assert!(!again.expect("an answer"), "{database}");
        let (closing, sealed) = (ActivityState::Closing, ActivityState::Sealed);
        assert!(
            store
                .move_activity(&sale.id, paused, closing)
                .await
                .expect("moved")
        );
        let unpaid = settle(closing, sealed, Unpaid::MustNotBe).await;
        assert!(!unpaid.expect("an answer"), "{database}");
        let now = store
            .activity(&sale.id)
            .await
            .expect("read")
            .expect("there");
        let moved = (now.state, now.fence_generation);
        assert_eq!(
            moved,
            (closing, 1),
            "{database}: the refused move is undone"
        );
        let books = Books::read(store, sale.id.as_str()).await;
        assert_eq!(books.ledger("phone").available, 4, "{database}");
    }
}
