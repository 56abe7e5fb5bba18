//! Reservations of which nobody knows whether they reached the gate, until they are resolved.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use sqlx::Row;
use sqlx::any::AnyRow;

use super::activity::text;
use super::{Dialect, Store, StoreError, Tombstone, query};
use crate::order::Fingerprint;
use crate::sale::{ActivityId, InvalidId, Rid, named};

/// What is compensated: the gate was asked to reserve and did not say whether it did.
const KIND: &str = "reserve-unknown";
/// The buyer is told to try again after two seconds, and a try that succeeds needs no tombstone.
const FIRST_MS: i64 = 5_000;
/// Most rows one list answers.
const LIST_MAX: i64 = 1_000;
const COLUMNS: &str = "rid, kind, activity_id, user_id, fingerprint, state, attempts, next_at, last_error, created_at";

/// Where a compensation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CompensationState {
    Due,
    Done,
    /// Tried too often: an operator has to look.
    GivenUp,
}

named!(CompensationState { Due = "DUE", Done = "DONE", GivenUp = "GIVEN_UP" });

/// A reservation to be resolved. Times are Unix milliseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compensation {
    pub activity: ActivityId,
    pub reservation: Tombstone,
    pub kind: String,
    pub state: CompensationState,
    pub attempts: i64,
    pub next_at_ms: i64,
    pub last_error: Option<String>,
    pub created_at_ms: i64,
}

impl Store {
    /// Notes reservations to be resolved. One that is noted already stays as it is.
    pub async fn insert_compensations(
        &self,
        activity: &ActivityId,
        unknown: &[Tombstone],
    ) -> Result<(), StoreError> {
        if unknown.is_empty() {
            return Ok(());
        }
        let next = format!("{{now}} + {FIRST_MS}");
        let columns = ["?", "?", "?", "?", "?", "?", "0", &next, "NULL", "{now}"];
        let sql = self.dialect.sql(&format!(
            "INSERT INTO compensation ({COLUMNS}) VALUES {} {}",
            Dialect::tuples(unknown.len(), &columns),
            self.dialect.keep_the_first("rid")
        ));
        let mut insert = query(&sql);
        for reservation in unknown {
            insert = insert
                .bind(reservation.rid.to_string())
                .bind(KIND)
                .bind(activity.to_string())
                .bind(reservation.user.to_string())
                .bind(reservation.fingerprint.as_str().to_string())
                .bind(CompensationState::Due.as_str());
        }
        let mut tx = self.begin().await?;
        match tx.execute(insert).await {
            Ok(_) => tx.commit().await,
            Err(error) => {
                tx.rollback().await;
                Err(error)
            }
        }
    }

    /// Those whose time has come by the database's clock, the oldest first.
    pub async fn due_compensations(&self, limit: i64) -> Result<Vec<Compensation>, StoreError> {
        let sql = self.dialect.sql(&format!(
            "SELECT {COLUMNS} FROM compensation WHERE state = 'DUE' AND next_at <= {{now}} \
             ORDER BY next_at LIMIT ?"
        ));
        let rows = self.rows(query(&sql).bind(limit)).await?;
        rows.iter().map(decode).collect()
    }

    /// The newest first, at most 1,000; those that are done come last.
    pub async fn compensations(&self) -> Result<Vec<Compensation>, StoreError> {
        let sql = self.dialect.sql(&format!(
            "SELECT {COLUMNS} FROM compensation \
             ORDER BY CASE WHEN state = 'DONE' THEN 1 ELSE 0 END, created_at DESC, rid LIMIT {LIST_MAX}"
        ));
        let rows = self.rows(query(&sql)).await?;
        rows.iter().map(decode).collect()
    }

    /// It is resolved.
    pub async fn compensated(&self, rid: Rid) -> Result<(), StoreError> {
        let sql = self.dialect.sql(
            "UPDATE compensation SET state = 'DONE', attempts = attempts + 1, last_error = NULL \
             WHERE rid = ? AND kind = ?",
        );
        let mut tx = self.begin().await?;
        tx.execute(query(&sql).bind(rid.to_string()).bind(KIND))
            .await?;
        tx.commit().await
    }

    /// It could not be resolved: again after `wait`, or never (`None`).
    pub async fn postpone_compensation(
        &self,
        rid: Rid,
        wait: Option<Duration>,
        error: &str,
    ) -> Result<(), StoreError> {
        let state = match wait {
            Some(_) => CompensationState::Due,
            None => CompensationState::GivenUp,
        };
        let wait_ms = i64::try_from(wait.unwrap_or_default().as_millis()).unwrap_or(i64::MAX);
        let sql = self.dialect.sql(
            "UPDATE compensation SET state = ?, attempts = attempts + 1, next_at = {now} + ?, last_error = ? \
             WHERE rid = ? AND kind = ? AND state = 'DUE'",
        );
        let update = query(&sql)
            .bind(state.as_str())
            .bind(wait_ms)
            .bind(error.to_string())
            .bind(rid.to_string())
            .bind(KIND);
        let mut tx = self.begin().await?;
        tx.execute(update).await?;
        tx.commit().await
    }
}

fn decode(row: &AnyRow) -> Result<Compensation, StoreError> {
    Ok(Compensation {
        activity: text(row, "activity_id")?,
        reservation: Tombstone {
            rid: text(row, "rid")?,
            user: text(row, "user_id")?,
            fingerprint: Fingerprint::from_store(row.try_get("fingerprint")?),
        },
        kind: row.try_get("kind")?,
        state: text(row, "state")?,
        attempts: row.try_get("attempts")?,
        next_at_ms: row.try_get("next_at")?,
        last_error: row.try_get("last_error")?,
        created_at_ms: row.try_get("created_at")?,
    })
}
