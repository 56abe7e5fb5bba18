//! The answers of the gate's scripts.

mod read;

pub(super) use read::done;

use super::{GateState, HoldState};
use crate::sale::{Rid, Sku};

/// What came back from a script that serves several items: one answer for each, and the gate's
/// sequence number after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done<T> {
    /// Raised by every change; one that goes back tells of a Redis that lost its history.
    pub seq: i64,
    pub answers: Vec<T>,
}

/// What `reserve.lua` says about one order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReserveAnswer {
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
    /// `None`: this order alone is above the user's limit.
    UserLimit {
        live: Option<Rid>,
    },
    NotOpen {
        opens_at_ms: i64,
    },
    Ended {
        closes_at_ms: i64,
    },
    /// The gate is not open.
    Gate(GateState),
    /// The gate was rebuilt; `epoch` is the one there.
    StaleEpoch {
        epoch: i64,
    },
    UnknownSku(Sku),
    /// The same reservation with another content.
    FingerprintMismatch,
    /// Given up before it arrived.
    Abandoned,
    BadArg,
    /// Too many holds wait for their booking.
    Full {
        holds: i64,
    },
    NotWarmed,
    /// A counter or the activity's terms are not what the scripts wrote.
    Corrupt {
        what: String,
    },
}

/// What `commit.lua` says about one reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitAnswer {
    Committed,
    Already,
    /// Released or given up.
    Dead,
    Missing,
    Corrupt,
}

/// What `release.lua` says about one reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseAnswer {
    Released,
    Already,
    /// It was not there; should it still arrive, it is refused.
    Tombstoned,
    Corrupt,
    /// The activity is not in this Redis.
    Gone,
}

/// What `rehold.lua` says about one order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReholdAnswer {
    Reheld,
    /// It had been released or given up here.
    ReheldDead,
    Already,
    /// Still a hold: commit it.
    Pending,
    UnknownSku,
    Corrupt,
    Gone,
}

/// What `warm.lua` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WarmAnswer {
    Warmed,
    /// The counters were there and were kept.
    Kept,
    Gate(GateState),
    StaleEpoch {
        epoch: i64,
    },
    Mismatch {
        what: String,
    },
    BadArg {
        what: String,
    },
}

/// What `seal.lua` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SealAnswer {
    Sealed,
    Already,
    Gate(GateState),
    StaleEpoch {
        epoch: i64,
    },
    NotWarmed,
    Mismatch {
        what: String,
    },
    /// The SKU whose counters do not add up.
    Corrupt {
        sku: String,
    },
}

/// What `open.lua` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpenAnswer {
    Opened,
    Already,
    Gate(GateState),
    StaleEpoch { epoch: i64 },
    NotWarmed,
}

/// What `gate.lua` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Moved {
    Set {
        from: GateState,
    },
    /// It stands where it may not be moved from.
    Gate(GateState),
    StaleEpoch {
        epoch: i64,
    },
    NotWarmed,
    BadArg {
        what: String,
    },
}

/// What `expire.lua` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExpireAnswer {
    Expires,
    /// The activity is not in this Redis.
    Gone,
    BadArg {
        what: String,
    },
}

/// What `recount.lua` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecountAnswer {
    /// So many counters were wrong.
    Counted {
        changed: i64,
    },
    Gate(GateState),
    StaleEpoch {
        epoch: i64,
    },
    NotWarmed,
    Corrupt {
        what: String,
    },
}

/// What `audit.lua` saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditAnswer {
    pub seq: i64,
    pub epoch: i64,
    /// `None` when the activity was never warmed.
    pub state: Option<GateState>,
    /// Reservations that wait for their booking.
    pub holds: i64,
    pub skus: Vec<SkuCount>,
}

/// Where the units of one SKU are; `None` where the counter is missing or not a number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkuCount {
    pub sku: String,
    pub total: Option<i64>,
    pub stock: Option<i64>,
    pub pending: Option<i64>,
    pub committed: Option<i64>,
}

/// An answer that no script of ours gives.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{script} answered what it never does: {answer}")]
pub struct Unreadable {
    pub script: &'static str,
    pub answer: String,
}
