//! How is a transition of an order announced? As a row of the outbox, in the same transaction.

use uuid::Uuid;

use super::outbox::EventKind;
use super::{Dialect, StoreError, Tx, query};
use crate::sale::{ActivityId, Line, Rid, UserId};

/// A transition of an order that is being written.
pub(super) struct Event<'a> {
    pub(super) rid: Rid,
    pub(super) user: &'a UserId,
    pub(super) lines: &'a [Line],
    pub(super) kind: EventKind,
    pub(super) reason: Option<&'static str>,
}

// === impl Tx ===

impl Tx {
    /// # Errors
    /// `Conflict`: one of them is there already.
    pub(super) async fn insert_events(
        &mut self,
        activity: &ActivityId,
        events: &[Event<'_>],
    ) -> Result<(), StoreError> {
        self.insert_events_or(activity, events, "").await
    }

    /// The same for transitions that may be announced already: those stay as they are.
    pub(super) async fn insert_new_events(
        &mut self,
        activity: &ActivityId,
        events: &[Event<'_>],
    ) -> Result<(), StoreError> {
        let repeat = self.dialect.keep_the_first("event_id");
        self.insert_events_or(activity, events, &repeat).await
    }

    async fn insert_events_or(
        &mut self,
        activity: &ActivityId,
        events: &[Event<'_>],
        repeat: &str,
    ) -> Result<(), StoreError> {
        let sql = self.dialect.sql(&format!(
            "INSERT INTO outbox (event_id, activity_id, aggregate_id, kind, payload, created_at, next_at) \
             VALUES {} {repeat}",
            Dialect::tuples(events.len(), &["?", "?", "?", "?", "?", "{now}", "{now}"])
        ));
        let mut insert = query(&sql);
        for event in events {
            insert = insert
                .bind(event.id().to_string())
                .bind(activity.to_string())
                .bind(event.rid.to_string())
                .bind(event.kind.as_str())
                .bind(event.payload(activity));
        }
        self.execute(insert).await?;
        Ok(())
    }
}

// === impl Event ===

impl Event<'_> {
    /// The same for the same transition, so that the unique key admits one event of each.
    fn id(&self) -> Uuid {
        let name = format!("{}/{}", self.rid, self.kind.as_str());
        Uuid::new_v5(&Uuid::NAMESPACE_OID, name.as_bytes())
    }

    fn payload(&self, activity: &ActivityId) -> String {
        let lines: Vec<serde_json::Value> = self
            .lines
            .iter()
            .map(|l| serde_json::json!({"sku": l.sku.as_str(), "quantity": l.quantity}))
            .collect();
        serde_json::json!({
            "order_id": format!("{activity}.{}", self.rid),
            "user_id": self.user.as_str(),
            "lines": lines,
            "reason": self.reason,
        })
        .to_string()
    }
}
