//! How are orders booked that were accepted for later? From the gate's records alone, in batches,
//! however often: the reservation's row in the database decides.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use super::words::broken;
use super::{BookOutcome, RedisLua};
use crate::clock::{self, Instant};
use crate::deduct::{Batch, Booker, DeductError};
use crate::gate::accepted::{AcceptedHold, BookAccepted, orders};
use crate::gate::queue::{Handed, Queue};
use crate::gate::{GateError, TruthError};
use crate::ledger::reconciled::Settled;
use crate::order::{NewOrder, Order};
use crate::sale::{Activity, ActivityId, Rid};
use crate::script::gate::ORDERS_PER_CALL_MAX;
use crate::store::Rejection;

/// How often a worker looks for what others have left, and at the backlog.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Workers of this process, by activity: they know that its backlog is looked after.
#[derive(Debug, Default)]
pub(super) struct Workers(Mutex<HashMap<ActivityId, usize>>);

/// One booking worker of one activity.
pub(super) struct Worker {
    strategy: RedisLua,
    id: ActivityId,
    queue: Queue,
    /// Handed to it and not settled yet.
    mine: Vec<Handed>,
    looked_at: Option<Instant>,
}

/// The books of accepted holds of one activity.
pub(super) struct Books<'a> {
    strategy: &'a RedisLua,
    id: &'a ActivityId,
}

/// Whether a hold may have been booked already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    First,
    /// By a worker that ended, by this one, or by a sweep: what is there is looked up first, so
    /// that it does not spoil a batch.
    Before,
}

type Booked = Result<BookOutcome, DeductError>;

// === impl Workers ===

impl Workers {
    pub(super) fn is_any_of(&self, id: &ActivityId) -> bool {
        let workers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        workers.contains_key(id)
    }

    fn came(&self, id: &ActivityId) {
        let mut workers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *workers.entry(id.clone()).or_default() += 1;
    }

    fn went(&self, id: &ActivityId) {
        let mut workers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(n) = workers.get_mut(id) {
            *n -= 1;
            if *n == 0 {
                workers.remove(id);
            }
        }
    }
}

// === impl RedisLua ===

impl RedisLua {
    pub(super) fn worker(&self, id: &ActivityId) -> Result<Worker, DeductError> {
        let queue = self.gate.queue(id).map_err(broken)?;
        self.workers.came(id);
        Ok(Worker {
            strategy: self.clone(),
            id: id.clone(),
            queue,
            mine: Vec::new(),
            looked_at: None,
        })
    }

    pub(super) fn books<'a>(&'a self, id: &'a ActivityId) -> Books<'a> {
        Books { strategy: self, id }
    }

    /// Books holds, writes those that the database refuses as REJECTED, and tells the gate. At most
    /// one call's worth. What is undecided is to be asked again; what can never be booked as it is
    /// stands in none of the lists, and waits for an operator.
    async fn book_holds(
        &self,
        activity: &Activity,
        holds: &[AcceptedHold],
        seen: Seen,
    ) -> Result<Settled, DeductError> {
        let now_ms = self.book.now_ms().await?;
        let orders = orders(holds, now_ms);
        if orders.is_empty() {
            return Ok(Settled::default());
        }
        let mut outcomes = self.book_unless_there(activity, &orders, seen).await?;
        self.reject_refused(activity, &orders, &mut outcomes).await;
        self.settle(activity, &orders, &outcomes).await;
        let mut settled = Settled::default();
        let mut failed = None;
        for (order, outcome) in orders.iter().zip(outcomes) {
            match outcome {
                Ok(BookOutcome::Booked(_)) => settled.committed.push(order.rid),
                Ok(BookOutcome::AlreadyThere(there)) if there.state.is_live() => {
                    settled.committed.push(order.rid);
                }
                Ok(BookOutcome::AlreadyThere(_)) => settled.released.push(order.rid),
                Err(DeductError::Corrupt { what }) => {
                    tracing::error!(activity = %activity.id, rid = %order.rid, what, "an accepted order cannot be booked");
                }
                Ok(
                    BookOutcome::Retry
                    | BookOutcome::AlreadyPurchased(_)
                    | BookOutcome::SoldOut { .. }
                    | BookOutcome::UnknownSku(_),
                ) => settled.undecided.push(order.rid),
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            // Whatever was booked or not is found out by the next try.
            Some(error) => Err(error),
            None => Ok(settled),
        }
    }

    async fn book_unless_there(
        &self,
        activity: &Activity,
        orders: &[NewOrder],
        seen: Seen,
    ) -> Result<Vec<Booked>, DeductError> {
        let there: HashMap<Rid, Order> = match seen {
            Seen::First => HashMap::new(),
            Seen::Before => {
                let rids: Vec<Rid> = orders.iter().map(|o| o.rid).collect();
                let found = self.book.find(&activity.id, &rids).await?;
                found.into_iter().map(|o| (o.id.rid, o)).collect()
            }
        };
        let new: Vec<NewOrder> = orders
            .iter()
            .filter(|o| !there.contains_key(&o.rid))
            .cloned()
            .collect();
        let mut booked = match new.is_empty() {
            true => Vec::new().into_iter(),
            false => self.book(activity, &new).await.into_iter(),
        };
        let outcome = |order: &NewOrder| match there.get(&order.rid) {
            Some(there) => Ok(BookOutcome::AlreadyThere(there.clone())),
            None => booked.next().unwrap_or(Ok(BookOutcome::Retry)),
        };
        Ok(orders.iter().map(outcome).collect())
    }

    /// What the database refused ends as a row that says so; whoever wrote one before is right.
    async fn reject_refused(
        &self,
        activity: &Activity,
        orders: &[NewOrder],
        outcomes: &mut [Booked],
    ) {
        let rejected: Vec<Rejection<'_>> = orders
            .iter()
            .zip(outcomes.iter())
            .filter_map(|(order, outcome)| {
                let reason = refusal(outcome)?;
                Some(Rejection { order, reason })
            })
            .collect();
        if rejected.is_empty() {
            return;
        }
        let rows = match self.book.reject(activity, &rejected).await {
            Ok(rows) => rows,
            Err(error) => {
                tracing::warn!(activity = %activity.id, %error, "refused orders are not written yet; trying again");
                Vec::new()
            }
        };
        let mut rows: HashMap<Rid, Order> = rows.into_iter().map(|o| (o.id.rid, o)).collect();
        for (order, outcome) in orders.iter().zip(outcomes.iter_mut()) {
            if refusal(outcome).is_some() {
                // Not given back before the row is there: its buyer would be told nothing.
                *outcome = Ok(match rows.remove(&order.rid) {
                    Some(row) => BookOutcome::AlreadyThere(row),
                    None => BookOutcome::Retry,
                });
            }
        }
    }
}

/// Why the database refuses an order, as its event tells it.
fn refusal(outcome: &Booked) -> Option<&'static str> {
    match outcome {
        Ok(BookOutcome::SoldOut { .. }) => Some("sold-out"),
        Ok(BookOutcome::AlreadyPurchased(_)) => Some("already-purchased"),
        Ok(BookOutcome::UnknownSku(_)) => Some("unknown-sku"),
        Ok(BookOutcome::Booked(_) | BookOutcome::AlreadyThere(_) | BookOutcome::Retry) | Err(_) => {
            None
        }
    }
}

