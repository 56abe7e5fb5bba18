//! The rows of the inbox: which event has taken effect at which consumer.

use std::collections::HashSet;

use uuid::Uuid;

use super::activity::text;
use super::{Dialect, Store, StoreError, query};

impl Store {
    /// Those of `events` that have taken effect at `consumer`.
    pub async fn inbox_has(
        &self,
        consumer: &str,
        events: &[Uuid],
    ) -> Result<HashSet<Uuid>, StoreError> {
        if events.is_empty() {
            return Ok(HashSet::new());
        }
        let sql = self.dialect.sql(&format!(
            "SELECT event_id FROM inbox WHERE consumer = ? AND event_id IN ({})",
            Dialect::placeholders(events.len())
        ));
        let mut select = query(&sql).bind(consumer.to_string());
        for event in events {
            select = select.bind(event.to_string());
        }
        let rows = self.rows(select).await?;
        rows.iter().map(|row| text(row, "event_id")).collect()
    }

    /// Notes that `events` have taken effect at `consumer`. Answers how many had not before: a
    /// repeat counts none.
    pub async fn inbox_insert(&self, consumer: &str, events: &[Uuid]) -> Result<u64, StoreError> {
        if events.is_empty() {
            return Ok(0);
        }
        // In one order everywhere: two consumers that note the same events do not deadlock.
        let mut events: Vec<String> = events.iter().map(Uuid::to_string).collect();
        events.sort();
        events.dedup();
        // MySQL has no ON CONFLICT.
        let (insert, repeat) = match self.dialect {
            Dialect::Sqlite | Dialect::Postgres => ("INSERT INTO", "ON CONFLICT DO NOTHING"),
            Dialect::Mysql => ("INSERT IGNORE INTO", ""),
        };
        let sql = self.dialect.sql(&format!(
            "{insert} inbox (consumer, event_id, created_at) VALUES {} {repeat}",
            Dialect::tuples(events.len(), &["?", "?", "{now}"])
        ));
        let mut rows = query(&sql);
        for event in events {
            rows = rows.bind(consumer.to_string()).bind(event);
        }
        let mut tx = self.begin().await?;
        let inserted = tx.execute(rows).await?;
        tx.commit().await?;
        Ok(inserted)
    }
}
