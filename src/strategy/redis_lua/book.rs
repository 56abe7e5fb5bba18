//! The store as the books of `redis-lua`: the conditional booking, told in the gate's words.

use async_trait::async_trait;

use super::{Book, BookOutcome};
use crate::deduct::{self, Closed, Contention, DeductError, Ending};
use crate::order::{CloseReason, NewOrder, Order};
use crate::sale::{Activity, ActivityId, OrderId, Rid};
use crate::store::Store;

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
            | Contention::FencedOut,
        )
        | Ending::Accepted(_)
        | Ending::NotOpen { .. }
        | Ending::Ended { .. }
        | Ending::Paused
        | Ending::Recovering => BookOutcome::Retry,
    })
}
