//! Does the soak see it when a part is missing that it tests? Each control takes one part away, and
//! the same laws report it; beside each stands the same run with the part in place.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use flashlock::app::App;
use flashlock::clock;
use flashlock::config::Config;
use flashlock::deduct::Ending;
use flashlock::flow::{Answer, Flow};
use flashlock::gate::sweep::sweep;
use flashlock::gate::{self, Gate, Truth, TruthError};
use flashlock::keys::GateKeys;
use flashlock::ledger::Ledger;
use flashlock::ledger::reconciled::Mode;
use flashlock::order::{Order, OrderState};
use flashlock::sale::{Activity, ActivityId, GuardMode, OrderId, Rid, StrategyName};
use flashlock::script::gate::Stamped;
use flashlock::store::{Store, Tombstone};
use flashlock::strategy::redis_lua::RedisLua;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::laws::Ground;
use crate::embedded::{activity, purchase};
use crate::gate::server::RedisServer;
use crate::reconcile::{NONE, Nobody};
use crate::world::world;

/// A control that has shown nothing by then shows nothing.
const SHOWS_MAX: Duration = Duration::from_secs(30);
/// The whole thing shows nothing for as long as this.
const QUIET: Duration = Duration::from_secs(2);
/// Buyers at the same time.
const BUYERS: usize = 8;

/// A sale in this process: the flow as a process has it, and the stores that it sells from.
struct Sale {
    flow: Arc<Flow>,
    gate: Gate,
    ground: Arc<Ground>,
    truth: Arc<dyn Truth>,
    config: Config,
}

/// Whether the part that the control is about is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    There,
    Missing,
}

/// What an arbiter makes of a reservation that has no order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Absent {
    Dead,
    Undecided,
}

/// The database without the rows that end reservations.
#[derive(Debug)]
struct WithoutTombstone {
    store: Store,
    absent: Absent,
}

#[async_trait]
impl Truth for WithoutTombstone {
    async fn abandon(&self, _id: &ActivityId, _dead: &[Tombstone]) -> Result<(), TruthError> {
        Ok(())
    }

    async fn states(
        &self,
        id: &ActivityId,
        rids: &[Rid],
    ) -> Result<Vec<(Rid, OrderState)>, TruthError> {
        let mut states = self.store.states(id, rids).await?;
        for rid in rids {
            let is_there = states.iter().any(|(known, _)| known == rid);
            if !is_there && self.absent == Absent::Dead {
                states.push((*rid, OrderState::Abandoned));
            }
        }
        Ok(states)
    }

    // The rest is the store's.

    async fn activity(&self, id: &ActivityId) -> Result<Option<Activity>, TruthError> {
        Truth::activity(&self.store, id).await
    }

    async fn elect(&self, id: &ActivityId, epoch: i64, run: &str) -> Result<bool, TruthError> {
        self.store.elect(id, epoch, run).await
    }

    async fn live_orders(
        &self,
        id: &ActivityId,
        after: Option<Rid>,
        limit: usize,
    ) -> Result<Vec<Order>, TruthError> {
        Truth::live_orders(&self.store, id, after, limit).await
    }

    async fn compensate(&self, id: &ActivityId, unknown: &[Tombstone]) -> Result<(), TruthError> {
        self.store.compensate(id, unknown).await
    }

    async fn ledgers(&self, id: &ActivityId) -> Result<Vec<Ledger>, TruthError> {
        Truth::ledgers(&self.store, id).await
    }
}

// === impl Sale ===

impl Sale {
    async fn open(redis_url: &str, stock: i64, truth: impl Fn(Store) -> Arc<dyn Truth>) -> Self {
        let config = Config {
            database_url: world().database("postgres").await,
            database_connections_max: 8,
            redis_url: Some(redis_url.to_string()),
            ..Config::default()
        };
        let app = App::open(config.clone()).await.expect("it answers");
        let gate = Gate::new(redis_url).expect("a gate");
        let (store, truth) = (Arc::new(app.store.clone()), truth(app.store.clone()));
        let strategy = RedisLua::new(gate.clone(), Arc::clone(&truth), store);
        let name = StrategyName::new("redis-lua");
        let flow = Flow::new(app.with_strategy(name.clone(), Arc::new(strategy)));
        let mut sale = activity(GuardMode::None, stock);
        sale.strategy = name;
        sale.closes_at_ms = 99_999_999_999_999;
        flow.create(&sale).await.expect("a new activity");
        flow.warm_up(&sale.id).await.expect("warmed up");
        flow.open(&sale.id).await.expect("opened");
        Self {
            ground: Arc::new(Ground::open(sale.id, &config.database_url, redis_url).await),
            flow,
            gate,
            truth,
            config,
        }
    }

