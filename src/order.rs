//! An order: what dedupe makes of a purchase, the row it becomes, and the states it may pass through.

use sha2::{Digest, Sha256};

use crate::sale::{Activity, ActivityId, Line, OrderId, Purchase, Rid, UserId, named};
use std::fmt;
use std::str::FromStr;

use crate::sale::InvalidId;

/// A purchase that is neither a replay nor a second order of its user, as far as dedupe could see.
/// Only `flow/dedupe.rs` makes one, and `gate/accepted.rs` makes it again from the gate's record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewOrder {
    pub rid: Rid,
    pub user: UserId,
    /// Tells the same key with another body from a repeat.
    pub fingerprint: Fingerprint,
    /// One line per SKU, SKUs ascending.
    pub lines: Vec<Line>,
    /// When it was let in, by the clock that decides for its strategy; for an order that is booked
    /// later, when its booking began: a backlog costs its buyer nothing of the pay window, which
    /// counts from here. Unix milliseconds.
    pub admitted_at_ms: i64,
}

/// SHA-256 of what is bought and by whom, the first 16 bytes in hex.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Fingerprint(String);

/// Where an order stands. Live = `PendingPayment` or `Paid`: it holds stock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum OrderState {
    PendingPayment,
    Paid,
    Closed,
    Rejected,
    Abandoned,
}

/// Why an order was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CloseReason {
    Timeout,
    User,
    Admin,
}

/// What can happen to an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OrderEvent {
    Book,
    Reject,
    Abandon,
    Pay,
    Close(CloseReason),
}

/// An event that the order's state does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an order that is {state:?} does not take {event:?}")]
pub struct IllegalEvent {
    pub state: Option<OrderState>,
    pub event: OrderEvent,
}

/// An order as the database has it. Times are Unix milliseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    pub id: OrderId,
    pub user: UserId,
    pub state: OrderState,
    pub close_reason: Option<CloseReason>,
    pub fingerprint: Fingerprint,
    pub lines: Vec<Line>,
    pub created_at_ms: i64,
    pub pay_deadline_ms: i64,
}

// === impl NewOrder ===

impl NewOrder {
    /// Called by dedupe alone (`tests/tidy.rs` holds that), once it has looked `purchase` up.
    pub(crate) fn deduped(purchase: &Purchase, admitted_at_ms: i64) -> Self {
        Self {
            rid: purchase.rid(),
            user: purchase.user.clone(),
            fingerprint: Fingerprint::of(purchase),
            lines: purchase.lines().to_vec(),
            admitted_at_ms,
        }
    }

    /// Called by `gate/accepted.rs` alone (`tests/tidy.rs` holds that): what dedupe had made, as the
    /// gate's record kept it until its booking begins, at `admitted_at_ms`.
    pub(crate) fn held(
        rid: Rid,
        user: UserId,
        fingerprint: Fingerprint,
        lines: Vec<Line>,
        admitted_at_ms: i64,
    ) -> Self {
        Self {
            rid,
            user,
            fingerprint,
            lines,
            admitted_at_ms,
        }
    }

    pub fn units(&self) -> i64 {
        self.lines.iter().map(|l| l.quantity).sum()
    }

    /// Until when it may be paid. Unix milliseconds.
    pub fn pay_deadline_ms(&self, activity: &Activity) -> i64 {
        self.admitted_at_ms + activity.pay_window_s * 1000
    }

    /// The order that booking it makes.
    pub fn booked(&self, activity: &Activity) -> Order {
        Order {
            id: self.id(&activity.id),
            user: self.user.clone(),
            state: OrderState::PendingPayment,
            close_reason: None,
            fingerprint: self.fingerprint.clone(),
            lines: self.lines.clone(),
            created_at_ms: self.admitted_at_ms,
            pay_deadline_ms: self.pay_deadline_ms(activity),
        }
    }

