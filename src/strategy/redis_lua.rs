//! `redis-lua`: one script dedupes, deducts and holds; no lock. Stock lives in Redis and is settled
//! into the database, which has the last word.

mod accepted;
mod book;
mod life;
mod mend;
mod settle;
mod words;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rand::RngExt;

use super::{Entry, Kind, Missing, Need, Servers};
use crate::clock;
use crate::deduct::{Booker, Closed, Deduct, DeductError, Ending, Known};
use crate::gate::rebuild::{Rebuilt, is_recovering, rebuild, shut_state};
use crate::gate::reconcile::fence;
use crate::gate::recovery::{Next, Recovery, Seen};
use crate::gate::{Gate, GateError, Mismatch, Step, Truth};
use crate::ledger::reconciled::{Mode, Reconciled, Settled};
use crate::lock::Guarantees;
use crate::order::{CloseReason, NewOrder, Order};
use crate::sale::{Activity, ActivityId, Booking, OrderId, Rid};
use crate::script::gate::ShutState;
use crate::store::Tombstone;
use accepted::Workers;
pub use book::{Book, BookOutcome};
use words::{
    Turn, broken, ending, is_lost, is_on_its_way, replayed, turn, unavailable, unknown, unread,
};

/// How often one call tries to book what the database refused for contention; then the hold stays
/// and the same key tries again.
const BOOK_TRIES_MAX: u32 = 4;
/// No try is begun after this long: a call that waited for a connection in vain has been as long as
/// a buyer may be kept.
const BOOK_TRY_MAX: Duration = Duration::from_secs(2);
/// Between those tries, in milliseconds: a few transactions' worth, spread so that the losers of a
/// deadlock do not meet again.
const BOOK_PAUSE_MS: std::ops::Range<u64> = 2..20;
/// How often one call adopts a newer epoch; a gate that is rebuilt again and again is recovering.
const ADOPTIONS_MAX: u32 = 2;

/// The strategy over one Redis and one database. Cloning shares both.
#[derive(Debug, Clone)]
pub struct RedisLua {
    gate: Gate,
    truth: Arc<dyn Truth>,
    book: Arc<dyn Book>,
    recovery: Arc<Recovery>,
    workers: Arc<Workers>,
}

type Answer = Result<Ending, DeductError>;

pub(super) const ENTRY: Entry = Entry {
    kind: Kind::Gate,
    needs: &[Need::Redis],
    open,
};

fn open(servers: &Servers) -> Result<Box<dyn Deduct>, Missing> {
    let gate = Gate::new(servers.redis_url()?).map_err(Servers::not_redis)?;
    let store = Arc::new(servers.store.clone());
    Ok(Box::new(RedisLua::new(gate, store.clone(), store)))
}

// === impl RedisLua ===

impl RedisLua {
    pub fn new(gate: Gate, truth: Arc<dyn Truth>, book: Arc<dyn Book>) -> Self {
        let recovery = Recovery::new(gate.clone(), Arc::clone(&truth));
        Self {
            gate,
            truth,
            book,
            recovery: Arc::new(recovery),
            workers: Arc::default(),
        }
    }

    /// Holds what can be held, and says what comes next for each order.
    async fn hold(&self, activity: &Activity, batch: &[NewOrder]) -> Vec<Turn> {
        let mut adopted = self.recovery.current(activity);
        let mut adoptions = 0;
        loop {
            let used = adopted.as_deref().unwrap_or(activity);
            let mut outcomes = self.gate.reserve(used, batch).await;
            if outcomes
                .iter()
                .any(|o| matches!(o, Err(GateError::Unknown(_))))
            {
                // The same reservations find out what became of the first call. What it did not
                // answer stays unknown unless the second one answers.
                let again = self.gate.reserve(used, batch).await;
                for (first, second) in outcomes.iter_mut().zip(again) {
                    if matches!(first, Err(GateError::Unknown(_))) && second.is_ok() {
                        *first = second;
                    }
                }
            }
            let seen = if outcomes.iter().any(is_lost) {
                Some(Seen::NotThisRedis)
            } else if outcomes.iter().any(is_on_its_way) {
                Some(Seen::Recovering)
            } else {
                if outcomes.iter().any(Result::is_ok) {
                    self.recovery.answered(used);
                }
                None
            };
            let next = match seen {
                Some(seen) => self.recovery.lost(used, seen).await,
                None => Next::Wait,
            };
            let now = match &next {
                Next::Again(later) if adoptions < ADOPTIONS_MAX => {
                    adoptions += 1;
                    adopted = Some(Arc::clone(later));
                    continue;
                }
                Next::Again(now) | Next::Shut(now) => now,
                Next::Wait => used,
            };
            self.compensate(now, batch, &outcomes).await;
            return outcomes.into_iter().map(|o| turn(now, o)).collect();
        }
    }

