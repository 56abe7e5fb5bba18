//! The rows that end reservations whose purchase did not: who writes the primary key first decides.

use super::{Dialect, Store, StoreError, query};
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
    /// Inserts an ABANDONED order for each of `dead` that has no order. It is never live, so it
    /// stands in no user's way. Waits for a transaction that is inserting the same reservation.
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
        let mut tx = self.begin().await?;
        match tx.execute(insert).await {
            Ok(_) => tx.commit().await,
            Err(error) => {
                tx.rollback().await;
                Err(error)
            }
        }
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
