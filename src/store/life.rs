//! What moves an activity on: which are to be moved, what keeps them, and the barrier behind which no
//! purchase or close of before can write.

use sqlx::any::AnyArguments;
use sqlx::query::Query;
use sqlx::{Any, Row};

use super::activity::text;
use super::{Store, StoreError, query};
use crate::sale::{ActivityId, ActivityState};

/// Whether orders that wait for payment stand in the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unpaid {
    MayStay,
    MustNotBe,
}

/// What the database still has to do for an activity.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unsettled {
    /// Orders that wait for payment.
    pub unpaid_orders: i64,
    /// Events that are not delivered yet; dead letters are not counted.
    pub undelivered_events: i64,
    /// Reservations of which nobody knows yet whether they were made.
    pub unresolved_reservations: i64,
}

/// An activity that should be warmed up and is not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Late {
    pub id: ActivityId,
    pub state: ActivityState,
    /// Unix milliseconds.
    pub opens_at_ms: i64,
}

/// Most late activities that are told of.
const LATE_MAX: i64 = 100;
/// Activities moved on in one page.
const PAGE: i64 = 200;

impl Store {
    /// Compare-and-set of the state behind a barrier: whatever was begun before writes no stock
    /// after. `false`: it was not `from` any more, or unpaid orders stand in the way.
    pub async fn settle_activity(
        &self,
        id: &ActivityId,
        from: ActivityState,
        to: ActivityState,
        unpaid: Unpaid,
    ) -> Result<bool, StoreError> {
        let sql = self.dialect.sql(
            "UPDATE activity SET state = ?, fence_generation = fence_generation + 1 \
             WHERE id = ? AND state = ?",
        );
        let update = query(&sql)
            .bind(to.as_str())
            .bind(id.to_string())
            .bind(from.as_str());
        self.supersede(id, update, unpaid).await
    }

    /// Runs `update`, which raises the activity's generation, and raises that of its stock rows,
    /// which waits for transactions that are writing them: they are seen by the count that follows,
    /// and those that come later find a younger generation.
    pub(super) async fn supersede(
        &self,
        id: &ActivityId,
        update: Query<'_, Any, AnyArguments>,
        unpaid: Unpaid,
    ) -> Result<bool, StoreError> {
        let raise = self.dialect.sql(
            "UPDATE activity_sku SET fence = 0, \
             fence_generation = (SELECT fence_generation FROM activity WHERE id = ?) WHERE activity_id = ?",
        );
        let count = self
            .dialect
            .sql("SELECT COUNT(*) FROM orders WHERE activity_id = ? AND state = 'PENDING_PAYMENT'");
        let mut tx = self.begin().await?;
        let moved = async {
            if tx.execute(update).await? != 1 {
                return Ok(false);
            }
            let raise = query(&raise).bind(id.to_string()).bind(id.to_string());
            tx.execute(raise).await?;
            if unpaid == Unpaid::MayStay {
                return Ok(true);
            }
            let row = query(&count).bind(id.to_string());
            let row = row.fetch_one(&mut *tx.inner).await?;
            Ok(row.try_get::<i64, _>(0)? == 0)
        }
        .await;
        match moved {
            Ok(true) => tx.commit().await.map(|()| true),
            Ok(false) => {
                tx.rollback().await;
                Ok(false)
            }
            Err(error) => {
                tx.rollback().await;
                Err(error)
            }
        }
    }

    /// Activities that pause, that end, or whose time is over by the database's clock, with an id
    /// above `after`, ascending: a page of at most 200.
    pub async fn to_move_on(
        &self,
        after: Option<&ActivityId>,
    ) -> Result<Vec<(ActivityId, ActivityState)>, StoreError> {
        let sql = self.dialect.sql(&format!(
            "SELECT id, state FROM activity WHERE id > ? AND (state IN ('PAUSING', 'CLOSING') \
               OR (state IN ('OPEN', 'FENCED', 'PAUSED') AND closes_at <= {{now}})) \
             ORDER BY id LIMIT {PAGE}"
        ));
        let after = after.map(ActivityId::to_string).unwrap_or_default();
        let rows = self.rows(query(&sql).bind(after)).await?;
        rows.iter()
            .map(|row| Ok((text(row, "id")?, text(row, "state")?)))
            .collect()
    }

    /// Activities that open within `ahead_ms`, or should have, and are not warmed up; the first to
    /// open come first, at most 100.
    pub async fn late_activities(&self, ahead_ms: i64) -> Result<Vec<Late>, StoreError> {
        let sql = self.dialect.sql(&format!(
            "SELECT id, state, opens_at FROM activity WHERE state IN ('DRAFT', 'WARMING') \
               AND opens_at <= {{now}} + ? AND closes_at > {{now}} ORDER BY opens_at, id LIMIT {LATE_MAX}"
        ));
        let rows = self.rows(query(&sql).bind(ahead_ms)).await?;
        rows.iter()
            .map(|row| {
                Ok(Late {
                    id: text(row, "id")?,
                    state: text(row, "state")?,
                    opens_at_ms: row.try_get("opens_at")?,
                })
            })
            .collect()
    }

    /// What the database still has to do for an activity, in one statement (one snapshot).
    pub async fn unsettled(&self, id: &ActivityId) -> Result<Unsettled, StoreError> {
        let sql = self.dialect.sql(
            "SELECT \
               (SELECT COUNT(*) FROM orders WHERE activity_id = ? AND state = 'PENDING_PAYMENT') AS unpaid, \
               (SELECT COUNT(*) FROM outbox WHERE activity_id = ? AND published_at IS NULL AND dead_at IS NULL) AS undelivered, \
               (SELECT COUNT(*) FROM compensation WHERE activity_id = ? AND state = 'DUE') AS unresolved",
        );
        let select = query(&sql)
            .bind(id.to_string())
            .bind(id.to_string())
            .bind(id.to_string());
        let rows = self.rows(select).await?;
        let row = rows
            .first()
            .ok_or(StoreError::Refused(sqlx::Error::RowNotFound))?;
        Ok(Unsettled {
            unpaid_orders: row.try_get("unpaid")?,
            undelivered_events: row.try_get("undelivered")?,
            unresolved_reservations: row.try_get("unresolved")?,
        })
    }
}
