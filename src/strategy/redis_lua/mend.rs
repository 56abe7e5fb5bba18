//! What purchases leave between the gate and the database when they are interrupted, and who ends it.

use std::time::Duration;

use super::RedisLua;
use super::words::{broken, unread};
use crate::deduct::{DeductError, Known};
use crate::gate::accepted::BookAccepted;
use crate::gate::sweep::{Backlog, Patience, arbitrate, sweep};
use crate::gate::{self, Gate, GateError, Mismatch, ReserveOutcome};
use crate::ledger::reconciled::{Mode, Reconciled, Settled};
use crate::order::NewOrder;
use crate::sale::{Activity, ActivityId, OrderId, Rid};
use crate::script::gate::RecordState;
use crate::store::Tombstone;

/// How long a hold is left to its purchase: as long as a booking may wait for the hot row. No value
/// is too small to be safe; a smaller one gives up purchases that are only slow.
const GRACE: Duration = Duration::from_secs(3);

pub(super) async fn known(gate: &Gate, id: &OrderId) -> Result<Known, DeductError> {
    let records = gate.look(&id.activity, &[id.rid]).await.map_err(unread)?;
    let state = records.into_iter().flatten().next().map(|r| r.state);
    Ok(match state {
        // Committed, and not in the database that was asked just before: it is now.
        Some(RecordState::Pending | RecordState::Committed) => Known::OnItsWay,
        Some(RecordState::Released | RecordState::Tombstone) => Known::Dead,
        None => Known::Nothing,
    })
}

impl RedisLua {
    pub(super) async fn sweep_holds(&self, id: &ActivityId) -> Result<Settled, DeductError> {
        let (gate, truth, books) = (&self.gate, &*self.truth, &self.books(id));
        match sweep(gate, truth, books, id, self.patience(id)).await {
            // What is not there has no holds; whoever buys next finds out and has it rebuilt.
            Err(GateError::NotThisRedis(Mismatch::NotWarmed)) => Ok(Settled::default()),
            swept => swept.map_err(broken),
        }
    }

    /// Ends reservations of which nobody knows whether they arrived. One that did and was accepted
    /// is booked, as its buyer was told if the same key came again; the others get the row that ends
    /// them, and whichever row is written first is right.
    pub(super) async fn resolve_unknown(
        &self,
        id: &ActivityId,
        reservations: &[Tombstone],
    ) -> Result<Settled, DeductError> {
        let rids: Vec<Rid> = reservations.iter().map(|t| t.rid).collect();
        let accepted = self.gate.accepted(id, &rids).await.map_err(broken)?;
        let booked = self.books(id).book_accepted(&accepted).await;
        let mut settled = booked.map_err(broken)?;
        let is_accepted = |t: &&Tombstone| accepted.iter().any(|hold| hold.rid == t.rid);
        let others: Vec<Tombstone> = reservations
            .iter()
            .filter(|t| !is_accepted(t))
            .cloned()
            .collect();
        let ended = arbitrate(&self.gate, &*self.truth, id, &others).await;
        settled.and(ended.map_err(broken)?);
        Ok(settled)
    }

    pub(super) async fn reconcile_gate(
        &self,
        id: &ActivityId,
        mode: Mode,
    ) -> Result<Reconciled, DeductError> {
        let (gate, truth, books) = (&self.gate, &*self.truth, &self.books(id));
        gate::reconcile::reconcile(gate, truth, books, id, self.patience(id), mode)
            .await
            .map_err(broken)
    }

    fn patience(&self, id: &ActivityId) -> Patience {
        Patience {
            age: GRACE,
            backlog: match self.workers.is_any_of(id) {
                true => Backlog::OfWorkers,
                false => Backlog::Unknown,
            },
        }
    }

    /// Notes the reservations of which nobody knows whether they arrived. The buyer is told so;
    /// the same key finds out, or the resolver ends them.
    pub(super) async fn compensate(
        &self,
        activity: &Activity,
        batch: &[NewOrder],
        outcomes: &[Result<ReserveOutcome, GateError>],
    ) {
        let unknown: Vec<Tombstone> = batch
            .iter()
            .zip(outcomes)
            .filter(|(_, outcome)| matches!(outcome, Err(GateError::Unknown(_))))
            .map(|(new, _)| Tombstone {
                rid: new.rid,
                user: new.user.clone(),
                fingerprint: new.fingerprint.clone(),
            })
            .collect();
        if unknown.is_empty() {
            return;
        }
        if let Err(e) = self.truth.compensate(&activity.id, &unknown).await {
            // Should it have arrived, or still arrive, it is a hold, which grows old and is swept.
            tracing::warn!(activity = %activity.id, error = %e, "unknown reservations are not noted");
        }
    }
}
