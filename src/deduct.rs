//! A way to sell, and the one critical section that all locks share.

mod allot;
mod conditional;
mod locked;
pub mod replay;
mod stopped;
mod transacted;

use std::time::Duration;

use async_trait::async_trait;

pub use allot::{allot, lines_of, skus_of};
pub use conditional::{Conditional, book, close};
pub use locked::Locked;
pub use transacted::{Form, Sold, Transacted};

use crate::ledger::reconciled::{Mode, Reconciled, Settled, Verdict};
use crate::lock::Guarantees;
use crate::order::{CloseReason, NewOrder, Order};
use crate::sale::{Activity, ActivityId, OrderId, Sku};
use crate::store::Tombstone;

/// A way to sell: takes stock and books the order, and gives stock back.
#[async_trait]
pub trait Deduct: Send + Sync + std::fmt::Debug {
    fn guarantees(&self) -> Guarantees;

    /// Whether the servers it relies on answer now. `Err` names the one that does not, and what to do.
    async fn ready(&self) -> Result<(), DeductError>;

    /// Puts the activity's stock where this strategy sells from. Safe to repeat. For most the
    /// database is that place already.
    async fn warm_up(&self, activity: &Activity) -> Result<(), DeductError> {
        let _ = activity;
        Ok(())
    }

    /// Lets buyers in, once the database says so. Safe to repeat.
    async fn open(&self, activity: &Activity) -> Result<(), DeductError> {
        let _ = activity;
        Ok(())
    }

    /// Lets no further buyer in. What is in flight may still settle. Safe to repeat.
    async fn shut(&self, activity: &Activity) -> Result<(), DeductError> {
        let _ = activity;
        Ok(())
    }

    /// One ending per order of the batch, in its order. An order is sold whole or not at all, at
    /// most once per reservation id.
    ///
    /// # Cancel safety
    /// None: a drop during COMMIT would let go of the lock while the commit is on its way. The
    /// caller spawns it.
    async fn deduct(
        &self,
        activity: &Activity,
        batch: &[NewOrder],
    ) -> Vec<Result<Ending, DeductError>>;

    /// Closes orders that are still unpaid and gives back what they took, in one transaction. Safe
    /// to repeat.
    ///
    /// # Cancel safety
    /// None, as `deduct`.
    async fn close(
        &self,
        activity: &Activity,
        orders: &[OrderId],
        why: CloseReason,
    ) -> Vec<Result<Closed, DeductError>>;

    /// Whether it keeps a copy of orders outside the database, so that their events must reach it.
    fn has_mirror(&self) -> bool {
        false
    }

    /// Makes that copy agree with `orders`, which have just been read from the database, and makes
    /// sure after writing that they still stand so. Safe to repeat and to call late.
    ///
    /// # Cancel safety
    /// Dropped, it is done or not; ask again.
    async fn mirror(&self, activity: &Activity, orders: &[Order]) -> Result<(), DeductError> {
        let _ = (activity, orders);
        Ok(())
    }

    /// Ends what purchases left between the stores, a while after. Safe to repeat, and in several
    /// processes at once. For most there is nothing in between.
    async fn sweep(&self, id: &ActivityId) -> Result<Settled, DeductError> {
        let _ = id;
        Ok(Settled::default())
    }

    /// Ends reservations of which nobody knows whether they were made; one that arrives after is
    /// refused. Those that are not in the answer as committed or released are to be asked again.
    async fn resolve(
        &self,
        id: &ActivityId,
        reservations: &[Tombstone],
    ) -> Result<Settled, DeductError> {
        let _ = (id, reservations);
        Ok(Settled::default())
    }

    /// Compares what it holds outside the database with the database, and mends it unless it is a
    /// dry run. For most there is nothing to compare.
    async fn reconcile(&self, id: &ActivityId, mode: Mode) -> Result<Reconciled, DeductError> {
        let _ = (id, mode);
        Ok(Reconciled::new(Verdict::Ok, Vec::new()))
    }

    /// Reservations that wait for their booking. For most there is nothing in between.
    async fn in_flight(&self, id: &ActivityId) -> Result<i64, DeductError> {
        let _ = id;
        Ok(0)
    }