    pub fn id(&self, activity: &ActivityId) -> OrderId {
        OrderId {
            activity: activity.clone(),
            rid: self.rid,
        }
    }
}

// === impl Fingerprint ===

impl Fingerprint {
    pub fn of(purchase: &Purchase) -> Self {
        let mut hash = Sha256::new();
        hash.update(purchase.user.as_str());
        for line in purchase.lines() {
            hash.update([0x1f]);
            hash.update(line.sku.as_str());
            hash.update([0x1e]);
            hash.update(line.quantity.to_be_bytes());
        }
        Self(hex::encode(&hash.finalize()[..16]))
    }

    pub fn from_store(text: String) -> Self {
        Self(text)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

// === impl OrderState ===

impl OrderState {
    /// The only place that decides what may follow what; SQL repeats it as `WHERE state = ?`.
    /// `state` is `None` before the order's first row.
    pub fn next(state: Option<Self>, event: OrderEvent) -> Result<Self, IllegalEvent> {
        let illegal = Err(IllegalEvent { state, event });
        match (state, event) {
            (None, OrderEvent::Book) => Ok(Self::PendingPayment),
            (None, OrderEvent::Reject) => Ok(Self::Rejected),
            (None, OrderEvent::Abandon) => Ok(Self::Abandoned),
            (None, OrderEvent::Pay | OrderEvent::Close(_)) => illegal,
            (Some(Self::PendingPayment), OrderEvent::Pay) => Ok(Self::Paid),
            (Some(Self::PendingPayment), OrderEvent::Close(_)) => Ok(Self::Closed),
            (
                Some(Self::PendingPayment),
                OrderEvent::Book | OrderEvent::Reject | OrderEvent::Abandon,
            ) => illegal,
            (Some(Self::Paid | Self::Closed | Self::Rejected | Self::Abandoned), _) => illegal,
        }
    }

    /// Holds stock, and stands in the way of a second order of the same user.
    pub fn is_live(self) -> bool {
        match self {
            Self::PendingPayment | Self::Paid => true,
            Self::Closed | Self::Rejected | Self::Abandoned => false,
        }
    }
}

named!(OrderState {
    PendingPayment = "PENDING_PAYMENT",
    Paid = "PAID",
    Closed = "CLOSED",
    Rejected = "REJECTED",
    Abandoned = "ABANDONED",
});
named!(CloseReason { Timeout = "timeout", User = "user", Admin = "admin" });

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_and_event_pair_is_decided() {
        use CloseReason::{Admin, Timeout, User};
        use OrderEvent::{Abandon, Book, Close, Pay, Reject};
        let states = [
            None,
            Some(OrderState::PendingPayment),
            Some(OrderState::Paid),
            Some(OrderState::Closed),
            Some(OrderState::Rejected),
            Some(OrderState::Abandoned),
        ];
        let allowed = [
            (None, Book, OrderState::PendingPayment),
            (None, Reject, OrderState::Rejected),
            (None, Abandon, OrderState::Abandoned),
            (Some(OrderState::PendingPayment), Pay, OrderState::Paid),
            (
                Some(OrderState::PendingPayment),
                Close(Timeout),
                OrderState::Closed,
            ),
            (
                Some(OrderState::PendingPayment),
                Close(User),
                OrderState::Closed,
            ),
            (
                Some(OrderState::PendingPayment),
                Close(Admin),
                OrderState::Closed,
            ),
        ];
        for state in states {
            for event in [
                Book,
                Reject,
                Abandon,
                Pay,
                Close(Timeout),
                Close(User),
                Close(Admin),
            ] {
                let want = allowed
                    .iter()
                    .find(|(s, e, _)| *s == state && *e == event)
                    .map(|(_, _, next)| *next)
                    .ok_or(IllegalEvent { state, event });
                assert_eq!(
                    OrderState::next(state, event),
                    want,
                    "{state:?} + {event:?}"
                );
            }
        }
    }
}
