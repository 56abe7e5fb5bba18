//! Every state by every event, of an activity and of an order: one function decides, and the
//! databases agree.

use flashlock::app::App;
use flashlock::config::Config;
use flashlock::deduct::{self, Closed};
use flashlock::flow::Flow;
use flashlock::flow::activity::Moved;
use flashlock::flow::life::{Changed, Selling};
use flashlock::order::{CloseReason, Fingerprint, NewOrder, OrderEvent, OrderState};
use flashlock::sale::{
    Activity, ActivityEvent, ActivityId, ActivityState, Booking, GuardMode, StrategyName,
};
use flashlock::store::{Payment, PaymentOutcome, Rejection, StoreError, Tombstone, Unpaid};
use sqlx::AnyPool;

use crate::embedded::{activity, purchase};
use crate::world::{DATABASES, world};

use ActivityEvent as On;
use ActivityState as Is;

/// What is allowed; all else is not.
const ALLOWED: [(Is, On, Is); 30] = [
    (Is::Draft, On::WarmUp, Is::Warming),
    (Is::Draft, On::SetStrategy, Is::Draft),
    (Is::Draft, On::Close, Is::Closing),
    (Is::Warming, On::WarmUp, Is::Warming),
    (Is::Warming, On::Warmed, Is::Ready),
    (Is::Warming, On::Close, Is::Closing),
    (Is::Ready, On::WarmUp, Is::Ready),
    (Is::Ready, On::Warmed, Is::Ready),
    (Is::Ready, On::Open, Is::Open),
    (Is::Ready, On::SetStrategy, Is::Draft),
    (Is::Ready, On::Close, Is::Closing),
    (Is::Open, On::Open, Is::Open),
    (Is::Open, On::Fence, Is::Fenced),
    (Is::Open, On::Pause, Is::Pausing),
    (Is::Open, On::Close, Is::Closing),
    (Is::Fenced, On::Open, Is::Open),
    (Is::Fenced, On::Fence, Is::Fenced),
    (Is::Fenced, On::Close, Is::Closing),
    (Is::Pausing, On::Pause, Is::Pausing),
    (Is::Pausing, On::Drained, Is::Paused),
    (Is::Pausing, On::Close, Is::Closing),
    (Is::Paused, On::WarmUp, Is::Warming),
    (Is::Paused, On::Pause, Is::Paused),
    (Is::Paused, On::Drained, Is::Paused),
    (Is::Paused, On::SetStrategy, Is::Draft),
    (Is::Paused, On::Close, Is::Closing),
    (Is::Closing, On::Close, Is::Closing),
    (Is::Closing, On::Seal, Is::Sealed),
    (Is::Sealed, On::Close, Is::Sealed),
    (Is::Sealed, On::Seal, Is::Sealed),
];

fn allowed(state: Is, event: On) -> Option<Is> {
    let row = ALLOWED.iter().find(|(s, e, _)| (*s, *e) == (state, event));
    row.map(|(_, _, next)| *next)
}

#[test]
fn every_state_and_event_of_an_activity_is_decided() {
    for state in Is::ALL {
        for event in On::ALL {
            let next = state.next(event);
            assert_eq!(next, allowed(state, event), "{state} + {event:?}");
        }
    }
}

/// A flow on a fresh database, and the database itself.
struct Bench {
    flow: std::sync::Arc<Flow>,
    raw: AnyPool,
}

impl Bench {
    async fn on(kind: &str) -> Self {
        let url = world().database(kind).await;
        let config = Config {
            database_url: url.clone(),
            ..Config::default()
        };
        let app = App::open(config).await.expect("the database answers");
        Self {
            flow: Flow::new(app),
            raw: AnyPool::connect(&url).await.expect("the database answers"),
        }
    }

    async fn run(&self, sql: String) {
        let done = sqlx::query(sqlx::AssertSqlSafe(sql))
            .execute(&self.raw)
            .await;
        done.expect("done");
    }

    /// A fresh activity in this state.
    async fn activity_in(&self, state: Is) -> Activity {
        let mut sale = activity(GuardMode::None, 5);
        sale.strategy = StrategyName::new("db-conditional-update");
        sale.closes_at_ms = 99_999_999_999_999;
        self.flow.create(&sale).await.expect("created");
        self.run(format!(
            "UPDATE activity SET state = '{state}' WHERE id = '{}'",
            sale.id
        ))
        .await;
        sale.state = state;
        sale
    }

    async fn state(&self, id: &ActivityId) -> Is {
        let found = self.flow.app.store.activity(id).await.expect("read");
        found.expect("there").state
    }

