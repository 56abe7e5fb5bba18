//! What crashes leave between the gate and the database ends, and differences are seen and mended.

mod planted;
mod sold_out;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use flashlock::app::App;
use flashlock::config::Config;
use flashlock::deduct::Ending;
use flashlock::flow::payment::Told;
use flashlock::flow::{Answer, Flow};
use flashlock::gate::accepted::{AcceptedHold, BookAccepted};
use flashlock::gate::sweep::{Backlog, Patience, arbitrate, sweep};
use flashlock::gate::{Gate, GateError, ReserveOutcome};
use flashlock::ledger::reconciled::{Mode, Settled, Verdict};
use flashlock::order::{Fingerprint, NewOrder, OrderState};
use flashlock::sale::{Activity, ActivityId, GuardMode, StrategyName};
use flashlock::store::{CompensationState, Store, Tombstone};
use flashlock::strategy::redis_lua::{Book, BookOutcome};
use futures::future::join_all;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::embedded::{activity, purchase};
use crate::gate::server::RedisServer;
use crate::world::{DATABASES, world};

/// Everything ends well within this, on a busy machine.
const SOON: Duration = Duration::from_secs(30);

/// No patience with anybody.
pub(crate) const NONE: Patience = Patience {
    age: Duration::ZERO,
    backlog: Backlog::Unknown,
};

/// Where every purchase books itself, there is nothing for anybody else to book.
pub(crate) struct Nobody;

#[async_trait]
impl BookAccepted for Nobody {
    async fn book_accepted(&self, holds: &[AcceptedHold]) -> Result<Settled, GateError> {
        assert_eq!(holds, []);
        Ok(Settled::default())
    }
}

/// An open sale through the gate, in this process.
struct Sale {
    flow: Arc<Flow>,
    gate: Gate,
    id: ActivityId,
    database_url: String,
    redis_url: String,
}

impl Sale {
    async fn open(database: &str, stock: i64) -> Self {
        let redis_url = world().lab.redis_url().expect("redis runs");
        Self::open_on(database, redis_url, stock).await
    }

    async fn open_on(database: &str, redis_url: String, stock: i64) -> Self {
        let database_url = world().database(database).await;
        let config = Config {
            database_url: database_url.clone(),
            database_connections_max: 8,
            redis_url: Some(redis_url.clone()),
            ..Config::default()
        };
        let flow = Flow::new(App::open(config).await.expect("the database answers"));
        let mut sale = activity(GuardMode::None, stock);
        sale.strategy = StrategyName::new("redis-lua");
        sale.closes_at_ms = 99_999_999_999_999;
        flow.create(&sale).await.expect("a new activity");
        flow.warm_up(&sale.id).await.expect("warmed up");
        flow.open(&sale.id).await.expect("opened");
        Self {
            gate: Gate::new(&redis_url).expect("a gate"),
            flow,
            id: sale.id,
            database_url,
            redis_url,
        }
    }

    fn store(&self) -> &Store {
        &self.flow.app.store
    }

    async fn activity(&self) -> Activity {
        let found = self.store().activity(&self.id).await;
        found.expect("an answer").expect("an activity")
    }

    /// What a purchase of one phone by `user` asks the gate for.
    fn new_order(&self, user: &str) -> NewOrder {
        let purchase = purchase(&self.id, user);
        NewOrder {
            rid: purchase.rid(),
            user: purchase.user.clone(),
            fingerprint: Fingerprint::of(&purchase),
            lines: purchase.lines().to_vec(),
            admitted_at_ms: 1,
        }
    }

    /// What a service leaves that is killed between the gate and the database.
    async fn held(&self, user: &str) -> NewOrder {
        let order = self.new_order(user);
        let outcome = self.reserve(&order).await;
        assert!(
            matches!(outcome, ReserveOutcome::Held { .. }),
            "{outcome:?}"
        );
        order
    }

    async fn reserve(&self, order: &NewOrder) -> ReserveOutcome {
        let activity = self.activity().await;
        let reserved = self.gate.reserve(&activity, std::slice::from_ref(order));
        reserved
            .await
            .pop()
            .expect("one outcome")
            .expect("an outcome")
    }

    /// Books in the database alone.
    async fn book(&self, order: &NewOrder) -> BookOutcome {
        let activity = self.activity().await;
        let booked = Book::book(self.store(), &activity, std::slice::from_ref(order)).await;
        booked.into_iter().next().expect("one").expect("an outcome")
    }

    async fn sweep(&self) -> Settled {
        let swept = sweep(&self.gate, self.store(), &Nobody, &self.id, NONE).await;
        swept.expect("swept")
    }

    async fn buy(&self, user: &str) -> Ending {
        match self.flow.purchase(purchase(&self.id, user)).await {
            Ok(Answer::Ended(ending)) => ending,
            other => panic!("{other:?}"),
        }
    }

