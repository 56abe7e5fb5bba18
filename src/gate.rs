//! The Redis gate of one sale: what may be asked of it, and what its failures mean.
//!
//! The gate keeps the crowd out; the database is the truth. *Take* Redis first, then the database;
//! *give back* the database first, then Redis.

pub mod accepted;
mod connection;
pub mod queue;
mod read;
pub mod rebuild;
pub mod reconcile;
mod recount;
pub mod recovery;
pub mod sweep;
mod truth;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::keys::GateKeys;
use crate::ledger::Ledger;
use crate::order::{NewOrder, Order};
use crate::sale::{Activity, ActivityId, Rid, Sku};
use crate::script::gate::{
    CommitAnswer, ExpireAnswer, GateState, HoldState, Moved, ORDERS_PER_CALL_MAX, OpenAnswer,
    ReholdAnswer, ReleaseAnswer, ReserveAnswer, ScriptError, SealAnswer, ShutState, Stamp, Terms,
    WarmAnswer,
};

pub use connection::Gate;
pub use truth::{Truth, TruthError};

/// Live orders that one user may have in one activity (invariant D2).
pub const ORDERS_PER_USER_MAX: i64 = 1;
/// Holds that may wait for their booking before buyers are told to try again. Bounds what the
/// gate promises while the database is away.
pub const HOLDS_MAX: i64 = 10_000;

/// What a reservation came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReserveOutcome {
    /// Held. `left` units of its first SKU were left after it.
    Held {
        left: i64,
    },
    /// Seen before. `left` as it was then, `None` where it was not recorded.
    Replay {
        state: HoldState,
        left: Option<i64>,
    },
    SoldOut {
        sku: Sku,
        left: i64,
    },
    /// The user has a live order already; `None`: this order alone is above the limit.
    UserLimit {
        live: Option<Rid>,
    },
    NotOpen {
        opens_at_ms: i64,
    },
    Ended {
        closes_at_ms: i64,
    },
    /// The gate is known and does not sell now.
    Shut(GateState),
    UnknownSku(Sku),
    KeyReused,
    Abandoned,
    /// `HOLDS_MAX` holds wait for their booking.
    Full,
}

/// One consistent picture of the gate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Audit {
    /// Raised by every change.
    pub seq: i64,
    pub epoch: i64,
    pub state: GateState,
    /// Reservations that wait for their booking.
    pub holds: i64,
    /// By SKU: `held` are the pending units, `sold` the committed ones.
    pub ledgers: Vec<Ledger>,
}

/// Why the gate gave no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum GateError {
    /// Out of reach or refusing; nothing was changed.
    #[error("redis is out of reach: {0}")]
    Unavailable(#[source] Arc<ScriptError>),
    /// The command may have been carried out: the same reservation finds out.
    #[error("redis did not say whether it happened: {0}")]
    Unknown(#[source] Arc<ScriptError>),
    /// Not the Redis that was opened, or one that lost its history: the gate must be rebuilt.
    /// Nothing was changed.
    #[error("this is not the redis that the gate was opened on: {0}")]
    NotThisRedis(Mismatch),
    /// It holds what it must not: an operator has to look.
    #[error("the gate is corrupt: {what}")]
    Corrupt { what: String },
    /// The database could not be asked.
    #[error(transparent)]
    Truth(#[from] TruthError),
}

/// How a Redis was recognised as another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mismatch {
    /// It does not know the stamped script: restarted, failed over or flushed.
    NoScript,
    /// The gate there has another epoch.
    StaleEpoch { epoch: i64 },
    /// The activity is not there.
    NotWarmed,
    /// The sequence number went back: it was rolled back under its run_id.
    SeqWentBack { seen: i64, now: i64 },
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoScript => f.write_str("it does not know the stamped script"),
            Self::StaleEpoch { epoch } => write!(f, "its gate has epoch {epoch}"),
            Self::NotWarmed => f.write_str("the activity is not there"),
            Self::SeqWentBack { seen, now } => {
                write!(f, "its sequence number went back from {seen} to {now}")
            }
        }
    }
}

// === impl Audit ===

