//! The rows of the outbox: claimed under a lease, settled by whoever holds it, buried, replayed.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use sqlx::Row;
use sqlx::any::AnyRow;
use uuid::Uuid;

use super::activity::text;
use super::{Dialect, Store, StoreError, answered, query};
use crate::sale::{ActivityId, InvalidId, OrderId, Rid, named};

/// Longest error text that a row keeps, in characters: enough to know the cause.
const ERROR_CHARS_MAX: usize = 500;

/// A transition of an order, as the outbox announces it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventKind {
    Created,
    Paid,
    Closed,
    /// Accepted, and refused by the database.
    Rejected,
    /// Reserved, and given up without an order.
    Abandoned,
}

named!(EventKind {
    Created = "order.created",
    Paid = "order.paid",
    Closed = "order.closed",
    Rejected = "order.rejected",
    Abandoned = "order.abandoned",
});

/// One transition of one order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The same for the same transition, so that a consumer recognises a repeat.
    pub id: Uuid,
    pub order: OrderId,
    pub kind: EventKind,
    /// A JSON object.
    pub payload: String,
    /// Times it could not be delivered for its own sake; an outage does not count.
    pub attempts: i64,
}

/// Rows that this claim holds until the lease ends, by the database's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimedEvents {
    /// What a settlement must still find in the row.
    pub token: Uuid,
    pub rows: Vec<ClaimedEvent>,
}

/// A claimed row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimedEvent {
    pub row: i64,
    /// A delivery that was begun and never settled counts as well.
    pub attempts: i64,
    pub before: Before,
    /// `Err`: what of it cannot be read. It must not keep those behind it waiting.
    pub event: Result<Event, String>,
}

/// What became of the claim before this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Before {
    /// There was none, or it was settled.
    Settled,
    /// Its lease lapsed: whoever held it died, hung or was paused.
    Lapsed,
}

/// What became of an event that was not delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undelivered {
    pub why: String,
    pub next: NextTry,
}

/// Whether it is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextTry {
    After(Duration),
    /// After that long, and this time does not count: it was not the event's fault.
    Waits(Duration),
    /// A dead letter: an operator replays it.
    Never,
}

/// An event that was given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadEvent {
    pub row: i64,
    /// Also what cannot be read is listed, so these are texts.
    pub event_id: String,
    pub activity: String,
    pub rid: String,
    pub kind: String,
    pub payload: String,
    pub attempts: i64,
    pub last_error: String,
    pub created_at_ms: i64,
    pub dead_at_ms: i64,
}

/// What a replay met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replayed {
    /// It is due again.
    Due,
    /// It was no dead letter: replayed before, or never dead.
    NotDead,
    NoSuchEvent,
}

/// Rows that wait, and rows that were given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OutboxCounts {
    pub due: i64,
    pub dead: i64,
}

impl Store {
    /// Leases up to `limit` due rows for `lease`, the longest due first. Claims of several relays
    /// skip each other's rows. A row whose last lease lapsed is claimed alone and has one more
    /// attempt: if it is what ends its relay, it takes no other with it, and it is not for ever.
    pub async fn claim_events(
        &self,
        limit: i64,
        lease: Duration,
    ) -> Result<ClaimedEvents, StoreError> {
        const DUE: &str = "published_at IS NULL AND dead_at IS NULL AND next_at <= {now} \
             AND (lease_until IS NULL OR lease_until <= {now})";
        let token = Uuid::new_v4();
        let none = ClaimedEvents {
            token,
            rows: Vec::new(),
        };
        // Asked without a transaction first: an idle relay must not queue among SQLite's writers.
        let sql = self
            .dialect
            .sql(&format!("SELECT id FROM outbox WHERE {DUE} LIMIT 1"));
        if self.rows(query(&sql)).await?.is_empty() {
            return Ok(none);
        }
        let skip = match self.dialect {
            Dialect::Sqlite => "",
            Dialect::Postgres | Dialect::Mysql => "FOR UPDATE SKIP LOCKED",
        };
        let mut tx = self.begin().await?;
        let sql = self.dialect.sql(&format!(
            "SELECT id, event_id, activity_id, aggregate_id, kind, payload, attempts, lease_until \
             FROM outbox WHERE {DUE} ORDER BY next_at, id LIMIT ? {skip}"
        ));
        let select = query(&sql).bind(limit);
        let found = answered(select.fetch_all(&mut *tx.inner)).await?;
        if found.is_empty() {
            tx.rollback().await;
            return Ok(none);
        }
        let mut rows: Vec<ClaimedEvent> = found.iter().map(claimed).collect::<Result<_, _>>()?;
        let noted = match rows[0].before {
            Before::Lapsed => {
                rows.truncate(1);
                // Behind the others, should it lapse again.
                ", attempts = attempts + 1, next_at = {now}"
            }
            Before::Settled => {
                rows.retain(|row| row.before == Before::Settled);
                ""
            }
        };
        let sql = self.dialect.sql(&format!(
            "UPDATE outbox SET lease_token = ?, lease_until = {{now}} + ?{noted} WHERE id IN ({})",
            Dialect::placeholders(rows.len())
        ));
        let mut update = query(&sql).bind(token.to_string()).bind(ms(lease));
        for row in &rows {
            update = update.bind(row.row);
        }
        tx.execute(update).await?;
        tx.commit().await?;
        Ok(ClaimedEvents { token, rows })
    }