    /// Books, trying again what met contention, up to `BOOK_TRIES_MAX` times.
    async fn book(
        &self,
        activity: &Activity,
        orders: &[NewOrder],
    ) -> Vec<Result<BookOutcome, DeductError>> {
        let begun = clock::now();
        let mut outcomes = self.book.book(activity, orders).await;
        for _ in 1..BOOK_TRIES_MAX {
            let again: Vec<usize> = (0..outcomes.len())
                .filter(|i| matches!(outcomes[*i], Ok(BookOutcome::Retry)))
                .collect();
            if again.is_empty() || begun.elapsed() >= BOOK_TRY_MAX {
                break;
            }
            let pause = rand::rng().random_range(BOOK_PAUSE_MS);
            tokio::time::sleep(Duration::from_millis(pause)).await;
            let orders: Vec<NewOrder> = again.iter().map(|i| orders[*i].clone()).collect();
            let second = self.book.book(activity, &orders).await;
            for (i, outcome) in again.into_iter().zip(second) {
                outcomes[i] = outcome;
            }
        }
        outcomes
    }

    /// The orders that the gate remembers as settled or given back.
    async fn look_up(&self, activity: &Activity, orders: &[NewOrder]) -> Vec<Answer> {
        if orders.is_empty() {
            return Vec::new();
        }
        let rids: Vec<Rid> = orders.iter().map(|o| o.rid).collect();
        let found = match self.book.find(&activity.id, &rids).await {
            Ok(found) => found,
            Err(e) => {
                let reason = e.to_string();
                return orders
                    .iter()
                    .map(|_| Err(unknown("database", &reason)))
                    .collect();
            }
        };
        rids.iter()
            .map(|rid| match found.iter().find(|o| o.id.rid == *rid) {
                Some(order) => Ok(replayed(order.clone())),
                // Given back and without an order: it was refused or given up.
                None => Ok(Ending::Abandoned),
            })
            .collect()
    }

    /// The activity as the database has it now: its epoch is what the gate is opened with.
    async fn fresh(&self, id: &ActivityId) -> Result<Activity, DeductError> {
        let found = self
            .truth
            .activity(id)
            .await
            .map_err(|e| broken(e.into()))?;
        found.ok_or_else(|| DeductError::Corrupt {
            what: format!("there is no activity {id}"),
        })
    }

    async fn rebuild(&self, id: &ActivityId) -> Result<Rebuilt, DeductError> {
        let rebuilt = rebuild(&self.gate, &*self.truth, id).await;
        if let Ok(Rebuilt::Open(activity) | Rebuilt::Ready(activity)) = &rebuilt {
            self.recovery.learn(activity.clone());
        }
        rebuilt.map_err(broken)
    }
}

#[async_trait]
impl Deduct for RedisLua {
    fn guarantees(&self) -> Guarantees {
        Guarantees {
            protects_by: "one Lua script that dedupes, deducts and writes the hold; no lock",
            stock_lives_in: "redis, settled into the database",
            fair: false,
            fenced: false,
            survives_failover: true,
            frees_after_crash: "sweep",
            note: "a Redis that lost its history is recognised (stamped scripts, EVALSHA only) and \
                   rebuilt from the database; buyers get 503 meanwhile, never sold out. A hold whose \
                   process died is ended by the sweeper, or by its key when that is used again",
        }
    }

    async fn ready(&self) -> Result<(), DeductError> {
        self.gate.ping().await.map_err(broken)?;
        self.book.ready().await
    }

    async fn warm_up(&self, activity: &Activity) -> Result<(), DeductError> {
        self.warm(&activity.id).await
    }

    async fn open(&self, activity: &Activity) -> Result<(), DeductError> {
        let now = self.fresh(&activity.id).await?;
        match self.gate.open(&now).await {
            Ok(Step::Done | Step::Already) => {
                self.recovery.learn(now);
                return Ok(());
            }
            Ok(Step::Refused(state)) if is_recovering(state) => {}
            Ok(Step::Refused(state)) => {
                return Err(unavailable(&format!("the gate is {state}")));
            }
            Err(GateError::NotThisRedis(_)) => {}
            Err(e) => return Err(broken(e)),
        }
        // It was never warmed up, or not on this Redis, or not to the end.
        match self.rebuild(&activity.id).await? {
            Rebuilt::Open(_) => Ok(()),
            Rebuilt::NotElected => Err(unavailable("another process is opening it")),
            Rebuilt::Ready(a) | Rebuilt::Shut(a) => {
                Err(unavailable(&format!("the activity is {}", a.state)))
            }
            Rebuilt::NoSuchActivity => Err(DeductError::Corrupt {
                what: format!("there is no activity {}", activity.id),
            }),
        }
    }

