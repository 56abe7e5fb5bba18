//! From the gate's words and the database's to the purchase's.

use super::{Answer, BookOutcome};
use crate::deduct::{Contention, DeductError, Ending};
use crate::gate::rebuild::is_recovering;
use crate::gate::{GateError, ReserveOutcome};
use crate::order::{NewOrder, Order, OrderState};
use crate::sale::{Activity, ActivityState, OrderId};
use crate::script::gate::{GateState, HoldState};

/// What comes next for one order of a batch.
#[derive(Debug)]
pub(super) enum Turn {
    /// It is held: book it. `left` units of its first SKU were left after the hold.
    Book { left: i64 },
    /// The gate remembers it as settled or given back: the database knows how.
    LookUp,
    /// It ends here.
    Over(Answer),
}

pub(super) fn is_lost(outcome: &Result<ReserveOutcome, GateError>) -> bool {
    matches!(outcome, Err(GateError::NotThisRedis(_)))
}

pub(super) fn is_on_its_way(outcome: &Result<ReserveOutcome, GateError>) -> bool {
    matches!(outcome, Ok(ReserveOutcome::Shut(state)) if is_recovering(*state))
}

/// What comes next for an order that the gate gave `outcome`.
pub(super) fn turn(activity: &Activity, outcome: Result<ReserveOutcome, GateError>) -> Turn {
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(GateError::NotThisRedis(_)) => return Turn::Over(Ok(not_selling(activity))),
        Err(e) => return Turn::Over(Err(broken(e))),
    };
    Turn::Over(Ok(match outcome {
        ReserveOutcome::Held { left } => return Turn::Book { left },
        ReserveOutcome::Replay { state, left } => match state {
            // Every hold records what it left; only settled ones may have lost it.
            HoldState::Pending => {
                return Turn::Book {
                    left: left.unwrap_or(0),
                };
            }
            HoldState::Committed | HoldState::Released => return Turn::LookUp,
        },
        ReserveOutcome::SoldOut { sku, left } => Ending::SoldOut { sku, left },
        ReserveOutcome::UserLimit { live: Some(rid) } => Ending::AlreadyPurchased(OrderId {
            activity: activity.id.clone(),
            rid,
        }),
        ReserveOutcome::UserLimit { live: None } => {
            return Turn::Over(Err(DeductError::Corrupt {
                what: "the gate's limit per user is below the one that admitted the order".into(),
            }));
        }
        ReserveOutcome::NotOpen { opens_at_ms } => Ending::NotOpen { opens_at_ms },
        ReserveOutcome::Ended { closes_at_ms } => Ending::Ended {
            closed_at_ms: closes_at_ms,
        },
        ReserveOutcome::Shut(GateState::Closing | GateState::Sealed) => Ending::Ended {
            closed_at_ms: activity.closes_at_ms,
        },
        ReserveOutcome::Shut(GateState::Paused) => Ending::Paused,
        ReserveOutcome::Shut(
            GateState::Warming | GateState::Ready | GateState::Open | GateState::Fenced,
        ) => not_selling(activity),
        ReserveOutcome::UnknownSku(sku) => Ending::UnknownSku(sku),
        ReserveOutcome::KeyReused => Ending::KeyReused,
        ReserveOutcome::Abandoned => Ending::Abandoned,
        ReserveOutcome::Full => Ending::Busy(Contention::Database),
    }))
}

/// What a buyer is told when the gate does not sell: the database says whether it should.
pub(super) fn not_selling(activity: &Activity) -> Ending {
    match activity.state {
        ActivityState::Open | ActivityState::Fenced => Ending::Recovering,
        // It was open when this purchase was let in, and has been paused since.
        ActivityState::Draft | ActivityState::Warming | ActivityState::Ready
            if activity.fence_generation > 0 =>
        {
            Ending::Paused
        }
        ActivityState::Draft | ActivityState::Warming | ActivityState::Ready => Ending::NotOpen {
            opens_at_ms: activity.opens_at_ms,
        },
        ActivityState::Pausing | ActivityState::Paused => Ending::Paused,
        ActivityState::Closing | ActivityState::Sealed => Ending::Ended {
            closed_at_ms: activity.closes_at_ms,
        },
    }
}

pub(super) fn ending(new: &NewOrder, left: i64, outcome: BookOutcome) -> Ending {
    match outcome {
        BookOutcome::Booked(order) => Ending::Booked {
            order: Box::new(order),
            left,
        },
        BookOutcome::AlreadyThere(order) if order.fingerprint != new.fingerprint => {
            Ending::KeyReused
        }
        BookOutcome::AlreadyThere(order) => replayed(order),
        BookOutcome::AlreadyPurchased(id) => Ending::AlreadyPurchased(id),
        BookOutcome::SoldOut { sku, left } => Ending::SoldOut { sku, left },
        BookOutcome::UnknownSku(sku) => Ending::UnknownSku(sku),
        // The hold stays: the same key books it. Giving it back would end the key.
        BookOutcome::Retry => Ending::Busy(Contention::Database),
    }
}

pub(super) fn replayed(order: Order) -> Ending {
    match order.state {
        OrderState::Abandoned => Ending::Abandoned,
        OrderState::PendingPayment
        | OrderState::Paid
        | OrderState::Closed
        | OrderState::Rejected => Ending::Replayed(Box::new(order)),
    }
}

pub(super) fn unavailable(reason: &str) -> DeductError {
    DeductError::Unavailable {
        server: "redis",
        reason: reason.to_string(),
    }
}

pub(super) fn unknown(server: &'static str, reason: &str) -> DeductError {
    DeductError::Unknown {
        server,
        reason: reason.to_string(),
    }
}

/// Of a question: without an answer, nothing has happened either.
pub(super) fn unread(e: GateError) -> DeductError {
    match e {
        GateError::Unknown(why) => unavailable(&why.to_string()),
        e @ (GateError::Unavailable(_)
        | GateError::NotThisRedis(_)
        | GateError::Corrupt { .. }
        | GateError::Truth(_)) => broken(e),
    }
}

pub(super) fn broken(e: GateError) -> DeductError {
    match e {
        // What they come to is said by the ending.
        GateError::Unavailable(why) => unavailable(&why.to_string()),
        GateError::Unknown(why) => unknown("redis", &why.to_string()),
        GateError::NotThisRedis(_) => unavailable(&e.to_string()),
        GateError::Corrupt { what } => DeductError::Corrupt { what },
        GateError::Truth(e) => DeductError::Unavailable {
            server: "database",
            reason: e.reason,
        },
    }
}