    /// Marks rows as published. Answers how many still were this claim's: a row whose lease ended
    /// and which another relay claimed is that one's to settle.
    pub async fn settle_published(&self, token: Uuid, rows: &[i64]) -> Result<u64, StoreError> {
        if rows.is_empty() {
            return Ok(0);
        }
        let sql = self.dialect.sql(&format!(
            "UPDATE outbox SET published_at = {{now}}, lease_token = NULL, lease_until = NULL \
             WHERE lease_token = ? AND id IN ({})",
            Dialect::placeholders(rows.len())
        ));
        let mut update = query(&sql).bind(token.to_string());
        for row in rows {
            update = update.bind(*row);
        }
        let mut tx = self.begin().await?;
        let settled = tx.execute(update).await?;
        tx.commit().await?;
        Ok(settled)
    }

    /// Marks rows as not delivered: due again later, or dead. Answers how many still were this
    /// claim's.
    pub async fn settle_undelivered(
        &self,
        token: Uuid,
        rows: &[(i64, Undelivered)],
    ) -> Result<u64, StoreError> {
        if rows.is_empty() {
            return Ok(0);
        }
        let sql = self.dialect.sql(&format!(
            "UPDATE outbox SET {FAILED} WHERE lease_token = ? AND id = ?"
        ));
        let mut tx = self.begin().await?;
        let mut settled = 0;
        for (row, undelivered) in rows {
            let (counts, pause, dead) = undelivered.parts();
            let update = query(&sql)
                .bind(counts)
                .bind(undelivered.short())
                .bind(pause)
                .bind(dead)
                .bind(token.to_string())
                .bind(*row);
            settled += tx.execute(update).await?;
        }
        tx.commit().await?;
        Ok(settled)
    }

    /// Gives back an event that was published and could not take effect: due again later, or dead.
    /// A relay that has not settled it yet loses its lease, so that it cannot say "published"
    /// afterwards.
    pub async fn return_event(
        &self,
        event: Uuid,
        undelivered: &Undelivered,
    ) -> Result<(), StoreError> {
        let sql = self.dialect.sql(&format!(
            "UPDATE outbox SET {FAILED} WHERE event_id = ? AND dead_at IS NULL"
        ));
        let (counts, pause, dead) = undelivered.parts();
        let update = query(&sql)
            .bind(counts)
            .bind(undelivered.short())
            .bind(pause)
            .bind(dead)
            .bind(event.to_string());
        let mut tx = self.begin().await?;
        tx.execute(update).await?;
        tx.commit().await
    }

    /// Dead letters with a row number above `after`, ascending: a page of at most `limit`.
    pub async fn dead_events(&self, after: i64, limit: i64) -> Result<Vec<DeadEvent>, StoreError> {
        let sql = self.dialect.sql(
            "SELECT id, event_id, activity_id, aggregate_id, kind, payload, attempts, last_error, \
             created_at, dead_at FROM outbox WHERE dead_at IS NOT NULL AND id > ? ORDER BY id LIMIT ?",
        );
        let rows = self.rows(query(&sql).bind(after).bind(limit)).await?;
        rows.iter()
            .map(|row| {
                let last_error: Option<String> = row.try_get("last_error")?;
                Ok(DeadEvent {
                    row: row.try_get("id")?,
                    event_id: row.try_get("event_id")?,
                    activity: row.try_get("activity_id")?,
                    rid: row.try_get("aggregate_id")?,
                    kind: row.try_get("kind")?,
                    payload: row.try_get("payload")?,
                    attempts: row.try_get("attempts")?,
                    last_error: last_error.unwrap_or_default(),
                    created_at_ms: row.try_get("created_at")?,
                    dead_at_ms: row.try_get("dead_at")?,
                })
            })
            .collect()
    }

