//! What is sold, and to whom: an activity, a line and a purchase.

mod id;
mod limits;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use id::{
    ActivityId, IDEMPOTENCY_KEY_BYTES_MAX, IdempotencyKey, InvalidId, LockName, NAME_BYTES_MAX,
    OrderId, Rid, Sku, StrategyName, UserId,
};
pub use limits::{Bucket, CAPACITY_MAX, InvalidBucket, Limits, PER_S_MAX};

/// Most lines one order may have: keeps one Lua call and one transaction short.
pub const LINES_MAX: usize = 20;
/// Most units of one SKU an activity may hold: far below 2^53, the last whole number Lua can count.
pub const STOCK_MAX: i64 = 1_000_000_000;

/// One SKU of an order and how many of it, at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    pub sku: Sku,
    pub quantity: i64,
}

/// A request to buy that has been checked: one line per SKU, SKUs ascending, quantities summed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Purchase {
    pub activity: ActivityId,
    pub user: UserId,
    pub key: IdempotencyKey,
    lines: Vec<Line>,
}

/// How far a lock strategy trusts its lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum GuardMode {
    /// The textbook: trusts the lock and ignores that a lease may have ended.
    None,
    /// Honours the lease: no write is invoked after its local deadline.
    Lease,
    /// The lease, and the store checks a fencing token.
    Fence,
}

/// How an order of `redis-lua` reaches the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Booking {
    /// Before the answer (201).
    Sync,
    /// After the answer (202), from the hold.
    Async,
}

/// Whether a lease is renewed while its holder works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Watchdog {
    On,
    Off,
}

/// Where a sale stands in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ActivityState {
    Draft,
    Warming,
    Ready,
    Open,
    Fenced,
    Pausing,
    Paused,
    Closing,
    Sealed,
}

/// What can happen to an activity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ActivityEvent {
    WarmUp,
    Warmed,
    Open,
    /// The gate noticed that it cannot be trusted.
    Fence,
    Pause,
    /// Nothing is on its way any more.
    Drained,
    /// Another way to sell, for which it has to be warmed up again.
    SetStrategy,
    Close,
    Seal,
}

/// The terms of the activity's lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockSettings {
    /// Length of a lease, in milliseconds.
    pub ttl_ms: i64,
    /// Longest wait for the lock, in milliseconds; then the buyer is told to try again.
    pub wait_ms: i64,
    pub watchdog: Watchdog,
}

/// One SKU of an activity and how many units the sale was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocation {
    pub sku: Sku,
    pub total: i64,
}

/// A sale: what is sold, when, and how its stock is protected. Times are Unix milliseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Activity {
    pub id: ActivityId,
    pub state: ActivityState,
    pub strategy: StrategyName,
    pub guard: GuardMode,
    pub batch_max: i64,
    pub booking: Booking,
    pub lock: LockSettings,
    pub limits: Limits,
    pub opens_at_ms: i64,
    pub closes_at_ms: i64,
    /// How long a buyer may take to pay, in seconds.
    pub pay_window_s: i64,
    /// Most units one user may buy.
    pub units_per_user_max: i64,
    /// Raised by every change of strategy: a token of an earlier generation is stale.
    pub fence_generation: i64,
    /// The gate's generation; whoever rebuilds the gate raises it by compare-and-set.
    pub gate_epoch: i64,
    /// The Redis that the gate was opened on.
    pub gate_run_id: String,
    /// SKUs ascending.
    pub skus: Vec<Allocation>,
}

// === impl Purchase ===

impl Purchase {
    /// Sums the lines of one SKU and puts SKUs in ascending order, the order in which every store
    /// locks them. `None` when there is no line, a quantity is below one, or the sum overflows.
    pub fn new(
        activity: ActivityId,
        user: UserId,
        key: IdempotencyKey,
        lines: impl IntoIterator<Item = Line>,
    ) -> Option<Self> {
        let mut sums: BTreeMap<Sku, i64> = BTreeMap::new();
        for line in lines {
            if line.quantity < 1 {
                return None;
            }
            let sum = sums.entry(line.sku).or_default();
            *sum = sum.checked_add(line.quantity)?;
        }
        let lines: Vec<Line> = sums
            .into_iter()
            .map(|(sku, quantity)| Line { sku, quantity })
            .collect();
        let units = lines
            .iter()
            .try_fold(0i64, |n, l| n.checked_add(l.quantity));
        (!lines.is_empty() && units.is_some()).then_some(Self {
            activity,
            user,
            key,
            lines,
        })
    }

    pub fn lines(&self) -> &[Line] {
        &self.lines
    }

    pub fn units(&self) -> i64 {
        self.lines.iter().map(|l| l.quantity).sum()
    }

    pub fn rid(&self) -> Rid {
        Rid::of(&self.activity, &self.user, &self.key)
    }
}

