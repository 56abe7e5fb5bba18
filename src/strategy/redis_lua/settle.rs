//! What the gate is told once the database has decided.
//!
//! Nothing here changes a buyer's answer: the database has spoken, and what Redis does not hear now
//! it is told by the next repeat of the same key, by a close, or by a rebuild.

use super::{BookOutcome, RedisLua};
use crate::deduct::DeductError;
use crate::gate::rebuild::rehold_checked;
use crate::gate::{GateError, Mismatch};
use crate::order::{NewOrder, Order};
use crate::sale::{Activity, Rid};
use crate::script::gate::{CommitAnswer, ReleaseAnswer};

impl RedisLua {
    /// Tells the gate what became of its holds. An unknown outcome leaves the hold: the same key
    /// finds out.
    pub(super) async fn settle(
        &self,
        activity: &Activity,
        orders: &[NewOrder],
        booked: &[Result<BookOutcome, DeductError>],
    ) {
        let mut live: Vec<&Order> = Vec::new();
        let mut dead: Vec<Rid> = Vec::new();
        let mut replaced: Vec<Order> = Vec::new();
        for (new, outcome) in orders.iter().zip(booked) {
            match outcome {
                Ok(BookOutcome::Booked(order)) => live.push(order),
                Ok(BookOutcome::AlreadyThere(order)) if order.fingerprint != new.fingerprint => {
                    // The gate had lost the order and held what the reused key asked for.
                    dead.push(new.rid);
                    replaced.extend(order.state.is_live().then(|| order.clone()));
                }
                Ok(BookOutcome::AlreadyThere(order)) if order.state.is_live() => live.push(order),
                Ok(
                    BookOutcome::AlreadyThere(_)
                    | BookOutcome::AlreadyPurchased(_)
                    | BookOutcome::SoldOut { .. }
                    | BookOutcome::UnknownSku(_),
                ) => dead.push(new.rid),
                Ok(BookOutcome::Retry) | Err(_) => {}
            }
        }
        if let Err(e) = self.commit_live(activity, &live).await {
            tracing::warn!(activity = %activity.id, error = %e, "booked orders are still pending in the gate");
        }
        self.give_back(activity, &dead, "refused").await;
        let reheld = rehold_checked(&self.gate, &*self.truth, &activity.id, &replaced).await;
        if let Err(e) = reheld {
            tracing::warn!(activity = %activity.id, error = %e, "the gate does not know an order that is live");
        }
    }

    /// Commits live orders; what the gate lost or gave back meanwhile is held again if the
    /// database still has it live.
    async fn commit_live(&self, activity: &Activity, live: &[&Order]) -> Result<(), GateError> {
        let rids: Vec<Rid> = live.iter().map(|o| o.id.rid).collect();
        let mut lost = Vec::new();
        for (order, answer) in live
            .iter()
            .zip(self.gate.commit(&activity.id, &rids).await?)
        {
            match answer {
                CommitAnswer::Committed | CommitAnswer::Already => {}
                CommitAnswer::Missing | CommitAnswer::Dead => lost.push((*order).clone()),
                CommitAnswer::Corrupt => {
                    let what = format!("fewer units are pending than {} holds", order.id);
                    return Err(GateError::Corrupt { what });
                }
            }
        }
        rehold_checked(&self.gate, &*self.truth, &activity.id, &lost).await
    }

    /// Gives back what dead reservations took.
    pub(super) async fn give_back(&self, activity: &Activity, dead: &[Rid], reason: &str) {
        if dead.is_empty() {
            return;
        }
        match self.gate.release(&activity.id, dead, reason).await {
            Ok(answers) => {
                for (rid, answer) in dead.iter().zip(answers) {
                    if answer == ReleaseAnswer::Corrupt {
                        tracing::error!(activity = %activity.id, %rid, "fewer units are counted than the reservation took");
                    }
                }
            }
            Err(e) => {
                tracing::warn!(activity = %activity.id, error = %e, "released orders still hold stock in the gate");
            }
        }
    }

    /// Commits orders that are live and releases those that are not. An order that was closed after
    /// it was read is found by the check behind the commit. A gate that is not there is nobody's to
    /// tell: its rebuild reads the database.
    pub(super) async fn mirror_orders(
        &self,
        activity: &Activity,
        orders: &[Order],
    ) -> Result<(), GateError> {
        let (live, dead): (Vec<&Order>, Vec<&Order>) =
            orders.iter().partition(|order| order.state.is_live());
        if !live.is_empty() {
            match self.commit_live(activity, &live).await {
                Ok(()) | Err(GateError::NotThisRedis(Mismatch::NotWarmed)) => {}
                Err(e) => return Err(e),
            }
        }
        let dead: Vec<Rid> = dead.iter().map(|order| order.id.rid).collect();
        if dead.is_empty() {
            return Ok(());
        }
        let answers = self.gate.release(&activity.id, &dead, "mirror").await?;
        for (rid, answer) in dead.iter().zip(answers) {
            if answer == ReleaseAnswer::Corrupt {
                let what = format!("fewer units are counted than {rid} took");
                return Err(GateError::Corrupt { what });
            }
        }
        Ok(())
    }
}