    /// Buyers, some of whom cancel, until it is stopped.
    fn crowd(&self, stop: &CancellationToken) -> JoinSet<()> {
        let mut crowd = JoinSet::new();
        for buyer in 0..BUYERS {
            let (flow, id) = (Arc::clone(&self.flow), self.ground.id.clone());
            let stop = stop.clone();
            crowd.spawn(async move {
                for n in 0.. {
                    if stop.is_cancelled() {
                        return;
                    }
                    let user = format!("u-{buyer}-{n}");
                    let bought = flow.purchase(purchase(&id, &user)).await;
                    if let Ok(Answer::Ended(Ending::Booked { order, .. })) = bought
                        && n % 2 == 0
                    {
                        flow.cancel(&order.id).await.expect("cancelled");
                    }
                }
            });
        }
        crowd
    }

    /// What the laws of every moment say while a crowd buys and `meddle` goes on beside it: at the
    /// first breach, or after `longest`.
    async fn broken_beside<F>(&self, longest: Duration, meddle: impl Fn() -> F) -> Vec<String>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let stop = CancellationToken::new();
        let mut crowd = self.crowd(&stop);
        let (begun, mut broken) = (clock::now(), Vec::new());
        while broken.is_empty() && begun.elapsed() < longest {
            let meddling = tokio::spawn(meddle());
            broken = self.ground.broken_now().await;
            meddling.await.expect("no panic");
        }
        stop.cancel();
        while let Some(done) = crowd.join_next().await {
            done.expect("no panic");
        }
        broken
    }

    /// Sweeps holds of any age, as often as it can.
    async fn broken_by_sweeping(&self, longest: Duration) -> Vec<String> {
        self.broken_beside(longest, || {
            let (gate, truth, id) = (
                self.gate.clone(),
                Arc::clone(&self.truth),
                self.ground.id.clone(),
            );
            async move {
                for _ in 0..5 {
                    let swept = sweep(&gate, &*truth, &Nobody, &id, NONE).await;
                    swept.expect("swept");
                }
            }
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_tombstone_live_orders_are_given_back() {
    let redis = world().lab.redis_url().expect("redis runs");
    let without = |store| -> Arc<dyn Truth> {
        let absent = Absent::Dead;
        Arc::new(WithoutTombstone { store, absent })
    };
    let naive = Sale::open(&redis, 2_000, without).await;
    let broken = naive.broken_by_sweeping(SHOWS_MAX).await;
    let seen = broken.iter().any(|b| b.contains("has given it back"));
    assert!(seen, "the laws saw nothing: {broken:?}");
    let whole = Sale::open(&redis, 2_000, |store| Arc::new(store)).await;
    let broken = whole.broken_by_sweeping(QUIET).await;
    assert!(broken.is_empty(), "{broken:#?}");
}

/// What is swept without a row in the database stays undecided: its hold never ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_arbiter_that_writes_nothing_leaves_holds_for_ever() {
    let redis = world().lab.redis_url().expect("redis runs");
    for part in [Part::Missing, Part::There] {
        let truth = |store| -> Arc<dyn Truth> {
            let absent = Absent::Undecided;
            match part {
                Part::Missing => Arc::new(WithoutTombstone { store, absent }),
                Part::There => Arc::new(store),
            }
        };
        let sale = Sale::open(&redis, 5, truth).await;
        let order = sale.abandoned_hold("alice").await;
        for _ in 0..3 {
            let swept = sweep(&sale.gate, &*sale.truth, &Nobody, &sale.ground.id, NONE).await;
            swept.expect("swept");
        }
        let broken = sale.ground.broken_at_rest().await;
        let blocked = broken.iter().any(|b| b.starts_with("E1"));
        assert_eq!(blocked, part == Part::Missing, "{order}: {broken:#?}");
    }
}

impl Sale {
    /// A hold whose process died before it booked.
    async fn abandoned_hold(&self, user: &str) -> Rid {
        let bought = purchase(&self.ground.id, user);
        let activity = Truth::activity(&self.ground.store, &self.ground.id).await;
        let activity = activity.expect("an answer").expect("an activity");
        let order = flashlock::order::NewOrder {
            rid: bought.rid(),
            user: bought.user.clone(),
            fingerprint: flashlock::order::Fingerprint::of(&bought),
            lines: bought.lines().to_vec(),
            admitted_at_ms: 1,
        };
        let held = self.gate.reserve(&activity, &[order]).await;
        assert!(held[0].is_ok(), "{held:?}");
        bought.rid()
    }
}

/// "Redis = total − sold", by somebody who reads the one and writes the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reconcile_that_sets_the_counter_breaks_the_law_of_stock() {
    let redis = world().lab.redis_url().expect("redis runs");
    let sale = Sale::open(&redis, 2_000, |store| Arc::new(store)).await;
    let naive = sale.broken_beside(SHOWS_MAX, || {
        let ground = Arc::clone(&sale.ground);
        async move {
            let left = ground
                .number("SELECT available FROM activity_sku WHERE activity_id = $1")
                .await;
            let stock = GateKeys::of(&ground.id).stock;
            let mut set = redis::cmd("HSET");
            set.arg(stock).arg("phone").arg(left);
            let mut redis = ground.redis().await.expect("redis runs");
            set.query_async::<()>(&mut redis).await.expect("set");
        }
    });
    let broken = naive.await;
    let seen = broken.iter().any(|b| b.starts_with("R1"));
    assert!(seen, "the laws saw nothing: {broken:?}");
    let sale = Sale::open(&redis, 2_000, |store| Arc::new(store)).await;
    let whole = sale.broken_beside(QUIET, || {
        let (flow, id) = (Arc::clone(&sale.flow), sale.ground.id.clone());
        async move {
            let told = flow.reconcile(&id, Mode::Repair).await.expect("told");
            assert!(told.findings.is_empty(), "{told:?}");
        }
    });
    let broken = whole.await;
    assert!(broken.is_empty(), "{broken:#?}");
}

/// Redis comes back with an older history: whoever loads its script again and goes on sells from it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_fence_units_and_users_stay_blocked() {
    for fence in [Part::Missing, Part::There] {
        let mut redis = RedisServer::start(&["--appendonly", "yes"]).await;
        let sale = Sale::open(&redis.url(), 6, |store| Arc::new(store)).await;
        let (id, flow) = (sale.ground.id.clone(), &sale.flow);
        for user in ["alice", "bob", "carol"] {
            flow.purchase(purchase(&id, user)).await.expect("sold");
        }
        let older = redis.history();
        // Not in that history: one is sold, and two are given back.
        flow.purchase(purchase(&id, "dave")).await.expect("sold");
        for user in ["alice", "bob"] {
            let order = OrderId {
                activity: id.clone(),
                rid: purchase(&id, user).rid(),
            };
            flow.cancel(&order).await.expect("cancelled");
        }
        assert_eq!(sale.ground.broken_at_rest().await, Vec::<String>::new());
        redis.kill();
        redis.go_back_to(&older);
        redis.start_again().await;

        // The service is another process now: it remembers nothing.
        let flow = Flow::new(App::open(sale.config.clone()).await.expect("it answers"));
        if fence == Part::Missing {
            let now = Truth::activity(&sale.ground.store, &id).await;
            let now = now.expect("an answer").expect("an activity");
            let stamped = Stamped::new(&gate::stamp(&now));
            stamped.load(&mut redis.con().await).await.expect("loaded");
        }
        let begun = clock::now();
        for n in 0..8 {
            // Whoever comes while the gate is rebuilt comes again.
            while let Ok(Answer::Ended(Ending::Recovering)) | Err(_) =
                flow.purchase(purchase(&id, &format!("late-{n}"))).await
            {
                assert!(begun.elapsed() < SHOWS_MAX, "{fence:?}: it never recovers");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        let mut broken = sale.ground.broken_at_rest().await;
        if sale.ground.number(LEFT).await != 0 {
            broken.push("units cannot be sold".to_string());
        }
        match fence {
            Part::Missing => {
                let of = |law: &str| broken.iter().any(|b| b.starts_with(law));
                assert!(of("R2") && of("E2"), "the laws saw nothing: {broken:?}");
            }
            Part::There => assert!(broken.is_empty(), "{broken:#?}"),
        }
    }
}

const LEFT: &str = "SELECT available FROM activity_sku WHERE activity_id = $1";
