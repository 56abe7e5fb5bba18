//! What the gate asks the database.

use std::fmt;

use async_trait::async_trait;

use crate::ledger::Ledger;
use crate::order::{Order, OrderState};
use crate::sale::{Activity, ActivityId, Rid};
use crate::store::{Store, StoreError, Tombstone};

/// The database as the gate's rebuild needs it.
#[async_trait]
pub trait Truth: Send + Sync + fmt::Debug {
    async fn activity(&self, id: &ActivityId) -> Result<Option<Activity>, TruthError>;

    /// `gate_epoch = expect_epoch + 1, gate_run_id = run_id WHERE gate_epoch = expect_epoch`; true
    /// for the one caller whose statement changed the row. That one rebuilds.
    async fn elect(
        &self,
        id: &ActivityId,
        expect_epoch: i64,
        run_id: &str,
    ) -> Result<bool, TruthError>;

    /// Live orders with `rid > after`, at most `limit`, ascending by rid.
    async fn live_orders(
        &self,
        id: &ActivityId,
        after: Option<Rid>,
        limit: usize,
    ) -> Result<Vec<Order>, TruthError>;

    /// The states of those of `rids` that have an order, in any order.
    async fn states(
        &self,
        id: &ActivityId,
        rids: &[Rid],
    ) -> Result<Vec<(Rid, OrderState)>, TruthError>;

    /// Writes an ABANDONED order for each of `dead` that has no order yet, waiting for a booking
    /// of it that is open. Which of the two came first, `states` tells; one that has no state
    /// after this could not be decided now.
    async fn abandon(&self, id: &ActivityId, dead: &[Tombstone]) -> Result<(), TruthError>;

    /// Notes reservations of which nobody knows whether they reached the gate.
    async fn compensate(&self, id: &ActivityId, unknown: &[Tombstone]) -> Result<(), TruthError>;

    /// Where the units are, in one snapshot.
    async fn ledgers(&self, id: &ActivityId) -> Result<Vec<Ledger>, TruthError>;
}

/// Why the database gave no answer.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the database did not answer: {reason}")]
pub struct TruthError {
    pub reason: String,
}

// === impl Truth for Store ===

#[async_trait]
impl Truth for Store {
    async fn activity(&self, id: &ActivityId) -> Result<Option<Activity>, TruthError> {
        Ok(Self::activity(self, id).await?)
    }

    async fn elect(
        &self,
        id: &ActivityId,
        expect_epoch: i64,
        run_id: &str,
    ) -> Result<bool, TruthError> {
        Ok(self.elect_gate(id, expect_epoch, run_id).await?)
    }

    async fn live_orders(
        &self,
        id: &ActivityId,
        after: Option<Rid>,
        limit: usize,
    ) -> Result<Vec<Order>, TruthError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        Ok(Self::live_orders(self, id, after, limit).await?)
    }

    async fn states(
        &self,
        id: &ActivityId,
        rids: &[Rid],
    ) -> Result<Vec<(Rid, OrderState)>, TruthError> {
        let orders = self.orders(rids).await?;
        let of_activity = orders.into_iter().filter(|order| order.id.activity == *id);
        Ok(of_activity
            .map(|order| (order.id.rid, order.state))
            .collect())
    }

    async fn abandon(&self, id: &ActivityId, dead: &[Tombstone]) -> Result<(), TruthError> {
        Ok(self.insert_tombstones(id, dead).await?)
    }

    async fn compensate(&self, id: &ActivityId, unknown: &[Tombstone]) -> Result<(), TruthError> {
        Ok(self.insert_compensations(id, unknown).await?)
    }

    async fn ledgers(&self, id: &ActivityId) -> Result<Vec<Ledger>, TruthError> {
        Ok(Self::ledgers(self, id).await?)
    }
}

impl From<StoreError> for TruthError {
    fn from(error: StoreError) -> Self {
        Self {
            reason: error.to_string(),
        }
    }
}