impl Audit {
    /// A sentence on each SKU that breaks the law of stock: what can be sold, is held and is sold is
    /// the total, and neither of the last two is below zero.
    pub fn wrong_counters(&self) -> Vec<String> {
        let wrong = self
            .ledgers
            .iter()
            .filter(|l| l.available + l.held + l.sold != l.total || l.held < 0 || l.sold < 0);
        wrong
            .map(|l| {
                format!(
                    "of {}: {} to sell + {} held + {} sold is not the total of {}",
                    l.sku, l.available, l.held, l.sold, l.total
                )
            })
            .collect()
    }
}

// === impl Gate ===

/// The terms that the gate enforces for `activity`.
fn terms(activity: &Activity) -> Terms {
    Terms {
        opens_at_ms: activity.opens_at_ms,
        closes_at_ms: activity.closes_at_ms,
        orders_per_user_max: ORDERS_PER_USER_MAX,
        units_per_user_max: activity.units_per_user_max,
        holds_max: HOLDS_MAX,
    }
}

/// The opening of the gate that the database says `activity` has.
pub fn stamp(activity: &Activity) -> Stamp {
    Stamp {
        activity: activity.id.clone(),
        epoch: activity.gate_epoch,
        run_id: activity.gate_run_id.clone(),
        terms: terms(activity),
    }
}

fn stale(epoch: i64) -> GateError {
    GateError::NotThisRedis(Mismatch::StaleEpoch { epoch })
}

const NOT_WARMED: GateError = GateError::NotThisRedis(Mismatch::NotWarmed);

/// What a move or a warm-up met instead of what it asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Done,
    /// It was so before.
    Already,
    /// The gate stands in a state that does not allow it.
    Refused(GateState),
}

impl Gate {
    /// Takes stock for `orders` in one step, one outcome per order and in its order.
    ///
    /// # Errors
    /// `Unknown`: it may be held; ask again with the same orders. `NotThisRedis`: rebuild.
    ///
    /// # Cancel safety
    /// A dropped call may still be carried out by Redis; the same reservation finds out.
    pub async fn reserve(
        &self,
        activity: &Activity,
        orders: &[NewOrder],
    ) -> Vec<Result<ReserveOutcome, GateError>> {
        let mut outcomes = Vec::with_capacity(orders.len());
        for chunk in orders.chunks(ORDERS_PER_CALL_MAX) {
            match self.reserve_call(activity, chunk).await {
                Ok(answers) => outcomes.extend(answers.into_iter().map(outcome)),
                Err(e) => outcomes.extend(chunk.iter().map(|_| Err(e.clone()))),
            }
        }
        outcomes
    }

    /// Settles holds whose orders are in the database. Safe to repeat.
    pub async fn commit(
        &self,
        id: &ActivityId,
        rids: &[Rid],
    ) -> Result<Vec<CommitAnswer>, GateError> {
        let keys = GateKeys::of(id);
        let mut answers = Vec::with_capacity(rids.len());
        for chunk in rids.chunks(ORDERS_PER_CALL_MAX) {
            let done = self.scripts.commit(&mut self.con(), &keys, chunk).await;
            answers.extend(done.map_err(GateError::from)?.answers);
        }
        Ok(answers)
    }

    /// Gives back what reservations took, each at most once. Safe to repeat.
    pub async fn release(
        &self,
        id: &ActivityId,
        rids: &[Rid],
        reason: &str,
    ) -> Result<Vec<ReleaseAnswer>, GateError> {
        let keys = GateKeys::of(id);
        let mut answers = Vec::with_capacity(rids.len());
        for chunk in rids.chunks(ORDERS_PER_CALL_MAX) {
            let mut con = self.con();
            let done = self.scripts.release(&mut con, &keys, chunk, reason).await;
            answers.extend(done.map_err(GateError::from)?.answers);
        }
        Ok(answers)
    }

