//! The rows that end reservations whose purchase did not: who writes the primary key first decides.

use super::activity::text;
use super::event::Event;
use super::outbox::EventKind;
use super::{Dialect, Store, StoreError, Tx, answered, query};
use crate::order::{Fingerprint, OrderState};
use crate::sale::{ActivityId, Rid, UserId};

/// Rows of one statement: a row whose booking is open makes the statement wait for it.
const ROWS_MAX: usize = 64;

/// A reservation that is to end without an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tombstone {
    pub rid: Rid,
    pub user: UserId,
    pub fingerprint: Fingerprint,
}

impl Store {
    /// Inserts an ABANDONED order for each of `dead` that has no order, with its event in the same
    /// transaction. It is never live, so it stands in no user's way. Waits for a transaction that is
    /// inserting the same reservation.
    ///
    /// What the database asks to try again is left out; read the orders to see which.
    pub async fn insert_tombstones(
        &self,
        activity: &ActivityId,
        dead: &[Tombstone],
    ) -> Result<(), StoreError> {
        // Ascending, as bookings are, so that two writers lock the keys in one order.
        let mut dead: Vec<&Tombstone> = dead.iter().collect();
        dead.sort_by_key(|tombstone| tombstone.rid);
        for rows in dead.chunks(ROWS_MAX) {
            match self.insert_rows(activity, rows).await {
                Err(StoreError::Retry(why)) => {
                    tracing::debug!(%activity, %why, "ending reservations one at a time");
                    for row in rows {
                        match self.insert_rows(activity, &[row]).await {
                            Ok(()) | Err(StoreError::Retry(_)) => {}
                            Err(error) => return Err(error),
                        }
                    }
                }
                done => done?,
            }
        }
        Ok(())
    }

    async fn insert_rows(
        &self,
        activity: &ActivityId,
        rows: &[&Tombstone],
    ) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        match tx.insert_tombstones(activity, rows).await {
            Ok(()) => tx.commit().await,
            Err(error) => {
                tx.rollback().await;
                Err(error)
            }
        }
    }
}

impl Tx {
    async fn insert_tombstones(
        &mut self,
        activity: &ActivityId,
        rows: &[&Tombstone],
    ) -> Result<(), StoreError> {
        let tuples = Dialect::tuples(
            rows.len(),
            &["?", "?", "?", "NULL", "?", "?", "{now}", "{now}"],
        );
        let sql = self.dialect.sql(&format!(
            "INSERT INTO orders (id, activity_id, user_id, live_key, state, fingerprint, created_at, pay_deadline) \
             VALUES {tuples} {}",
            self.dialect.keep_the_first("id")
        ));
        let mut insert = query(&sql);
        for row in rows {
            insert = insert
                .bind(row.rid.to_string())
                .bind(activity.to_string())
                .bind(row.user.to_string())
                .bind(OrderState::Abandoned.as_str())
                .bind(row.fingerprint.as_str().to_string());
        }
        self.execute(insert).await?;
        // Which of them are: no database says which rows it kept.
        let sql = self.dialect.sql(&format!(
            "SELECT id FROM orders WHERE state = ? AND id IN ({})",
            Dialect::placeholders(rows.len())
        ));
        let mut select = query(&sql).bind(OrderState::Abandoned.as_str());
        for row in rows {
            select = select.bind(row.rid.to_string());
        }
        let abandoned = answered(select.fetch_all(&mut *self.inner)).await?;
        let abandoned: Vec<Rid> = abandoned
            .iter()
            .map(|row| text(row, "id"))
            .collect::<Result<_, _>>()?;
        let is_abandoned = |row: &&&Tombstone| abandoned.contains(&row.rid);
        let events: Vec<Event<'_>> = rows
            .iter()
            .filter(is_abandoned)
            .map(|row| Event {
                rid: row.rid,
                user: &row.user,
                lines: &[],
                kind: EventKind::Abandoned,
                reason: None,
            })
            .collect();
        if events.is_empty() {
            return Ok(());
        }
        // Who gives up a reservation for the second time announces nothing new.
        self.insert_new_events(activity, &events).await
    }
}

impl Dialect {
    /// The end of an INSERT that leaves a row alone whose primary key, one of it `column`, is
    /// there. (MySQL's `INSERT IGNORE` would ignore other errors as well.)
    pub(super) fn keep_the_first(self, column: &str) -> String {
        match self {
            Self::Sqlite | Self::Postgres => "ON CONFLICT DO NOTHING".to_string(),
            Self::Mysql => format!("ON DUPLICATE KEY UPDATE {column} = {column}"),
        }
    }
}
