//! What a reconciliation of one activity found, and what it mended.

use std::fmt;
use std::str::FromStr;

use crate::sale::{InvalidId, Rid, named};

/// Whether differences are only shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Repair,
    DryRun,
}

/// How the stores stood to each other, the gravest last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verdict {
    /// They agree.
    Ok,
    /// They agree but for reservations that are on their way.
    InFlight,
    /// They changed while they were read: nothing is said about the totals.
    Inconclusive,
    /// Units that nobody has and nobody can buy.
    Leak,
    /// Units that somebody has and somebody else could buy.
    Oversold,
    /// Counters that do not add up: an operator has to look.
    Corrupt,
}

/// A way in which two stores can differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Difference {
    /// An old hold whose purchase ended without an order.
    HoldWithoutOrder,
    /// An old hold whose order is live: the gate was not told.
    HoldOfOrder,
    /// Committed at the gate, and its order is not live.
    SoldWithoutOrder,
    /// A live order that the gate does not know.
    OrderUnknown,
    /// A live order whose units the gate gave back.
    OrderGivenBack,
    /// The gate is not there.
    GateLost,
    /// The gate has less to sell than the database.
    TooLittleToSell,
    /// The gate has more to sell than the database.
    TooMuchToSell,
    /// The gate's counters do not add up.
    CountersWrong,
    /// The database has units that are neither for sale nor in a live order.
    UnitsLost,
    /// The database has more units for sale or in live orders than there are.
    OrdersAboveTotal,
    /// The database's stock, orders and ledger do not add up.
    BooksWrong,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// `None`: it is about the whole activity.
    pub rid: Option<Rid>,
    pub difference: Difference,
    /// A sentence for the operator.
    pub reason: String,
    /// By this pass.
    pub repaired: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reconciled {
    /// As it was found, before repairs.
    pub verdict: Verdict,
    pub findings: Vec<Finding>,
}

/// What became of reservations that their purchase had left in between.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settled {
    /// Their order is live.
    pub committed: Vec<Rid>,
    /// Given back; they can never be booked.
    pub released: Vec<Rid>,
    /// The database is not done with them, or the gate lost them: to be asked again.
    pub undecided: Vec<Rid>,
}

named!(Verdict {
    Ok = "OK",
    InFlight = "IN_FLIGHT",
    Inconclusive = "INCONCLUSIVE",
    Leak = "LEAK",
    Oversold = "OVERSOLD",
    Corrupt = "CORRUPT",
});

named!(Difference {
    HoldWithoutOrder = "HOLD_WITHOUT_ORDER",
    HoldOfOrder = "HOLD_OF_ORDER",
    SoldWithoutOrder = "SOLD_WITHOUT_ORDER",
    OrderUnknown = "ORDER_UNKNOWN",
    OrderGivenBack = "ORDER_GIVEN_BACK",
    GateLost = "GATE_LOST",
    TooLittleToSell = "TOO_LITTLE_TO_SELL",
    TooMuchToSell = "TOO_MUCH_TO_SELL",
    CountersWrong = "COUNTERS_WRONG",
    UnitsLost = "UNITS_LOST",
    OrdersAboveTotal = "ORDERS_ABOVE_TOTAL",
    BooksWrong = "BOOKS_WRONG",
});

// === impl Difference ===

impl Difference {
    pub fn verdict(self) -> Verdict {
        match self {
            Self::HoldOfOrder => Verdict::InFlight,
            Self::GateLost => Verdict::Inconclusive,
            Self::HoldWithoutOrder
            | Self::SoldWithoutOrder
            | Self::TooLittleToSell
            | Self::UnitsLost => Verdict::Leak,
            Self::OrderUnknown
            | Self::OrderGivenBack
            | Self::TooMuchToSell
            | Self::OrdersAboveTotal => Verdict::Oversold,
            Self::CountersWrong | Self::BooksWrong => Verdict::Corrupt,
        }
    }
}

// === impl Reconciled ===

impl Reconciled {
    /// The gravest of `found` and what the findings say.
    pub fn new(found: Verdict, findings: Vec<Finding>) -> Self {
        let verdict = findings
            .iter()
            .map(|f| f.difference.verdict())
            .fold(found, Verdict::max);
        Self { verdict, findings }
    }

    /// Nothing was found, or all of it was mended.
    pub fn is_mended(&self) -> bool {
        self.findings.iter().all(|f| f.repaired)
    }

    /// Both together.
    pub fn and(mut self, other: Self) -> Self {
        self.findings.extend(other.findings);
        Self {
            verdict: self.verdict.max(other.verdict),
            findings: self.findings,
        }
    }
}

// === impl Settled ===

impl Settled {
    pub fn and(&mut self, other: Self) {
        self.committed.extend(other.committed);
        self.released.extend(other.released);
        self.undecided.extend(other.undecided);
    }
}
