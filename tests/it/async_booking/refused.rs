//! What the database refuses is REJECTED, once, and spoils nobody else's booking. Whoever finds an
//! accepted hold books it or ends it, and never both.

use std::sync::Arc;

use flashlock::app::{App, Opened};
use flashlock::config::Config;
use flashlock::deduct::{self, Deduct, Ending};
use flashlock::flow::payment::Told;
use flashlock::flow::{Answer, Flow};
use flashlock::gate::Gate;
use flashlock::order::{Fingerprint, NewOrder, Order, OrderState};
use flashlock::sale::{Activity, Booking, GuardMode, Line, Rid, StrategyName};
use flashlock::store::Tombstone;
use tokio_util::sync::CancellationToken;

use super::{lab_redis, until_drained};
use crate::books::Books;
use crate::embedded::{activity, purchase};
use crate::world::{DATABASES, world};

/// An open sale whose orders are booked later, in this process.
struct Sale {
    flow: Arc<Flow>,
    activity: Activity,
    gate: Gate,
}

impl Sale {
    async fn open(database: &str, stock: i64) -> Self {
        let config = Config {
            database_url: world().database(database).await,
            redis_url: world().lab.redis_url(),
            database_connections_max: 8,
            ..Config::default()
        };
        let gate = Gate::new(config.redis_url.as_deref().expect("redis runs")).expect("a gate");
        let flow = Flow::new(App::open(config).await.expect("the database answers"));
        let mut activity = activity(GuardMode::None, stock);
        activity.strategy = StrategyName::new("redis-lua");
        activity.booking = Booking::Async;
        flow.create(&activity).await.expect("a new activity");
        flow.warm_up(&activity.id).await.expect("warmed up");
        flow.open(&activity.id).await.expect("opened");
        Self {
            flow,
            activity,
            gate,
        }
    }

    async fn buy(&self, user: &str) -> Ending {
        let bought = self.flow.purchase(purchase(&self.activity.id, user)).await;
        match bought.expect("an answer") {
            Answer::Ended(ending) => ending,
            Answer::Limited(refusal) => panic!("{refusal:?}"),
        }
    }

    async fn accept(&self, users: &[&str]) {
        for user in users {
            let ending = self.buy(user).await;
            let id = self.new_order(user, 1).id(&self.activity.id);
            assert_eq!(ending, Ending::Accepted(id), "{user}");
        }
    }

    fn new_order(&self, user: &str, quantity: i64) -> NewOrder {
        let purchase = purchase(&self.activity.id, user);
        NewOrder {
            rid: purchase.rid(),
            user: purchase.user.clone(),
            fingerprint: Fingerprint::of(&purchase),
            lines: vec![Line {
                sku: "phone".parse().expect("a SKU"),
                quantity,
            }],
            admitted_at_ms: 0,
        }
    }

    /// Sells behind the gate's back.
    async fn book_unseen(&self, user: &str, rid: Rid, quantity: i64) {
        let mut order = self.new_order(user, quantity);
        order.rid = rid;
        let booked = deduct::book(&self.flow.app.store, &self.activity, &[order]).await;
        assert!(matches!(booked[0], Ok(Ending::Booked { .. })), "{booked:?}");
    }

    /// Lets two bookers work until nothing is held.
    async fn book_all(&self) {
        let stop = CancellationToken::new();
        let bookers = [
            tokio::spawn(Arc::clone(&self.flow).booker(stop.clone())),
            tokio::spawn(Arc::clone(&self.flow).booker(stop.clone())),
        ];
        until_drained(&lab_redis().await, self.activity.id.as_str()).await;
        stop.cancel();
        for booker in bookers {
            booker.await.expect("it ends");
        }
    }

    async fn order(&self, user: &str) -> Order {
        let id = self.new_order(user, 1).id(&self.activity.id);
        match self.flow.resolve_id(&id).await.expect("told") {
            Told::Order(order) => order,
            other => panic!("{user}: {other:?}"),
        }
    }

    fn strategy(&self) -> Arc<dyn Deduct> {
        match self.flow.app.strategy(&self.activity.strategy) {
            Opened::Here(strategy) => strategy,
            Opened::Missing(why) => panic!("{why}"),
        }
    }