    /// Makes the gate agree with orders that are live in the database. Safe to repeat.
    pub async fn rehold(
        &self,
        id: &ActivityId,
        orders: &[Order],
    ) -> Result<Vec<ReholdAnswer>, GateError> {
        let keys = GateKeys::of(id);
        let mut answers = Vec::with_capacity(orders.len());
        for chunk in orders.chunks(ORDERS_PER_CALL_MAX) {
            let done = self.scripts.rehold(&mut self.con(), &keys, chunk).await;
            answers.extend(done.map_err(GateError::from)?.answers);
        }
        Ok(answers)
    }

    /// Brings stock and terms into Redis under the activity's epoch. Counters that are there are
    /// kept. `Refused(Open)` on an open gate.
    pub async fn warm(&self, activity: &Activity) -> Result<Step, GateError> {
        let keys = GateKeys::of(&activity.id);
        let (epoch, terms) = (activity.gate_epoch, terms(activity));
        let mut con = self.con();
        let answer = self
            .scripts
            .warm(&mut con, &keys, epoch, &terms, &activity.skus);
        match answer.await.map_err(GateError::from)? {
            WarmAnswer::Warmed => Ok(Step::Done),
            WarmAnswer::Kept => Ok(Step::Already),
            WarmAnswer::Gate(state) => Ok(Step::Refused(state)),
            WarmAnswer::StaleEpoch { epoch } => Err(stale(epoch)),
            WarmAnswer::Mismatch { what } => Err(GateError::Corrupt {
                what: format!("the stock in redis is another activity's or another plan's: {what}"),
            }),
            WarmAnswer::BadArg { what } => Err(GateError::Corrupt {
                what: format!("the gate does not take the activity's terms: {what}"),
            }),
        }
    }

    /// Declares the warm-up complete once the counters equal the manifest and balance.
    pub async fn seal(&self, activity: &Activity) -> Result<Step, GateError> {
        let keys = GateKeys::of(&activity.id);
        let mut con = self.con();
        let answer = self
            .scripts
            .seal(&mut con, &keys, activity.gate_epoch, &activity.skus);
        match answer.await.map_err(GateError::from)? {
            SealAnswer::Sealed => Ok(Step::Done),
            SealAnswer::Already => Ok(Step::Already),
            SealAnswer::Gate(state) => Ok(Step::Refused(state)),
            SealAnswer::StaleEpoch { epoch } => Err(stale(epoch)),
            SealAnswer::NotWarmed => Err(NOT_WARMED),
            SealAnswer::Mismatch { what } => Err(GateError::Corrupt {
                what: format!("what was warmed up is not the manifest: {what}"),
            }),
            SealAnswer::Corrupt { sku } => Err(GateError::Corrupt {
                what: format!("stock + pending + committed is not the total of {sku}"),
            }),
        }
    }

    /// Lets buyers in, through the stamped script: a Redis that is not the one that was warmed up
    /// answers `NotThisRedis`.
    pub async fn open(&self, activity: &Activity) -> Result<Step, GateError> {
        let opening = self.opening(activity);
        let keys = GateKeys::of(&activity.id);
        let answer = opening.stamped.open(&mut self.con(), &keys).await;
        match answer.map_err(GateError::from)? {
            OpenAnswer::Opened => Ok(Step::Done),
            OpenAnswer::Already => Ok(Step::Already),
            OpenAnswer::Gate(state) => Ok(Step::Refused(state)),
            OpenAnswer::StaleEpoch { epoch } => Err(stale(epoch)),
            OpenAnswer::NotWarmed => Err(NOT_WARMED),
        }
    }

    /// Moves the gate to a state in which nothing is sold; `epoch` is raised as well when given.
    /// `Refused(Sealed)` once the sale is over.
    ///
    /// # Errors
    /// `NotThisRedis(NotWarmed)`: there is nothing to shut.
    pub async fn shut(
        &self,
        id: &ActivityId,
        state: ShutState,
        epoch: Option<i64>,
    ) -> Result<Step, GateError> {
        const FROM: [GateState; 6] = [
            GateState::Warming,
            GateState::Ready,
            GateState::Open,
            GateState::Fenced,
            GateState::Closing,
            GateState::Paused,
        ];
        self.shut_from(id, state, epoch, &FROM).await
    }

