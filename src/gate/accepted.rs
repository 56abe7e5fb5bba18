//! How does a hold that was accepted for later become an order again? From the gate's record alone.

use async_trait::async_trait;

use super::GateError;
use crate::ledger::reconciled::Settled;
use crate::order::NewOrder;
use crate::sale::Rid;
use crate::script::gate::{Record, RecordState};

/// A hold that its purchase left to the booking workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcceptedHold {
    pub rid: Rid,
    pub record: Record,
}

/// Who books accepted holds. Safe to ask for the same hold again, and in several processes at once.
#[async_trait]
pub trait BookAccepted: Send + Sync {
    /// Books each, or writes that it is refused, and tells the gate.
    ///
    /// # Errors
    /// The database or the gate gave no answer; what was booked until then stays so.
    async fn book_accepted(&self, holds: &[AcceptedHold]) -> Result<Settled, GateError>;
}

/// The orders of holds that are to be booked, their pay windows counting from `admitted_at_ms`.
pub fn orders(holds: &[AcceptedHold], admitted_at_ms: i64) -> Vec<NewOrder> {
    let order = |hold: &AcceptedHold| {
        let record = &hold.record;
        Some(NewOrder::held(
            hold.rid,
            record.user.clone()?,
            record.fingerprint.clone(),
            record.lines.clone(),
            admitted_at_ms,
        ))
    };
    holds.iter().filter_map(order).collect()
}

// === impl AcceptedHold ===

impl AcceptedHold {
    /// `None`: the record is no hold any more, or its purchase books it itself.
    pub fn of(rid: Rid, record: Record) -> Option<Self> {
        let is_hold = match record.state {
            RecordState::Pending => record.user.is_some(),
            RecordState::Committed | RecordState::Released | RecordState::Tombstone => false,
        };
        (is_hold && record.accepted_at_ms.is_some()).then_some(Self { rid, record })
    }
}
