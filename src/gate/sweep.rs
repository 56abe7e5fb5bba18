//! How reservations end that their purchase left in between: the database's primary key decides.
//!
//! A purchase that is only slow and a sweeper that gives it up both write the order's row; the
//! first one is right. *Without that row live orders were released: 65 to 69 in twelve seconds.*

use std::collections::HashMap;
use std::time::Duration;

use super::accepted::{AcceptedHold, BookAccepted};
use super::queue::Handover;
use super::{Gate, GateError, NOT_WARMED, Truth};
use crate::ledger::reconciled::Settled;
use crate::order::OrderState;
use crate::sale::{ActivityId, Rid};
use crate::script::gate::{CommitAnswer, ORDERS_PER_CALL_MAX, ReleaseAnswer};
use crate::store::Tombstone;

/// Pages of old holds in one pass: as many as there can be holds.
const PAGES_MAX: usize = super::HOLDS_MAX as usize / ORDERS_PER_CALL_MAX + 1;

/// Which accepted holds a sweep books: a backlog is no orphan, and is left to the booking workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backlog {
    /// Workers are known to be there: only what the stream has lost.
    OfWorkers,
    /// Also what has waited in the stream for longer than any worker would let it.
    Unknown,
}

/// Which holds are left to those who are at them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// Younger ones are.
    pub age: Duration,
    pub backlog: Backlog,
}

/// Longer than a database is away for a restart; what waits longer though it need not is booked by
/// whoever sees it.
const WAITED_TOO_LONG_MS: i64 = 30_000;

/// Ends the holds that are older than `patience` spares, by Redis's clock. Those that their purchase books:
/// committed when they are booked, the others can never be booked and give back what they took.
/// Those that were accepted for later are booked, as far as its `backlog` says. Safe to repeat and to run
/// in several processes at once; no age is too small, it only spares slow purchases.
///
/// # Cancel safety
/// Dropped half way it has ended some of them; the next pass ends the others.
pub async fn sweep(
    gate: &Gate,
    truth: &dyn Truth,
    books: &dyn BookAccepted,
    id: &ActivityId,
    patience: Patience,
) -> Result<Settled, GateError> {
    let Patience { age, backlog } = patience;
    let mut settled = Settled::default();
    let mut skip = 0;
    for _ in 0..PAGES_MAX {
        let mut page = gate.overdue(id, age, skip).await?;
        gate.unlist(id, &page.strays).await?;
        let mut now = arbitrate(gate, truth, id, &page.holds).await?;
        if !page.accepted.is_empty() {
            let handover = gate.handover(id).await?;
            page.accepted
                .retain(|hold| is_left(hold, handover, backlog));
            if page.accepted.is_empty() && page.holds.is_empty() {
                // What comes after is younger, and its workers have it in hand as well.
                break;
            }
            now.and(books.book_accepted(&page.accepted).await?);
        }
        // What ended has left the index.
        skip += page
            .listed
            .saturating_sub(page.strays.len() + now.committed.len() + now.released.len());
        settled.and(now);
        if page.listed < ORDERS_PER_CALL_MAX {
            break;
        }
    }
    Ok(settled)
}

/// Whether no worker would find an accepted hold, or none seems to look.
fn is_left(hold: &AcceptedHold, handover: Handover, backlog: Backlog) -> bool {
    let Some(accepted_ms) = hold.record.accepted_at_ms else {
        return false;
    };
    // Entries are handed over in the order of time: what is older than the oldest is not among them.
    let is_lost = handover.oldest_ms.is_none_or(|oldest| accepted_ms < oldest);
    match backlog {
        Backlog::OfWorkers => is_lost,
        Backlog::Unknown => is_lost || handover.now_ms - accepted_ms >= WAITED_TOO_LONG_MS,
    }
}

/// Ends `reservations`, whether they have reached the gate or not: one that arrives later is
/// refused.
///
/// # Errors
/// `NotThisRedis(NotWarmed)`: the activity is not in this Redis. `Corrupt`: a counter is smaller
/// than what it counts.
pub async fn arbitrate(
    gate: &Gate,
    truth: &dyn Truth,
    id: &ActivityId,
    reservations: &[Tombstone],
) -> Result<Settled, GateError> {
    let mut settled = Settled::default();
    for chunk in reservations.chunks(ORDERS_PER_CALL_MAX) {
        truth.abandon(id, chunk).await?;
        let rids: Vec<Rid> = chunk.iter().map(|t| t.rid).collect();
        let states: HashMap<Rid, OrderState> = truth.states(id, &rids).await?.into_iter().collect();
        let (mut live, mut dead) = (Vec::new(), Vec::new());
        for rid in rids {
            match states.get(&rid) {
                Some(state) if state.is_live() => live.push(rid),
                Some(_) => dead.push(rid),
                None => settled.undecided.push(rid),
            }
        }
        for (rid, answer) in live.iter().zip(gate.commit(id, &live).await?) {
            match answer {
                CommitAnswer::Committed | CommitAnswer::Already => settled.committed.push(*rid),
                // Live, and the gate does not have it: for the reconciler.
                CommitAnswer::Missing | CommitAnswer::Dead => settled.undecided.push(*rid),
                CommitAnswer::Corrupt => {
                    let what = format!("fewer units are pending than {rid} holds");
                    return Err(GateError::Corrupt { what });
                }
            }
        }
        for (rid, answer) in dead.iter().zip(gate.release(id, &dead, "abandoned").await?) {
            match answer {
                ReleaseAnswer::Released | ReleaseAnswer::Already | ReleaseAnswer::Tombstoned => {
                    settled.released.push(*rid);
                }
                ReleaseAnswer::Gone => return Err(NOT_WARMED),
                ReleaseAnswer::Corrupt => {
                    let what = format!("fewer units are counted than {rid} took");
                    return Err(GateError::Corrupt { what });
                }
            }
        }
    }
    Ok(settled)
}
