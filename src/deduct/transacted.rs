//! How does the database alone keep two buyers apart? A form of taking stock within one transaction,
//! and what all such forms share: tries, batches, and requests that were booked before.

use async_trait::async_trait;

use super::replay::{after_conflict, closed_endings, failed, store_ending};
use super::{Closed, Deduct, DeductError, Ending};
use crate::lock::Guarantees;
use crate::order::{CloseReason, NewOrder, Order};
use crate::sale::{Activity, OrderId};
use crate::store::{Contended, Store, StoreError};

/// Tries of one transaction after deadlocks and lost serialization. Not after a wait that was over:
/// it was as long as a buyer may be kept.
const TRIES_MAX: u32 = 4;

/// A form of taking stock and giving it back, each within one transaction of the database.
#[async_trait]
pub trait Form: Send + Sync + std::fmt::Debug + 'static {
    /// Books the batch in one transaction, or says of each order why not.
    ///
    /// # Errors
    /// Nothing was written, unless `Unknown`. `Retry(Contended::Database)` is tried again;
    /// `Conflict` (one of them is there already, or its user has another) is followed by both halves.
    ///
    /// # Cancel safety
    /// None, as [`Deduct::deduct`].
    async fn sell(
        &self,
        store: &Store,
        activity: &Activity,
        batch: &[&NewOrder],
    ) -> Result<Sold, StoreError>;

    /// Closes those of `orders` that still wait for payment and gives back what they took, in one
    /// transaction; which they were.
    ///
    /// # Errors
    /// As `sell`.
    ///
    /// # Cancel safety
    /// None, as [`Deduct::close`].
    async fn give_back(
        &self,
        store: &Store,
        activity: &Activity,
        orders: &[Order],
        why: CloseReason,
    ) -> Result<Vec<bool>, StoreError>;
}

/// How a batch was sold.
#[derive(Debug)]
pub enum Sold {
    /// One ending per order, in their order.
    Each(Vec<Ending>),
    /// Nothing was written: there is too little for all of them, and this form cannot tell for whom.
    /// One order at a time. Not for a single order.
    TooLittleForAll,
}

/// Sells by a form, without any lock outside of the database.
#[derive(Debug)]
pub struct Transacted<F> {
    form: F,
    guarantees: Guarantees,
    store: Store,
}

// === impl Transacted ===

impl<F: Form> Transacted<F> {
    pub fn new(form: F, guarantees: Guarantees, store: Store) -> Self {
        Self {
            form,
            guarantees,
            store,
        }
    }
}

#[async_trait]
impl<F: Form> Deduct for Transacted<F> {
    fn guarantees(&self) -> Guarantees {
        self.guarantees.clone()
    }

    async fn ready(&self) -> Result<(), DeductError> {
        self.store.now_ms().await?;
        Ok(())
    }

    async fn deduct(
        &self,
        activity: &Activity,
        batch: &[NewOrder],
    ) -> Vec<Result<Ending, DeductError>> {
        sell(&self.form, &self.store, activity, batch).await
    }

    async fn close(
        &self,
        activity: &Activity,
        orders: &[OrderId],
        why: CloseReason,
    ) -> Vec<Result<Closed, DeductError>> {
        give_back(&self.form, &self.store, activity, orders, why).await
    }
}

/// Books the batch in one transaction. Where one of its orders is there already, or its user has
/// another, in halves, so that few of 100 orders are booked alone for it; where there is too little for
/// all, one order at a time, since the others will be refused as well. One ending per order.
pub(super) async fn sell(
    form: &impl Form,
    store: &Store,
    activity: &Activity,
    batch: &[NewOrder],
) -> Vec<Result<Ending, DeductError>> {
    let mut endings = Vec::with_capacity(batch.len());
    // The part whose turn it is stands last.
    let mut parts = vec![batch];
    while let Some(part) = parts.pop() {
        if let [] | [_] = part {
            for order in part {
                endings.push(sell_one(form, store, activity, order).await);
            }
            continue;
        }
        let all: Vec<&NewOrder> = part.iter().collect();
        match sell_again(form, store, activity, &all).await {
            Ok(Sold::Each(these)) => endings.extend(these.into_iter().map(Ok)),
            Err(StoreError::Conflict(_)) => {
                let (first, second) = part.split_at(part.len() / 2);
                parts.extend([second, first]);
            }
            Ok(Sold::TooLittleForAll) => {
                for order in part {
                    endings.push(sell_one(form, store, activity, order).await);
                }
            }
            Err(error) => match store_ending(error) {
                Ok(ending) => endings.extend(part.iter().map(|_| Ok(ending.clone()))),
                Err(error) => endings.extend(failed(part.len(), error)),
            },
        }
    }
    endings
}

async fn sell_one(
    form: &impl Form,
    store: &Store,
    activity: &Activity,
    order: &NewOrder,
) -> Result<Ending, DeductError> {
    match sell_again(form, store, activity, &[order]).await {
        Ok(Sold::Each(mut endings)) if endings.len() == 1 => Ok(endings.remove(0)),
        Ok(odd @ (Sold::Each(_) | Sold::TooLittleForAll)) => Err(DeductError::Corrupt {
            what: format!("a form answered {odd:?} to one order"),
        }),
        Err(StoreError::Conflict(_)) => after_conflict(store, activity, order).await,
        Err(error) => store_ending(error),
    }
}

async fn sell_again(
    form: &impl Form,
    store: &Store,
    activity: &Activity,
    batch: &[&NewOrder],
) -> Result<Sold, StoreError> {
    let mut tries = 1;
    loop {
        match form.sell(store, activity, batch).await {
            Err(StoreError::Retry(why @ Contended::Database(_))) if tries < TRIES_MAX => {
                tracing::debug!(%why, tries, "booking again");
                tries += 1;
            }
            done => return done,
        }
    }
}

/// Closes orders and gives their units back. One ending per order.
pub(super) async fn give_back(
    form: &impl Form,
    store: &Store,
    activity: &Activity,
    orders: &[OrderId],
    why: CloseReason,
) -> Vec<Result<Closed, DeductError>> {
    closed_endings(store, activity, orders, async |found| {
        let mut tries = 1;
        loop {
            match form.give_back(store, activity, found, why).await {
                Ok(closed) => return Ok(closed),
                Err(StoreError::Retry(why @ Contended::Database(_))) if tries < TRIES_MAX => {
                    tracing::debug!(%why, tries, "closing again");
                    tries += 1;
                }
                Err(error) => return Err(error.into()),
            }
        }
    })
    .await
}