    /// What an operator's request comes to: the state told, and whether it was refused.
    async fn ask(&self, id: &ActivityId, event: On) -> Option<Result<Is, Is>> {
        let moved = match event {
            On::WarmUp => self.flow.warm_up(id).await,
            On::Open => self.flow.open(id).await,
            On::Pause => self.flow.pause(id).await,
            On::Close => self.flow.close(id).await,
            On::SetStrategy => {
                let selling = Selling {
                    strategy: StrategyName::new("db-unique-insert"),
                    guard: GuardMode::Fence,
                    booking: Booking::Sync,
                    batch_max: 1,
                };
                return Some(
                    match self.flow.set_strategy(id, &selling).await.expect("told") {
                        Changed::Done(view) => Ok(view.activity.state),
                        Changed::NotAllowed(state) => Err(state),
                        Changed::NotHere(why) => panic!("{why}"),
                    },
                );
            }
            // Nobody asks for these: they follow from the others.
            On::Warmed | On::Fence | On::Drained | On::Seal => return None,
        };
        Some(match moved.expect("told") {
            Moved::Done(view) => Ok(view.activity.state),
            Moved::NotAllowed(state) => Err(state),
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_operators_ask_for_is_what_the_table_allows() {
    for kind in DATABASES {
        let bench = Bench::on(kind).await;
        for state in Is::ALL {
            for event in On::ALL {
                let sale = bench.activity_in(state).await;
                let Some(told) = bench.ask(&sale.id, event).await else {
                    continue;
                };
                // A warm-up goes on to its end, and so does a pause that has nothing on its way.
                let then = |next: Is| match event {
                    On::WarmUp => next.next(On::Warmed).expect("warmed"),
                    On::Pause => next.next(On::Drained).expect("drained"),
                    _one_step => next,
                };
                let wanted = state.next(event).map(then).ok_or(state);
                assert_eq!(told, wanted, "{kind}: {state} + {event:?}");
                let there = bench.state(&sale.id).await;
                let (Ok(is) | Err(is)) = wanted;
                assert_eq!(there, is, "{kind}: {state} + {event:?}");
            }
        }
    }
}

/// Two who decide at once: the state that was decided upon is checked by the statement itself.
#[tokio::test(flavor = "multi_thread")]
async fn no_statement_moves_an_activity_from_another_state_than_was_decided_upon() {
    for kind in DATABASES {
        let bench = Bench::on(kind).await;
        let store = &bench.flow.app.store;
        for there in Is::ALL {
            let sale = bench.activity_in(there).await;
            for (from, event, to) in ALLOWED {
                if from == there || from == to {
                    continue;
                }
                let moved = match event {
                    On::WarmUp | On::Warmed | On::Open | On::Fence | On::Pause | On::Close => {
                        store.move_activity(&sale.id, from, to).await
                    }
                    On::Drained => {
                        store
                            .settle_activity(&sale.id, from, to, Unpaid::MayStay)
                            .await
                    }
                    On::Seal => {
                        store
                            .settle_activity(&sale.id, from, to, Unpaid::MustNotBe)
                            .await
                    }
                    On::SetStrategy => store.set_strategy(&sale, from, to).await,
                };
                let what = format!("{kind}: {there}, decided for {from} + {event:?}");
                assert!(!moved.expect("an answer"), "{what}");
            }
            let now = store
                .activity(&sale.id)
                .await
                .expect("read")
                .expect("there");
            assert_eq!((now.state, now.fence_generation), (there, 0), "{kind}");
        }
    }
}

const ORDER_STATES: [Option<OrderState>; 6] = [
    None,
    Some(OrderState::PendingPayment),
    Some(OrderState::Paid),
    Some(OrderState::Closed),
    Some(OrderState::Rejected),
    Some(OrderState::Abandoned),
];
const ORDER_EVENTS: [OrderEvent; 7] = [
    OrderEvent::Book,
    OrderEvent::Reject,
    OrderEvent::Abandon,
    OrderEvent::Pay,
    OrderEvent::Close(CloseReason::Timeout),
    OrderEvent::Close(CloseReason::User),
    OrderEvent::Close(CloseReason::Admin),
];

impl Bench {
    /// A fresh reservation whose order is in this state.
    async fn order_in(&self, sale: &Activity, n: usize, state: Option<OrderState>) -> NewOrder {
        let purchase = purchase(&sale.id, &format!("u-{n}"));
        let order = NewOrder {
            rid: purchase.rid(),
            user: purchase.user.clone(),
            fingerprint: Fingerprint::of(&purchase),
            lines: purchase.lines().to_vec(),
            admitted_at_ms: 99_999_999_999,
        };
        if let Some(state) = state {
            self.book(sale, &order).await.expect("booked");
            let live = match state.is_live() {
                true => "live_key",
                false => "NULL",
            };
            let sql = format!(
                "UPDATE orders SET state = '{state}', live_key = {live}, pay_deadline = 99999999999999 WHERE id = '{}'",
                order.rid
            );
            self.run(sql).await;
        }
        order
    }

    async fn book(&self, sale: &Activity, order: &NewOrder) -> Result<(), StoreError> {
        let mut tx = self.flow.app.store.begin().await.expect("begun");
        match tx.insert_orders(sale, &[order]).await {
            Ok(()) => tx.commit().await,
            Err(error) => {
                tx.rollback().await;
                Err(error)
            }
        }
    }

    /// Whether the event took place.
    async fn happens(&self, sale: &Activity, order: &NewOrder, event: OrderEvent) -> bool {
        let store = &self.flow.app.store;
        match event {
            OrderEvent::Book => match self.book(sale, order).await {
                Ok(()) => true,
                Err(StoreError::Conflict(_)) => false,
                Err(other) => panic!("{other}"),
            },
            OrderEvent::Reject => {
                let reason = "sold-out";
                match store
                    .insert_rejected(sale, &[Rejection { order, reason }])
                    .await
                {
                    Ok(()) => true,
                    Err(StoreError::Conflict(_)) => false,
                    Err(other) => panic!("{other}"),
                }
            }
            OrderEvent::Abandon => {
                let before = store.order(order.rid).await.expect("read");
                let stone = Tombstone {
                    rid: order.rid,
                    user: order.user.clone(),
                    fingerprint: order.fingerprint.clone(),
                };
                let done = store.insert_tombstones(&sale.id, &[stone]).await;
                done.expect("done");
                before.is_none()
            }
            OrderEvent::Pay => {
                let Some(there) = store.order(order.rid).await.expect("read") else {
                    return false;
                };
                let payment = Payment {
                    provider: "acme".to_string(),
                    provider_txn: format!("t-{}", order.rid),
                };
                let paid = store.pay(&there, &payment).await.expect("told");
                paid == PaymentOutcome::Applied
            }
            OrderEvent::Close(why) => {
                let closed = deduct::close(store, sale, &[order.id(&sale.id)], why).await;
                matches!(closed[0], Ok(Closed::Closed))
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_happens_to_orders_is_what_the_table_allows() {
    for kind in DATABASES {
        let bench = Bench::on(kind).await;
        let mut sale = activity(GuardMode::None, 1_000);
        sale.strategy = StrategyName::new("db-conditional-update");
        sale.closes_at_ms = 99_999_999_999_999;
        bench.flow.create(&sale).await.expect("created");
        // So that a close finds units to give back, which a booking here does not take.
        bench
            .run(format!(
                "UPDATE activity_sku SET available = 500 WHERE activity_id = '{}'",
                sale.id
            ))
            .await;
        let mut given_up = Vec::new();
        for (n, state) in ORDER_STATES.into_iter().enumerate() {
            for (m, event) in ORDER_EVENTS.into_iter().enumerate() {
                let order = bench.order_in(&sale, 10 * n + m, state).await;
                let what = format!("{kind}: {state:?} + {event:?}");
                let happened = bench.happens(&sale, &order, event).await;
                let next = OrderState::next(state, event);
                assert_eq!(happened, next.is_ok(), "{what}");
                let there = bench.flow.app.store.order(order.rid).await.expect("read");
                let wanted = next.ok().or(state);
                assert_eq!(there.as_ref().map(|o| o.state), wanted, "{what}");
                if (event, wanted) == (OrderEvent::Abandon, Some(OrderState::Abandoned)) {
                    bench.happens(&sale, &order, event).await;
                    given_up.push(order.rid);
                }
                if let (OrderEvent::Close(why), true) = (event, happened) {
                    assert_eq!(there.and_then(|o| o.close_reason), Some(why), "{what}");
                }
            }
        }
        // Each that was given up is announced once, however often it was.
        let store = &bench.flow.app.store;
        let end = store.final_state(&sale.id).await.expect("read");
        for order in &end.orders {
            let of_it = end.outbox.iter().filter(|event| event.rid == order.rid);
            let announced = of_it.filter(|event| event.kind == "order.abandoned");
            let wanted = usize::from(given_up.contains(&order.rid));
            assert_eq!(announced.count(), wanted, "{kind}: {order:?}");
        }
    }
}