    /// Makes a dead letter due again, with all its attempts. Safe to repeat.
    pub async fn replay_event(&self, event_id: &str) -> Result<Replayed, StoreError> {
        let sql = self.dialect.sql(
            "UPDATE outbox SET dead_at = NULL, attempts = 0, next_at = {now} \
             WHERE event_id = ? AND dead_at IS NOT NULL",
        );
        let mut tx = self.begin().await?;
        let replayed = tx.execute(query(&sql).bind(event_id.to_string())).await? == 1;
        tx.commit().await?;
        if replayed {
            return Ok(Replayed::Due);
        }
        let sql = self.dialect.sql("SELECT id FROM outbox WHERE event_id = ?");
        let found = self.rows(query(&sql).bind(event_id.to_string())).await?;
        Ok(match found.first() {
            Some(_) => Replayed::NotDead,
            None => Replayed::NoSuchEvent,
        })
    }

    /// The name of this database among those that share a broker; it stays for ever.
    pub async fn deployment(&self) -> Result<String, StoreError> {
        let rows = self.rows(query("SELECT id FROM deployment")).await?;
        let row = rows
            .first()
            .ok_or(StoreError::Refused(sqlx::Error::RowNotFound))?;
        Ok(row.try_get("id")?)
    }

    /// Rows that are due or on their way, and dead letters.
    pub async fn count_outbox(&self) -> Result<OutboxCounts, StoreError> {
        let sql = self.dialect.sql(
            "SELECT COUNT(*) AS unpublished, COUNT(dead_at) AS dead FROM outbox WHERE published_at IS NULL",
        );
        let rows = self.rows(query(&sql)).await?;
        let row = rows
            .first()
            .ok_or(StoreError::Refused(sqlx::Error::RowNotFound))?;
        let (unpublished, dead): (i64, i64) = (row.try_get("unpublished")?, row.try_get("dead")?);
        Ok(OutboxCounts {
            due: unpublished - dead,
            dead,
        })
    }
}

/// What a failed delivery writes; binds 1 if it counts, the error, the pause in milliseconds and 1
/// for a dead letter.
const FAILED: &str = "published_at = NULL, lease_token = NULL, lease_until = NULL, \
     attempts = attempts + ?, last_error = ?, next_at = {now} + ?, \
     dead_at = CASE WHEN ? = 1 THEN {now} ELSE NULL END";

fn claimed(row: &AnyRow) -> Result<ClaimedEvent, StoreError> {
    let leased: Option<i64> = row.try_get("lease_until")?;
    let (before, lapses) = match leased {
        Some(_) => (Before::Lapsed, 1),
        None => (Before::Settled, 0),
    };
    let attempts = row.try_get::<i64, _>("attempts")? + lapses;
    Ok(ClaimedEvent {
        row: row.try_get("id")?,
        attempts,
        before,
        event: event(row, attempts),
    })
}

fn event(row: &AnyRow, attempts: i64) -> Result<Event, String> {
    let unreadable = |e: StoreError| format!("the row cannot be read: {e}");
    let activity: ActivityId = text(row, "activity_id").map_err(unreadable)?;
    let rid: Rid = text(row, "aggregate_id").map_err(unreadable)?;
    let payload: String = row
        .try_get("payload")
        .map_err(|e| format!("the row cannot be read: {e}"))?;
    serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(&payload)
        .map_err(|e| format!("the payload is not a JSON object: {e}"))?;
    Ok(Event {
        id: text(row, "event_id").map_err(unreadable)?,
        order: OrderId { activity, rid },
        kind: text(row, "kind").map_err(unreadable)?,
        payload,
        attempts,
    })
}

fn ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

// === impl Undelivered ===

impl Undelivered {
    /// 1 if it counts, the pause in milliseconds, and 1 for a dead letter.
    fn parts(&self) -> (i64, i64, i64) {
        match self.next {
            NextTry::After(pause) => (1, ms(pause), 0),
            NextTry::Waits(pause) => (0, ms(pause), 0),
            NextTry::Never => (1, 0, 1),
        }
    }

    fn short(&self) -> String {
        self.why.chars().take(ERROR_CHARS_MAX).collect()
    }
}
