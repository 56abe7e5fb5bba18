//! The rows of orders that were accepted and that the database then refused.

use super::event::Event;
use super::outbox::EventKind;
use super::{Dialect, Store, StoreError, Tx, query};
use crate::order::{NewOrder, OrderState};
use crate::sale::{Activity, Line, Rid};

/// An order that is refused, and why: a word for the event.
#[derive(Debug, Clone, Copy)]
pub struct Rejection<'a> {
    pub order: &'a NewOrder,
    pub reason: &'static str,
}

impl Store {
    /// Writes each as REJECTED, with its event, in one transaction. It never was live: it stands in
    /// no user's way and takes no stock.
    ///
    /// # Errors
    /// `Conflict`: a reservation has an order already, and none of these was written.
    pub async fn insert_rejected(
        &self,
        activity: &Activity,
        rejected: &[Rejection<'_>],
    ) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        match tx.insert_rejected(activity, rejected).await {
            Ok(()) => tx.commit().await,
            Err(error) => {
                tx.rollback().await;
                Err(error)
            }
        }
    }
}

impl Tx {
    async fn insert_rejected(
        &mut self,
        activity: &Activity,
        rejected: &[Rejection<'_>],
    ) -> Result<(), StoreError> {
        let columns = ["?", "?", "?", "NULL", "?", "?", "?", "?"];
        let sql = self.dialect.sql(&format!(
            "INSERT INTO orders (id, activity_id, user_id, live_key, state, fingerprint, created_at, pay_deadline) VALUES {}",
            Dialect::tuples(rejected.len(), &columns)
        ));
        let mut insert = query(&sql);
        for Rejection { order, .. } in rejected {
            insert = insert
                .bind(order.rid.to_string())
                .bind(activity.id.to_string())
                .bind(order.user.to_string())
                .bind(OrderState::Rejected.as_str())
                .bind(order.fingerprint.as_str().to_string())
                .bind(order.admitted_at_ms)
                .bind(order.pay_deadline_ms(activity));
        }
        self.execute(insert).await?;
        let lines: Vec<(Rid, &Line)> = rejected
            .iter()
            .flat_map(|r| r.order.lines.iter().map(|line| (r.order.rid, line)))
            .collect();
        self.insert_lines(&lines).await?;
        let events: Vec<Event<'_>> = rejected
            .iter()
            .map(|Rejection { order, reason }| Event {
                rid: order.rid,
                user: &order.user,
                lines: &order.lines,
                kind: EventKind::Rejected,
                reason: Some(reason),
            })
            .collect();
        self.insert_events(&activity.id, &events).await
    }
}