// === impl ActivityEvent ===

impl ActivityEvent {
    /// Every event, for tables of state by event.
    pub const ALL: [Self; 9] = [
        Self::WarmUp,
        Self::Warmed,
        Self::Open,
        Self::Fence,
        Self::Pause,
        Self::Drained,
        Self::SetStrategy,
        Self::Close,
        Self::Seal,
    ];
}

// === impl ActivityState ===

impl ActivityState {
    /// Every state, for tables of state by event.
    pub const ALL: [Self; 9] = [
        Self::Draft,
        Self::Warming,
        Self::Ready,
        Self::Open,
        Self::Fenced,
        Self::Pausing,
        Self::Paused,
        Self::Closing,
        Self::Sealed,
    ];

    /// The only place that decides what may follow what; SQL repeats it as `WHERE state = ?`.
    /// `None`: not allowed. A repeat of what has happened already keeps the state.
    pub fn next(self, event: ActivityEvent) -> Option<Self> {
        use ActivityEvent as On;
        match (self, event) {
            (Self::Draft | Self::Warming | Self::Paused, On::WarmUp) => Some(Self::Warming),
            (Self::Ready, On::WarmUp) => Some(Self::Ready),
            (Self::Warming | Self::Ready, On::Warmed) => Some(Self::Ready),
            (Self::Ready | Self::Open | Self::Fenced, On::Open) => Some(Self::Open),
            (Self::Open | Self::Fenced, On::Fence) => Some(Self::Fenced),
            (Self::Open | Self::Pausing, On::Pause) => Some(Self::Pausing),
            (Self::Paused, On::Pause) => Some(Self::Paused),
            (Self::Pausing | Self::Paused, On::Drained) => Some(Self::Paused),
            (Self::Draft | Self::Ready | Self::Paused, On::SetStrategy) => Some(Self::Draft),
            (
                Self::Draft
                | Self::Warming
                | Self::Ready
                | Self::Open
                | Self::Fenced
                | Self::Pausing
                | Self::Paused
                | Self::Closing,
                On::Close,
            ) => Some(Self::Closing),
            (Self::Sealed, On::Close | On::Seal) => Some(Self::Sealed),
            (Self::Closing, On::Seal) => Some(Self::Sealed),
            (
                Self::Draft,
                On::Warmed | On::Open | On::Fence | On::Pause | On::Drained | On::Seal,
            )
            | (
                Self::Warming,
                On::Open | On::Fence | On::Pause | On::Drained | On::SetStrategy | On::Seal,
            )
            | (Self::Ready, On::Fence | On::Pause | On::Drained | On::Seal)
            | (Self::Open, On::WarmUp | On::Warmed | On::Drained | On::SetStrategy | On::Seal)
            | (
                Self::Fenced,
                On::WarmUp | On::Warmed | On::Pause | On::Drained | On::SetStrategy | On::Seal,
            )
            | (
                Self::Pausing,
                On::WarmUp | On::Warmed | On::Open | On::Fence | On::SetStrategy | On::Seal,
            )
            | (Self::Paused, On::Warmed | On::Open | On::Fence | On::Seal)
            | (
                Self::Closing | Self::Sealed,
                On::WarmUp
                | On::Warmed
                | On::Open
                | On::Fence
                | On::Pause
                | On::Drained
                | On::SetStrategy,
            ) => None,
        }
    }
}

// === impl Activity ===

impl Activity {
    pub fn total(&self, sku: &Sku) -> Option<i64> {
        self.skus.iter().find(|a| a.sku == *sku).map(|a| a.total)
    }
}

// === names in SQL and JSON ===

/// Text forms that SQL, JSON and reports share.
macro_rules! named {
    ($name:ident { $($variant:ident = $text:literal),+ $(,)? }) => {
        impl $name {
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
        impl FromStr for $name {
            type Err = InvalidId;
            fn from_str(text: &str) -> Result<Self, InvalidId> {
                match text {
                    $($text => Ok(Self::$variant),)+
                    other => Err(InvalidId {
                        what: stringify!($name),
                        problem: format!("`{other}` is unknown; one of {}", [$($text),+].join(", ")),
                    }),
                }
            }
        }
    };
}
pub(crate) use named;

named!(GuardMode { None = "none", Lease = "lease", Fence = "fence" });
named!(Booking { Sync = "sync", Async = "async" });
named!(Watchdog { On = "on", Off = "off" });
named!(ActivityState {
    Draft = "DRAFT",
    Warming = "WARMING",
    Ready = "READY",
    Open = "OPEN",
    Fenced = "FENCED",
    Pausing = "PAUSING",
    Paused = "PAUSED",
    Closing = "CLOSING",
    Sealed = "SEALED",
});
