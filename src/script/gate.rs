//! The gate's Lua scripts as typed functions: what goes in, and every answer that comes back.

mod answer;
mod call;
mod record;

pub use answer::{
    AuditAnswer, CommitAnswer, Done, ExpireAnswer, Moved, OpenAnswer, RecountAnswer, ReholdAnswer,
    ReleaseAnswer, ReserveAnswer, SealAnswer, SkuCount, Unreadable, WarmAnswer,
};
pub use call::{GateScripts, ScriptError, Stamped};
pub use record::{Record, RecordState};

use std::fmt;
use std::str::FromStr;

use crate::sale::{ActivityId, InvalidId, named};

/// Most orders one call may carry; the scripts refuse more, so that one call stays short.
pub const ORDERS_PER_CALL_MAX: usize = 256;

/// What names one opening of one gate on one Redis. It stands in the text of `reserve.lua` and
/// `open.lua`, so their SHA is known to nobody else.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Stamp {
    pub activity: ActivityId,
    /// Raised by every rebuild, by compare-and-set in the database.
    pub epoch: i64,
    /// The `run_id` of the Redis that the gate was rebuilt on.
    pub run_id: String,
    /// What `reserve.lua` enforces without reading it.
    pub terms: Terms,
}

/// Where a gate stands, in Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GateState {
    Warming,
    Ready,
    Open,
    Fenced,
    Closing,
    Paused,
    Sealed,
}

/// A state in which nothing is sold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ShutState {
    Fenced,
    Closing,
    Paused,
    Sealed,
}

/// Where a reservation stands, in Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HoldState {
    Pending,
    Committed,
    Released,
}

/// The terms that `warm.lua` writes beside the stock. Times are Unix milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Terms {
    pub opens_at_ms: i64,
    pub closes_at_ms: i64,
    /// Live orders that one user may have.
    pub orders_per_user_max: i64,
    /// Units that one user may have in live orders.
    pub units_per_user_max: i64,
    /// Holds that may wait for their booking; then buyers are told to try again.
    pub holds_max: i64,
}

// === impl GateState ===

named!(GateState {
    Warming = "WARMING",
    Ready = "READY",
    Open = "OPEN",
    Fenced = "FENCED",
    Closing = "CLOSING",
    Paused = "PAUSED",
    Sealed = "SEALED",
});

// === impl ShutState ===

named!(ShutState {
    Fenced = "FENCED",
    Closing = "CLOSING",
    Paused = "PAUSED",
    Sealed = "SEALED",
});

// === impl HoldState ===

named!(HoldState {
    Pending = "P",
    Committed = "C",
    Released = "R",
});