    /// (available, held, sold) at the gate.
    async fn gate_counts(&self) -> (i64, i64, i64) {
        let audit = self.gate.audit(&self.id).await.expect("audited");
        let l = audit.expect("warmed").ledgers.remove(0);
        (l.available, l.held, l.sold)
    }

    /// (available, held, sold) in the database.
    async fn database_counts(&self) -> (i64, i64, i64) {
        let l = self
            .store()
            .ledgers(&self.id)
            .await
            .expect("read")
            .remove(0);
        (l.available, l.held, l.sold)
    }

    async fn state(&self, order: &NewOrder) -> Option<OrderState> {
        let found = self.store().order(order.rid).await.expect("an answer");
        found.map(|o| o.state)
    }
}

fn tombstone(order: &NewOrder) -> Tombstone {
    Tombstone {
        rid: order.rid,
        user: order.user.clone(),
        fingerprint: order.fingerprint.clone(),
    }
}

/// Asks until `is_so`, and fails when it does not become so.
async fn until<F: Future<Output = bool>>(what: &str, is_so: impl Fn() -> F) {
    let asked = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let became = tokio::time::timeout(SOON, asked).await;
    assert!(became.is_ok(), "{what}: not after {SOON:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_whose_service_died_is_swept_and_its_unit_sold_to_another() {
    join_all(DATABASES.map(|database| async move {
        let sale = Sale::open(database, 1).await;
        let left = sale.held("alice").await;
        let id = left.id(&sale.id);
        let told = sale.flow.resolve_id(&id).await.expect("told");
        assert_eq!(told, Told::OnItsWay, "{database}");
        let stop = CancellationToken::new();
        let sweeper = tokio::spawn(Arc::clone(&sale.flow).sweeper(stop.clone()));
        until("swept", || async { sale.gate_counts().await == (1, 0, 0) }).await;
        stop.cancel();
        sweeper.await.expect("it stops");
        let told = sale.flow.resolve_id(&id).await.expect("told");
        let Told::Order(order) = told else {
            panic!("{database}: {told:?}");
        };
        assert_eq!(order.state, OrderState::Abandoned, "{database}");
        // Neither the unit nor the user is blocked; the key is used up.
        assert_eq!(sale.buy("alice").await, Ending::Abandoned, "{database}");
        let other = sale.buy("bob").await;
        assert!(
            matches!(other, Ending::Booked { left: 0, .. }),
            "{database}: {other:?}"
        );
        assert_eq!(sale.database_counts().await, (0, 1, 0), "{database}");
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_order_whose_commit_was_lost_is_committed() {
    let sale = Sale::open("postgres", 2).await;
    let booked = sale.held("alice").await;
    assert!(matches!(sale.book(&booked).await, BookOutcome::Booked(_)));
    assert_eq!(sale.gate_counts().await, (1, 1, 0));
    let settled = sale.sweep().await;
    assert_eq!(settled.committed, [booked.rid]);
    assert_eq!(sale.gate_counts().await, (1, 0, 1));
    assert_eq!(sale.sweep().await, Settled::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweeper_that_came_first_refuses_the_slow_worker() {
    join_all(DATABASES.map(|database| async move {
        let sale = Sale::open(database, 1).await;
        let slow = sale.held("alice").await;
        assert_eq!(sale.sweep().await.released, [slow.rid], "{database}");
        let late = sale.book(&slow).await;
        let BookOutcome::AlreadyThere(order) = late else {
            panic!("{database}: {late:?}");
        };
        assert_eq!(order.state, OrderState::Abandoned, "{database}");
        assert_eq!(sale.database_counts().await, (1, 0, 0), "{database}");
        assert_eq!(sale.gate_counts().await, (1, 0, 0), "{database}");
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweeper_waits_for_the_slow_worker_that_came_first() {
    join_all(DATABASES.map(|database| async move {
        let sale = Sale::open(database, 1).await;
        let slow = sale.held("alice").await;
        let activity = sale.activity().await;
        let mut tx = sale.store().begin().await.expect("begun");
        tx.insert_orders(&activity, &[&slow])
            .await
            .expect("inserted");
        let sweeping = sale.sweep();
        tokio::pin!(sweeping);
        let early = tokio::time::timeout(Duration::from_millis(300), &mut sweeping).await;
        assert!(early.is_err(), "{database}: {early:?}");
        let line = &slow.lines[0];
        let left = tx.take(&sale.id, &line.sku, line.quantity).await;
        assert_eq!(left.expect("taken"), Some(0), "{database}");
        tx.commit().await.expect("committed");
        assert_eq!(sweeping.await.committed, [slow.rid], "{database}");
        assert_eq!(
            sale.state(&slow).await,
            Some(OrderState::PendingPayment),
            "{database}"
        );
        assert_eq!(sale.gate_counts().await, (0, 0, 1), "{database}");
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_that_lands_after_it_was_given_up_is_refused() {
    let sale = Sale::open("sqlite", 1).await;
    let late = sale.new_order("alice");
    let given_up = [tombstone(&late)];
    for _ in 0..2 {
        let settled = arbitrate(&sale.gate, sale.store(), &sale.id, &given_up).await;
        assert_eq!(settled.expect("settled").released, [late.rid]);
    }
    assert_eq!(sale.reserve(&late).await, ReserveOutcome::Abandoned);
    assert_eq!(sale.gate_counts().await, (1, 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_reservation_is_noted_and_resolved() {
    let server = RedisServer::start(&[]).await;
    let sale = Sale::open_on("postgres", server.url(), 1).await;
    // Longer than both tries wait.
    redis::cmd("CLIENT")
        .arg("PAUSE")
        .arg(2_500)
        .query_async::<()>(&mut server.con().await)
        .await
        .expect("paused");
    let unknown = sale.flow.purchase(purchase(&sale.id, "alice")).await;
    assert!(unknown.is_err(), "{unknown:?}");
    let noted = sale.flow.compensations().await.expect("read");
    let rid = sale.new_order("alice").rid;
    assert_eq!((noted.len(), noted[0].reservation.rid), (1, rid));
    assert_eq!(noted[0].state, CompensationState::Due);
    let stop = CancellationToken::new();
    let sweeper = tokio::spawn(Arc::clone(&sale.flow).sweeper(stop.clone()));
    until("resolved", || async {
        let noted = sale.flow.compensations().await.expect("read");
        noted[0].state == CompensationState::Done
    })
    .await;
    stop.cancel();
    sweeper.await.expect("it stops");
    assert_eq!(sale.gate_counts().await, (1, 0, 0));
    assert_eq!(sale.buy("alice").await, Ending::Abandoned);
    let late = sale.reserve(&sale.new_order("alice")).await;
    let refused = matches!(
        late,
        ReserveOutcome::Abandoned | ReserveOutcome::Replay { .. }
    );
    assert!(refused, "{late:?}");
    assert!(matches!(sale.buy("bob").await, Ending::Booked { .. }));
}

#[tokio::test(flavor = "multi_thread")]
async fn reconciling_while_it_sells_tells_no_difference_and_breaks_nothing() {
    const STOCK: usize = 150;
    let sale = Sale::open("postgres", 150).await;
    let mut buyers = JoinSet::new();
    for worker in 0..8 {
        let (flow, id) = (Arc::clone(&sale.flow), sale.id.clone());
        buyers.spawn(async move {
            for n in 0..STOCK / 8 + 1 {
                let bought = flow
                    .purchase(purchase(&id, &format!("u-{worker}-{n}")))
                    .await;
                // One in five changes their mind.
                if let Ok(Answer::Ended(Ending::Booked { order, .. })) = bought
                    && n % 5 == 0
                {
                    flow.cancel(&order.id).await.expect("cancelled");
                }
            }
        });
    }
    let mut passes = 0;
    while !buyers.is_empty() {
        while buyers.try_join_next().is_some() {}
        let told = sale
            .flow
            .reconcile(&sale.id, Mode::Repair)
            .await
            .expect("told");
        assert!(told.findings.is_empty(), "{told:?}");
        let quiet = [Verdict::Ok, Verdict::InFlight, Verdict::Inconclusive];
        assert!(quiet.contains(&told.verdict), "{told:?}");
        passes += 1;
    }
    assert!(passes > 1, "{passes} passes");
    let told = sale
        .flow
        .reconcile(&sale.id, Mode::Repair)
        .await
        .expect("told");
    assert_eq!(
        (told.verdict, told.findings.len()),
        (Verdict::Ok, 0),
        "{told:?}"
    );
    let (available, held, _) = sale.database_counts().await;
    assert_eq!(sale.gate_counts().await, (available, 0, held));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gate_that_is_not_there_is_told_and_rebuilt() {
    let server = RedisServer::start(&[]).await;
    let sale = Sale::open_on("sqlite", server.url(), 1).await;
    redis::cmd("FLUSHALL")
        .query_async::<()>(&mut server.con().await)
        .await
        .expect("flushed");
    let told = sale
        .flow
        .reconcile(&sale.id, Mode::Repair)
        .await
        .expect("told");
    assert_eq!(told.verdict, Verdict::Inconclusive, "{told:?}");
    assert!(told.is_mended(), "{told:?}");
    assert_eq!(sale.gate_counts().await, (1, 0, 0));
    let gone = sweep(&sale.gate, sale.store(), &Nobody, &sale.id, NONE).await;
    assert!(
        matches!(gone, Ok(_) | Err(GateError::NotThisRedis(_))),
        "{gone:?}"
    );
}