    /// Lets go of what it keeps of the activity outside the database, by name, once `grace` is over.
    /// For what has ended, or is sold in another way from now on. Safe to repeat.
    async fn retire(&self, id: &ActivityId, grace: Duration) -> Result<(), DeductError> {
        let _ = (id, grace);
        Ok(())
    }

    /// Lets nobody in: its books were found wrong.
    async fn fence(&self, id: &ActivityId) -> Result<(), DeductError> {
        let _ = id;
        Ok(())
    }

    /// Whether it may have something of this order or its user that the database does not show
    /// yet. For most the database shows everything.
    async fn may_hold(&self, id: &ActivityId, order: &NewOrder) -> Result<bool, DeductError> {
        let _ = (id, order);
        Ok(false)
    }

    /// A worker that books what was accepted for later (`Ending::Accepted`); any number of them, in
    /// any number of processes. `None`: this strategy books before it answers.
    fn booker(&self, id: &ActivityId) -> Result<Option<Box<dyn Booker>>, DeductError> {
        let _ = id;
        Ok(None)
    }

    /// What it knows of a reservation that the database does not have.
    async fn known(&self, id: &OrderId) -> Result<Known, DeductError> {
        let _ = id;
        Ok(Known::Nothing)
    }
}

/// Books what one activity's purchases left to be booked later.
#[async_trait]
pub trait Booker: Send + std::fmt::Debug {
    /// Books the next batch, and waits up to a second for the first order of one. What it could not
    /// book it keeps, and tries again with the next call.
    ///
    /// # Errors
    /// A server is away. Nothing is lost: pause, and call again.
    ///
    /// # Cancel safety
    /// Dropped, what it was at is taken up by another worker.
    async fn next(&mut self) -> Result<Batch, DeductError>;
}

/// What a booking worker did with one batch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// Booked, or refused and given back.
    pub settled: Settled,
    /// Orders of the batch that another worker had left.
    pub reclaimed: usize,
    /// Orders that wait for their booking, those of other workers as well; only counted at times.
    pub backlog: Option<usize>,
}

/// What a place outside the database knows of a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    Nothing,
    /// It waits for its booking.
    OnItsWay,
    /// It ended without an order.
    Dead,
}

/// How a purchase ended. A result, not an error: nothing here is broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    Booked {
        order: Box<Order>,
        /// Units of the order's first SKU that were left after it, as the deduction saw them.
        left: i64,
    },
    /// Held, and booked soon: the order's own resource tells how it ends.
    Accepted(OrderId),
    /// The same request was booked before; this is that order as it stands now.
    Replayed(Box<Order>),
    SoldOut {
        sku: Sku,
        left: i64,
    },
    AlreadyPurchased(OrderId),
    /// The same key was used for another purchase.
    KeyReused,
    /// The reservation was given up after its outcome was unknown for too long: use a new key.
    Abandoned,
    NotOpen {
        opens_at_ms: i64,
    },
    Ended {
        closed_at_ms: i64,
    },
    UnknownSku(Sku),
    /// Nobody is let in for a while; the same key may try again.
    Paused,
    /// Contention: nothing was written; the same key may try again.
    Busy(Contention),
    /// The gate is being rebuilt; nothing was written.
    Recovering,
}

/// What a purchase was kept waiting by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contention {
    /// The lock was not granted in time.
    LockTimeout,
    /// The lease ended before the first write.
    LeaseLost,
    /// A later holder has claimed the stock.
    FencedOut,
    /// Another purchase of the same user's is under way, or ended and its units are on their way
    /// back.
    OtherPurchase,
    /// Deadlock, serialization failure, a version that others kept changing, a full queue or a full
    /// pool.
    Database,
}

/// What closing an order came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Closed {
    Closed,
    /// It was not waiting for payment any more; its state is told.
    NotPending(Order),
    NotFound,
}

/// Broken machinery.
#[derive(Debug, thiserror::Error)]
pub enum DeductError {
    /// A server is out of reach; nothing was sold.
    #[error("{server} is out of reach: {reason}")]
    Unavailable {
        server: &'static str,
        reason: String,
    },
    /// It may have been sold: the same key finds out.
    #[error("{server} did not say whether it happened: {reason}")]
    Unknown {
        server: &'static str,
        reason: String,
    },
    /// A store holds what it must not: an operator has to look.
    #[error("{what}")]
    Corrupt { what: String },
}
