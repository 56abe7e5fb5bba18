//! Pay: one conditional update decides between a payment and a close; the loser writes the fact.

use super::{Flow, FlowError};
use crate::order::Order;
use crate::sale::OrderId;
use crate::store::{Payment, PaymentOutcome, StoreError};

/// What a payment came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Paid {
    Applied(Order),
    /// The order could not take it; the money has to go back.
    RefundDue(Order),
    /// This provider transaction paid another order.
    UsedElsewhere,
    NoSuchOrder,
}

impl Flow {
    /// Applies a payment. A repeat answers what the first did.
    pub async fn pay(&self, id: &OrderId, payment: &Payment) -> Result<Paid, FlowError> {
        let store = &self.app.store;
        let Some(order) = self.order(id).await? else {
            return Ok(Paid::NoSuchOrder);
        };
        let outcome = match store.pay(&order, payment).await {
            Ok(outcome) => outcome,
            Err(StoreError::Conflict(_)) => return Ok(Paid::UsedElsewhere),
            Err(error) => return Err(error.into()),
        };
        let order = self.order(id).await?.unwrap_or(order);
        Ok(match outcome {
            PaymentOutcome::Applied => Paid::Applied(order),
            PaymentOutcome::RefundDue => Paid::RefundDue(order),
        })
    }

    /// The order as it stands.
    pub async fn order(&self, id: &OrderId) -> Result<Option<Order>, FlowError> {
        let order = self.app.store.order(id.rid).await?;
        Ok(order.filter(|order| order.id == *id))
    }
}