    async fn shut(&self, activity: &Activity) -> Result<(), DeductError> {
        let state = shut_state(activity.state).unwrap_or(ShutState::Closing);
        match self.gate.shut(&activity.id, state, None).await {
            Ok(Step::Done | Step::Already | Step::Refused(_))
            | Err(GateError::NotThisRedis(Mismatch::NotWarmed)) => Ok(()),
            Err(e) => Err(broken(e)),
        }
    }

    async fn deduct(&self, activity: &Activity, batch: &[NewOrder]) -> Vec<Answer> {
        let mut answers: Vec<Option<Answer>> = Vec::with_capacity(batch.len());
        let mut to_book: Vec<(usize, i64)> = Vec::new();
        let mut to_find: Vec<usize> = Vec::new();
        for (i, turn) in self.hold(activity, batch).await.into_iter().enumerate() {
            answers.push(match turn {
                Turn::LookUp => {
                    to_find.push(i);
                    None
                }
                Turn::Book { left } => {
                    to_book.push((i, left));
                    None
                }
                Turn::Over(answer) => Some(answer),
            });
        }

        let pick = |indices: &mut dyn Iterator<Item = usize>| -> Vec<NewOrder> {
            indices.map(|i| batch[i].clone()).collect()
        };
        let found = self
            .look_up(activity, &pick(&mut to_find.iter().copied()))
            .await;
        for (i, answer) in to_find.into_iter().zip(found) {
            answers[i] = Some(answer);
        }

        if activity.booking == Booking::Async {
            // Handed over by the script that held them.
            for (i, _) in to_book.drain(..) {
                answers[i] = Some(Ok(Ending::Accepted(batch[i].id(&activity.id))));
            }
        }
        if !to_book.is_empty() {
            let orders = pick(&mut to_book.iter().map(|(i, _)| *i));
            let booked = self.book(activity, &orders).await;
            self.settle(activity, &orders, &booked).await;
            for ((i, left), outcome) in to_book.into_iter().zip(booked) {
                answers[i] = Some(outcome.map(|o| ending(&batch[i], left, o)));
            }
        }
        answers
            .into_iter()
            .map(|a| a.unwrap_or_else(|| Err(unknown("database", "it left an order out"))))
            .collect()
    }

    async fn close(
        &self,
        activity: &Activity,
        orders: &[OrderId],
        why: CloseReason,
    ) -> Vec<Result<Closed, DeductError>> {
        let closed = self.book.close(activity, orders, why).await;
        // After the database. An order that was closed before is released again: the process that
        // closed it may have died in between, and a reservation gives back once.
        let dead: Vec<Rid> = orders
            .iter()
            .zip(&closed)
            .filter(|(_, c)| match c {
                Ok(Closed::Closed) => true,
                Ok(Closed::NotPending(order)) => !order.state.is_live(),
                Ok(Closed::NotFound) | Err(_) => false,
            })
            .map(|(id, _)| id.rid)
            .collect();
        self.give_back(activity, &dead, why.as_str()).await;
        closed
    }

    fn has_mirror(&self) -> bool {
        true
    }

    async fn mirror(&self, activity: &Activity, orders: &[Order]) -> Result<(), DeductError> {
        self.mirror_orders(activity, orders).await.map_err(broken)
    }

    async fn sweep(&self, id: &ActivityId) -> Result<Settled, DeductError> {
        self.sweep_holds(id).await
    }

    async fn resolve(
        &self,
        id: &ActivityId,
        reservations: &[Tombstone],
    ) -> Result<Settled, DeductError> {
        self.resolve_unknown(id, reservations).await
    }

    async fn reconcile(&self, id: &ActivityId, mode: Mode) -> Result<Reconciled, DeductError> {
        self.reconcile_gate(id, mode).await
    }

    async fn in_flight(&self, id: &ActivityId) -> Result<i64, DeductError> {
        self.holds(id).await
    }

    async fn retire(&self, id: &ActivityId, grace: Duration) -> Result<(), DeductError> {
        self.gate.expire(id, grace).await.map_err(broken)
    }

    async fn fence(&self, id: &ActivityId) -> Result<(), DeductError> {
        fence(&self.gate, id).await.map_err(broken)
    }

    async fn may_hold(&self, id: &ActivityId, order: &NewOrder) -> Result<bool, DeductError> {
        let known = self.gate.knows(id, order.rid, &order.user).await;
        known.map_err(unread)
    }

    async fn known(&self, id: &OrderId) -> Result<Known, DeductError> {
        mend::known(&self.gate, id).await
    }

    fn booker(&self, id: &ActivityId) -> Result<Option<Box<dyn Booker>>, DeductError> {
        Ok(Some(Box::new(self.worker(id)?)))
    }
}
