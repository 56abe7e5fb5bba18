//! A sale inside this process: flows on stores of their own, under a lock that the test brings.

use std::sync::Arc;
use std::time::Duration;

use flashlock::app::App;
use flashlock::config::Config;
use flashlock::deduct::{Deduct, Ending, Locked};
use flashlock::flow::{Answer, Flow};
use flashlock::lock::Lock;
use flashlock::sale::{
    Activity, ActivityId, ActivityState, Allocation, Booking, GuardMode, Limits, Line,
    LockSettings, Purchase, StrategyName, Watchdog,
};
use flashlock::store::Store;
use flashlock::strategy::db_unique_insert::DbUniqueInsertLock;
use tokio::task::JoinSet;

use crate::books::Books;
use crate::world::world;

/// The strategy's name in the activities made here.
const STRATEGY: &str = "of-a-test";
/// Longest time for a crowd. Under a broken lock not everyone is served.
const CROWD: Duration = Duration::from_secs(60);
/// Times a buyer who is told to try again does.
const TRIES_MAX: u32 = 12;

/// A service in all but HTTP: each flow has its own pools and its own lock, as a process has.
pub(crate) struct Shop {
    pub(crate) flows: Vec<Arc<Flow>>,
}

impl Shop {
    /// `processes` flows on a fresh database, each under the lock that `lock` makes of
    /// its store and the database's URL.
    pub(crate) async fn open<L: Lock>(
        database: &str,
        processes: usize,
        lock: impl Fn(&Store, &str) -> L,
    ) -> Self {
        let strategy = |store: &Store, url: &str| -> Arc<dyn Deduct> {
            Arc::new(Locked::new(lock(store, url), store.clone()))
        };
        Self::open_selling(database, processes, strategy).await
    }

    /// The same with a strategy that may have no lock.
    pub(crate) async fn open_selling(
        database: &str,
        processes: usize,
        strategy: impl Fn(&Store, &str) -> Arc<dyn Deduct>,
    ) -> Self {
        Self::open_at(world().database(database).await, processes, strategy).await
    }

    /// The same on a database that is there.
    pub(crate) async fn open_at(
        database_url: String,
        processes: usize,
        strategy: impl Fn(&Store, &str) -> Arc<dyn Deduct>,
    ) -> Self {
        let config = Config {
            database_url,
            database_connections_max: 8,
            ..Config::default()
        };
        let mut flows = Vec::new();
        for _ in 0..processes {
            let app = App::open(config.clone())
                .await
                .expect("the database answers");
            let strategy = strategy(&app.store, &config.database_url);
            let app = app.with_strategy(StrategyName::new(STRATEGY), strategy);
            flows.push(Flow::new(app));
        }
        Self { flows }
    }

    /// An open activity that sells `stock` phones.
    pub(crate) async fn sale(&self, guard: GuardMode, stock: i64) -> ActivityId {
        self.open_sale(&activity(guard, stock)).await
    }

    async fn open_sale(&self, activity: &Activity) -> ActivityId {
        let flow = &self.flows[0];
        flow.create(activity).await.expect("a new activity");
        flow.warm_up(&activity.id).await.expect("warmed up");
        flow.open(&activity.id).await.expect("opened");
        activity.id.clone()
    }

    /// `buyers` users at once, spread over the flows, each for one phone. Whoever is told to try
    /// again does so, up to a bound.
    pub(crate) async fn crowd(&self, sale: &ActivityId, buyers: usize) {
        let mut crowd = JoinSet::new();
        for n in 0..buyers {
            let flow = Arc::clone(&self.flows[n % self.flows.len()]);
            let purchase = purchase(sale, &format!("u-{n}"));
            crowd.spawn(async move {
                for _ in 0..TRIES_MAX {
                    match flow.purchase(purchase.clone()).await {
                        Ok(Answer::Ended(Ending::Busy(_))) | Err(_) => {
                            tokio::time::sleep(Duration::from_millis(20)).await;
                        }
                        Ok(Answer::Ended(_) | Answer::Limited(_)) => return,
                    }
                }
            });
        }
        let served = tokio::time::timeout(CROWD, crowd.join_all()).await;
        served.expect("every buyer has an ending in time");
    }

    pub(crate) async fn books(&self, sale: &ActivityId) -> Books {
        Books::read(&self.flows[0].app.store, sale.as_str()).await
    }
}

/// One phone for `user`.
pub(crate) fn purchase(sale: &ActivityId, user: &str) -> Purchase {
    let line = Line {
        sku: "phone".parse().expect("a SKU"),
        quantity: 1,
    };
    let (user, key) = (user.parse().expect("a user"), "k".parse().expect("a key"));
    Purchase::new(sale.clone(), user, key, [line]).expect("a purchase")
}

pub(crate) fn activity(guard: GuardMode, stock: i64) -> Activity {
    Activity {
        id: ActivityId::generate(),
        state: ActivityState::Draft,
        strategy: StrategyName::new(STRATEGY),
        guard,
        batch_max: 1,
        booking: Booking::Sync,
        lock: LockSettings {
            ttl_ms: 10_000,
            wait_ms: 5_000,
            watchdog: Watchdog::On,
        },
        limits: Limits::default(),
        opens_at_ms: 0,
        closes_at_ms: i64::MAX,
        pay_window_s: 900,
        units_per_user_max: 10,
        fence_generation: 0,
        gate_epoch: 0,
        gate_run_id: String::new(),
        skus: vec![Allocation {
            sku: "phone".parse().expect("a SKU"),
            total: stock,
        }],
    }
}

/// Purchases that queued up are sold by a task that stays for more: a stop must not wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_does_not_wait_for_an_idle_combiner() {
    let lock = |store: &Store, _: &str| DbUniqueInsertLock::new(store.lock_rows().clone());
    let shop = Shop::open("sqlite", 1, lock).await;
    let mut activity = activity(GuardMode::Fence, 5);
    activity.batch_max = 8;
    let sale = shop.open_sale(&activity).await;
    shop.crowd(&sale, 10).await;
    assert_eq!(shop.books(&sale).await.live().count(), 5);
    assert!(
        shop.flows[0].drain(Duration::from_secs(5)).await,
        "something was still at work"
    );
}