    /// (available, held, sold) at the gate.
    async fn at_the_gate(&self) -> (i64, i64, i64) {
        let audit = self.gate.audit(&self.activity.id).await.expect("audited");
        let phone = audit.expect("warmed").ledgers.remove(0);
        (phone.available, phone.held, phone.sold)
    }

    async fn books(&self) -> Books {
        Books::read(&self.flow.app.store, self.activity.id.as_str()).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_database_refuses_is_rejected_and_the_rest_of_its_batch_is_booked() {
    for database in DATABASES {
        let sale = Sale::open(database, 6).await;
        sale.accept(&["alice", "bob", "carol", "dave", "erin"])
            .await;
        // Alice has an order that this gate never saw, and another stranger two units: three are left.
        let strange = sale.new_order("stranger", 1).rid;
        sale.book_unseen("alice", strange, 1).await;
        sale.book_unseen("thief", sale.new_order("thief", 1).rid, 2)
            .await;
        sale.book_all().await;

        assert_eq!(sale.order("alice").await.state, OrderState::Rejected);
        let mut booked = 0;
        for user in ["bob", "carol", "dave", "erin"] {
            let order = sale.order(user).await;
            assert_eq!(order.lines.len(), 1, "{database}: {order:?}");
            match order.state {
                OrderState::PendingPayment => booked += 1,
                OrderState::Rejected => {}
                other => panic!("{database}: {user} is {other}"),
            }
            let replayed = sale.buy(user).await;
            assert_eq!(replayed, Ending::Replayed(Box::new(order)), "{database}");
        }
        assert_eq!(booked, 3, "{database}");
        // Given back by the two that were rejected: the gate has 6 - 3.
        assert_eq!(sale.at_the_gate().await, (3, 0, 3), "{database}");
        sale.books().await.assert_balanced(database);
        let again = sale.buy("alice").await;
        assert!(matches!(again, Ending::Replayed(o) if o.state == OrderState::Rejected));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_resolver_books_what_was_accepted_and_ends_what_never_arrived() {
    for database in DATABASES {
        let sale = Sale::open(database, 5).await;
        sale.accept(&["waiting", "refused"]).await;
        let strange = sale.new_order("stranger", 1).rid;
        sale.book_unseen("refused", strange, 1).await;
        let stone = |user: &str| {
            let order = sale.new_order(user, 1);
            Tombstone {
                rid: order.rid,
                user: order.user,
                fingerprint: order.fingerprint,
            }
        };
        let unknown = ["waiting", "refused", "never"].map(stone);
        let [waiting, refused, never] = unknown.each_ref().map(|t| t.rid);
        // A late and repeated resolver releases nothing that is booked.
        for _ in 0..2 {
            let settled = sale.strategy().resolve(&sale.activity.id, &unknown).await;
            let mut settled = settled.expect("resolved");
            settled.released.sort();
            let mut ended = vec![refused, never];
            ended.sort();
            assert_eq!(settled.committed, [waiting], "{database}");
            assert_eq!(settled.released, ended, "{database}");
            assert_eq!(sale.at_the_gate().await, (4, 0, 1), "{database}");
        }
        assert_eq!(
            sale.order("waiting").await.state,
            OrderState::PendingPayment
        );
        assert_eq!(sale.order("refused").await.state, OrderState::Rejected);
        assert_eq!(sale.order("never").await.state, OrderState::Abandoned);
        // It arrives after all.
        assert_eq!(sale.buy("never").await, Ending::Abandoned, "{database}");
        sale.book_all().await;
        assert_eq!(sale.at_the_gate().await, (4, 0, 1), "{database}");
        sale.books().await.assert_balanced(database);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_release_of_a_booked_order_is_refused() {
    let sale = Sale::open("sqlite", 2).await;
    sale.accept(&["alice"]).await;
    let rid = sale.new_order("alice", 1).rid;
    sale.book_all().await;
    // A sweep that saw the hold before it was booked decides only now.
    let stone = Tombstone {
        rid,
        user: "alice".parse().expect("a user"),
        fingerprint: sale.new_order("alice", 1).fingerprint,
    };
    let (gate, store) = (&sale.gate, &sale.flow.app.store);
    let late = flashlock::gate::sweep::arbitrate(gate, store, &sale.activity.id, &[stone]).await;
    assert_eq!(late.expect("decided").committed, [rid]);
    assert_eq!(sale.at_the_gate().await, (1, 0, 1));
    assert_eq!(sale.order("alice").await.state, OrderState::PendingPayment);
}