    /// The same from one of the states `from`.
    async fn shut_from(
        &self,
        id: &ActivityId,
        state: ShutState,
        epoch: Option<i64>,
        from: &[GateState],
    ) -> Result<Step, GateError> {
        let keys = GateKeys::of(id);
        let answer = self
            .scripts
            .gate(&mut self.con(), &keys, epoch, state, from)
            .await;
        match answer.map_err(GateError::from)? {
            Moved::Set { from } if from.as_str() == state.as_str() => Ok(Step::Already),
            Moved::Set { .. } => Ok(Step::Done),
            Moved::Gate(state) => Ok(Step::Refused(state)),
            Moved::StaleEpoch { epoch } => Err(stale(epoch)),
            Moved::NotWarmed => Err(NOT_WARMED),
            Moved::BadArg { what } => Err(GateError::Corrupt { what }),
        }
    }

    /// Ends what is kept of an activity here: all of its keys go at one moment, once `grace` is over.
    /// Safe to repeat.
    pub async fn expire(&self, id: &ActivityId, grace: Duration) -> Result<(), GateError> {
        let keys = GateKeys::of(id);
        let answer = self.scripts.expire(&mut self.con(), &keys, grace).await;
        match answer.map_err(GateError::from)? {
            ExpireAnswer::Expires | ExpireAnswer::Gone => Ok(()),
            ExpireAnswer::BadArg { what } => Err(GateError::Corrupt { what }),
        }
    }

    /// Reads every counter at once. `None` when the activity is not in this Redis.
    pub async fn audit(&self, id: &ActivityId) -> Result<Option<Audit>, GateError> {
        let keys = GateKeys::of(id);
        let seen = self.scripts.audit(&mut self.con(), &keys).await;
        let seen = seen.map_err(GateError::from)?;
        let Some(state) = seen.state else {
            return Ok(None);
        };
        let mut ledgers = Vec::with_capacity(seen.skus.len());
        for c in seen.skus {
            let (Ok(sku), Some(total), Some(available), Some(held), Some(sold)) =
                (c.sku.parse(), c.total, c.stock, c.pending, c.committed)
            else {
                let what = format!("a counter of {} is missing or not a number", c.sku);
                return Err(GateError::Corrupt { what });
            };
            ledgers.push(Ledger {
                sku,
                total,
                available,
                held,
                sold,
            });
        }
        ledgers.sort_by(|a, b| a.sku.cmp(&b.sku));
        Ok(Some(Audit {
            seq: seen.seq,
            epoch: seen.epoch,
            state,
            holds: seen.holds,
            ledgers,
        }))
    }
}

fn outcome(answer: ReserveAnswer) -> Result<ReserveOutcome, GateError> {
    Ok(match answer {
        ReserveAnswer::Held { left } => ReserveOutcome::Held { left },
        ReserveAnswer::Replay { state, left } => ReserveOutcome::Replay { state, left },
        ReserveAnswer::SoldOut { sku, left } => ReserveOutcome::SoldOut { sku, left },
        ReserveAnswer::UserLimit { live } => ReserveOutcome::UserLimit { live },
        ReserveAnswer::NotOpen { opens_at_ms } => ReserveOutcome::NotOpen { opens_at_ms },
        ReserveAnswer::Ended { closes_at_ms } => ReserveOutcome::Ended { closes_at_ms },
        ReserveAnswer::Gate(state) => ReserveOutcome::Shut(state),
        ReserveAnswer::UnknownSku(sku) => ReserveOutcome::UnknownSku(sku),
        ReserveAnswer::FingerprintMismatch => ReserveOutcome::KeyReused,
        ReserveAnswer::Abandoned => ReserveOutcome::Abandoned,
        ReserveAnswer::Full { holds: _ } => ReserveOutcome::Full,
        ReserveAnswer::StaleEpoch { epoch } => return Err(stale(epoch)),
        ReserveAnswer::NotWarmed => return Err(NOT_WARMED),
        ReserveAnswer::BadArg => {
            let what = "the gate does not take the order's arguments".to_string();
            return Err(GateError::Corrupt { what });
        }
        ReserveAnswer::Corrupt { what } => {
            let what = format!("{what} is missing or not a number");
            return Err(GateError::Corrupt { what });
        }
    })
}
