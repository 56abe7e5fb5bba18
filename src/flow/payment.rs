//! Pay: one conditional update decides between a payment and a close; the loser writes the fact.

use super::{Flow, FlowError};
use crate::deduct::Known;
use crate::order::Order;
use crate::sale::{Booking, OrderId};
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

/// What became of an order's id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    Order(Order),
    /// Held, and being booked.
    OnItsWay,
    /// It ended without an order.
    Abandoned,
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

    /// What became of an order's id, whoever handed it out.
    pub async fn resolve_id(&self, id: &OrderId) -> Result<Told, FlowError> {
        if let Some(order) = self.order(id).await? {
            return Ok(Told::Order(order));
        }
        let Some(activity) = self.app.store.activity(&id.activity).await? else {
            return Ok(Told::NoSuchOrder);
        };
        let known = self.strategy(&activity)?.known(id).await?;
        // Asked again: it may have been booked in between.
        Ok(match (self.order(id).await?, known) {
            (Some(order), _) => Told::Order(order),
            (None, Known::OnItsWay) => Told::OnItsWay,
            (None, Known::Dead) => Told::Abandoned,
            // A Redis that lost its history took accepted orders with it, and nobody else knew them.
            (None, Known::Nothing) if activity.booking == Booking::Async => Told::Abandoned,
            (None, Known::Nothing) => Told::NoSuchOrder,
        })
    }

    /// The order as it stands.
    pub async fn order(&self, id: &OrderId) -> Result<Option<Order>, FlowError> {
        let order = self.app.store.order(id.rid).await?;
        Ok(order.filter(|order| order.id == *id))
    }
}