// === impl Books ===

#[async_trait]
impl BookAccepted for Books<'_> {
    async fn book_accepted(&self, holds: &[AcceptedHold]) -> Result<Settled, GateError> {
        let mut settled = Settled::default();
        if holds.is_empty() {
            return Ok(settled);
        }
        let away = |error: DeductError| {
            GateError::Truth(TruthError {
                reason: error.to_string(),
            })
        };
        let activity = self.strategy.fresh(self.id).await.map_err(away)?;
        for holds in holds.chunks(ORDERS_PER_CALL_MAX) {
            let booked = self.strategy.book_holds(&activity, holds, Seen::Before);
            settled.and(booked.await.map_err(away)?);
        }
        Ok(settled)
    }
}

// === impl Worker ===

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("id", &self.id)
            .field("mine", &self.mine.len())
            .finish_non_exhaustive()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.strategy.workers.went(&self.id);
    }
}

impl Worker {
    /// Books what it was handed, and takes that out of the stream.
    async fn book_mine(&mut self, seen: Seen) -> Result<Settled, DeductError> {
        let rids: Vec<Rid> = self.mine.iter().filter_map(|h| h.rid).collect();
        let holds = self.strategy.gate.accepted(&self.id, &rids).await;
        let holds = holds.map_err(broken)?;
        let mut settled = Settled::default();
        if !holds.is_empty() {
            // Read anew: it may have been paused or ended meanwhile, which what is booked must know.
            let activity = self.strategy.fresh(&self.id).await?;
            settled = self.strategy.book_holds(&activity, &holds, seen).await?;
        }
        let is_over = |h: &Handed| h.rid.is_none_or(|rid| !settled.undecided.contains(&rid));
        let over: Vec<String> = self
            .mine
            .iter()
            .filter(|h| is_over(h))
            .map(|h| h.entry.clone())
            .collect();
        self.queue.done(&over).await.map_err(broken)?;
        self.mine.retain(|h| !is_over(h));
        Ok(settled)
    }
}

#[async_trait]
impl Booker for Worker {
    async fn next(&mut self) -> Result<Batch, DeductError> {
        let mut batch = Batch::default();
        let mut seen = Seen::First;
        if !self.mine.is_empty() {
            seen = Seen::Before;
        } else if self.looked_at.is_none_or(|at| at.elapsed() >= LOOK_EVERY) {
            self.looked_at = Some(clock::now());
            let backlog = self.strategy.gate.backlog(&self.id).await;
            batch.backlog = Some(backlog.map_err(broken)?);
            self.mine = self.queue.left_by_others().await.map_err(broken)?;
            batch.reclaimed = self.mine.len();
            if !self.mine.is_empty() {
                seen = Seen::Before;
                self.looked_at = None;
            }
        }
        if self.mine.is_empty() {
            self.mine = self.queue.read().await.map_err(broken)?;
        }
        if !self.mine.is_empty() {
            batch.settled = self.book_mine(seen).await?;
        }
        Ok(batch)
    }
}
