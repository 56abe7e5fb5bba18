//! Payments: a fact of the provider's, written once, and what it did to the order.

use sqlx::Row;
use uuid::Uuid;

use super::activity::text;
use super::event::Event;
use super::outbox::EventKind;
use super::{Store, StoreError, query};
use crate::order::Order;
use crate::sale::{InvalidId, named};
use std::fmt;
use std::str::FromStr;

/// A payment as the provider tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payment {
    pub provider: String,
    pub provider_txn: String,
}

/// What a payment did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PaymentOutcome {
    /// The order is PAID by it.
    Applied,
    /// The order could not take it: the money has to go back, and a refund row says so.
    RefundDue,
}

named!(PaymentOutcome { Applied = "APPLIED", RefundDue = "REFUND_DUE" });

impl Store {
    /// Writes the payment and, if the order still waits for it and its pay window is open by the
    /// database's clock, makes the order PAID; one transaction. A repeat of the same provider
    /// transaction answers what the first did.
    ///
    /// # Errors
    /// `Conflict` when the provider transaction belongs to another order.
    pub async fn pay(
        &self,
        order: &Order,
        payment: &Payment,
    ) -> Result<PaymentOutcome, StoreError> {
        match self.pay_once(order, payment).await {
            Err(conflict @ StoreError::Conflict(_)) => match self.payment_of(order, payment).await?
            {
                Some(outcome) => Ok(outcome),
                None => Err(conflict),
            },
            other => other,
        }
    }

    async fn pay_once(
        &self,
        order: &Order,
        payment: &Payment,
    ) -> Result<PaymentOutcome, StoreError> {
        let mut tx = self.begin().await?;
        let rid = order.id.rid.to_string();
        let sql = self.dialect.sql(
            "UPDATE orders SET state = 'PAID', paid_at = {now}, version = version + 1 \
             WHERE id = ? AND state = 'PENDING_PAYMENT' AND pay_deadline > {now}",
        );
        let paid = tx.execute(query(&sql).bind(rid.clone())).await? == 1;
        let outcome = if paid {
            PaymentOutcome::Applied
        } else {
            PaymentOutcome::RefundDue
        };
        let id = Uuid::now_v7().to_string();
        let sql = self.dialect.sql(
            "INSERT INTO payment (id, order_id, provider, provider_txn, outcome, created_at) \
             VALUES (?, ?, ?, ?, ?, {now})",
        );
        let insert = query(&sql)
            .bind(id.clone())
            .bind(rid.clone())
            .bind(payment.provider.clone())
            .bind(payment.provider_txn.clone())
            .bind(outcome.as_str());
        if let Err(error) = tx.execute(insert).await {
            tx.rollback().await;
            return Err(error);
        }
        match outcome {
            PaymentOutcome::Applied => {
                let event = Event {
                    rid: order.id.rid,
                    user: &order.user,
                    lines: &order.lines,
                    kind: EventKind::Paid,
                    reason: None,
                };
                tx.insert_events(&order.id.activity, &[event]).await?;
            }
            PaymentOutcome::RefundDue => {
                let sql = self.dialect.sql(
                    "INSERT INTO refund (payment_id, order_id, state, created_at) VALUES (?, ?, 'DUE', {now})",
                );
                tx.execute(query(&sql).bind(id).bind(rid)).await?;
            }
        }
        tx.commit().await?;
        Ok(outcome)
    }

    /// What this provider transaction did to this order before.
    async fn payment_of(
        &self,
        order: &Order,
        payment: &Payment,
    ) -> Result<Option<PaymentOutcome>, StoreError> {
        let sql = self
            .dialect
            .sql("SELECT outcome, order_id FROM payment WHERE provider = ? AND provider_txn = ?");
        let select = query(&sql)
            .bind(payment.provider.clone())
            .bind(payment.provider_txn.clone());
        for row in &self.rows(select).await? {
            if row.try_get::<String, _>("order_id")? == order.id.rid.to_string() {
                return Ok(Some(text(row, "outcome")?));
            }
        }
        Ok(None)
    }
}
