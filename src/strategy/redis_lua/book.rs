//! How does `redis-lua` write orders into the database? By the store's conditional booking, told in
//! the gate's words.

use std::fmt;

use async_trait::async_trait;

use crate::deduct::{self, Closed, Contention, DeductError, Ending};
use crate::order::{CloseReason, NewOrder, Order};
use crate::sale::{Activity, ActivityId, OrderId, Rid, Sku};
use crate::store::{Rejection, Store, StoreError};

/// How `redis-lua` writes orders into the database.
#[async_trait]
pub trait Book: Send + Sync + fmt::Debug {
    /// Whether the database answers.
    async fn ready(&self) -> Result<(), DeductError>;

    /// Books orders that are held in the gate: order, lines, ledger and outbox, and the hot row by
    /// a conditional update, in one transaction. One outcome per order and in its order. The
    /// primary key is the rid, so an order is booked at most once.
    ///
    /// # Errors
    /// `Unavailable`: nothing was written. `Unknown`: it may have been.
    async fn book(
        &self,
        activity: &Activity,
        orders: &[NewOrder],
    ) -> Vec<Result<BookOutcome, DeductError>>;

    /// Writes that held orders are refused, each as REJECTED, where it has no order yet. Answers the
    /// orders that the reservations have then, in any order.
    async fn reject(
        &self,
        activity: &Activity,
        rejected: &[Rejection<'_>],
    ) -> Result<Vec<Order>, DeductError>;

    /// The database's clock, in Unix milliseconds.
    async fn now_ms(&self) -> Result<i64, DeductError>;

    /// The orders of those of `rids` that have one, in any order.
    async fn find(&self, id: &ActivityId, rids: &[Rid]) -> Result<Vec<Order>, DeductError>;

    /// Closes orders that are still unpaid and gives back what they took, in the database.
    async fn close(
        &self,
        activity: &Activity,
        orders: &[OrderId],
        why: CloseReason,
    ) -> Vec<Result<Closed, DeductError>>;
}

/// What booking a held order came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BookOutcome {
    Booked(Order),
    /// The rid has an order, in whatever state.
    AlreadyThere(Order),
    /// The user has another live order.
    AlreadyPurchased(OrderId),
    SoldOut {
        sku: Sku,
        left: i64,
    },
    UnknownSku(Sku),
    /// Contention; nothing was written.
    Retry,
}

// === impl Book for Store ===

#[async_trait]
impl Book for Store {
    async fn ready(&self) -> Result<(), DeductError> {
        self.now_ms().await?;
        Ok(())
    }

    async fn book(
        &self,
        activity: &Activity,
        orders: &[NewOrder],
    ) -> Vec<Result<BookOutcome, DeductError>> {
        let endings = deduct::book(self, activity, orders).await;
        let mut outcomes = Vec::with_capacity(orders.len());
        for (new, ending) in orders.iter().zip(endings) {
            outcomes.push(match ending {
                Ok(ending) => outcome(self, new, ending).await,
                Err(error) => Err(error),
            });
        }
        outcomes
    }

    async fn reject(
        &self,
        activity: &Activity,
        rejected: &[Rejection<'_>],
    ) -> Result<Vec<Order>, DeductError> {
        match self.insert_rejected(activity, rejected).await {
            Ok(()) => {}
            // Somebody else was first with one of them: one at a time, so that it spoils only its own.
            Err(StoreError::Conflict(_)) => {
                for one in rejected {
                    match self
                        .insert_rejected(activity, std::slice::from_ref(one))
                        .await
                    {
                        Ok(()) | Err(StoreError::Conflict(_)) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
            }
            Err(error) => return Err(error.into()),
        }
        let rids: Vec<Rid> = rejected.iter().map(|r| r.order.rid).collect();
        self.find(&activity.id, &rids).await
    }

    async fn now_ms(&self) -> Result<i64, DeductError> {
        Ok(Self::now_ms(self).await?)
    }

    async fn find(&self, id: &ActivityId, rids: &[Rid]) -> Result<Vec<Order>, DeductError> {
        let orders = self.orders(rids).await?;
        let of_activity = orders.into_iter().filter(|order| order.id.activity == *id);
        Ok(of_activity.collect())
    }

    async fn close(
        &self,
        activity: &Activity,
        orders: &[OrderId],
        why: CloseReason,
    ) -> Vec<Result<Closed, DeductError>> {
        deduct::close(self, activity, orders, why).await
    }
}

async fn outcome(
    store: &Store,
    new: &NewOrder,
    ending: Ending,
) -> Result<BookOutcome, DeductError> {
    Ok(match ending {
        Ending::Booked { order, .. } => BookOutcome::Booked(*order),
        Ending::Replayed(order) => BookOutcome::AlreadyThere(*order),
        // The row is there: whose it is decides what the gate is told.
        Ending::KeyReused | Ending::Abandoned => match store.order(new.rid).await? {
            Some(order) => BookOutcome::AlreadyThere(order),
            None => BookOutcome::Retry,
        },
        Ending::AlreadyPurchased(id) => BookOutcome::AlreadyPurchased(id),
        Ending::SoldOut { sku, left } => BookOutcome::SoldOut { sku, left },
        Ending::UnknownSku(sku) => BookOutcome::UnknownSku(sku),
        Ending::Busy(
            Contention::Database
            | Contention::LockTimeout
            | Contention::LeaseLost
            | Contention::FencedOut
            | Contention::OtherPurchase,
        )
        | Ending::Accepted(_)
        | Ending::NotOpen { .. }
        | Ending::Ended { .. }
        | Ending::Paused
        | Ending::Recovering => BookOutcome::Retry,
    })
}
