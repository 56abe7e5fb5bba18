//! The rows of activities and their SKUs.

use sqlx::Row;
use sqlx::any::AnyRow;

use super::{Dialect, Store, StoreError, Unpaid, query};
use crate::ledger::Ledger;
use crate::sale::{
    Activity, ActivityId, ActivityState, Allocation, Limits, LockSettings, StrategyName,
};

const COLUMNS: &str = "id, state, strategy, guard_mode, batch_max, booking, lock_ttl_ms, lock_wait_ms, \
     lock_watchdog, limits, opens_at, closes_at, pay_window_s, units_per_user_max, fence_generation, \
     gate_epoch, gate_run_id";
/// Most activities one list answers.
const LIST_MAX: i64 = 1000;

impl Store {
    /// Inserts the activity and its SKUs, all units available.
    pub async fn insert_activity(&self, activity: &Activity) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        let limits =
            serde_json::to_string(&activity.limits).unwrap_or_else(|_none| "{}".to_string());
        let sql = self.dialect.sql(&format!(
            "INSERT INTO activity ({COLUMNS}, created_at) VALUES \
             (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, {{now}})"
        ));
        let insert = query(&sql)
            .bind(activity.id.as_str().to_string())
            .bind(activity.state.as_str())
            .bind(activity.strategy.as_str().to_string())
            .bind(activity.guard.as_str())
            .bind(activity.batch_max)
            .bind(activity.booking.as_str())
            .bind(activity.lock.ttl_ms)
            .bind(activity.lock.wait_ms)
            .bind(activity.lock.watchdog.as_str())
            .bind(limits)
            .bind(activity.opens_at_ms)
            .bind(activity.closes_at_ms)
            .bind(activity.pay_window_s)
            .bind(activity.units_per_user_max)
            .bind(activity.fence_generation)
            .bind(activity.gate_epoch)
            .bind(activity.gate_run_id.clone());
        tx.execute(insert).await?;
        let sql = self.dialect.sql(
            "INSERT INTO activity_sku (activity_id, sku, total, available) VALUES (?, ?, ?, ?)",
        );
        for allocation in &activity.skus {
            let insert = query(&sql)
                .bind(activity.id.to_string())
                .bind(allocation.sku.to_string())
                .bind(allocation.total)
                .bind(allocation.total);
            tx.execute(insert).await?;
        }
        tx.commit().await
    }

    pub async fn activity(&self, id: &ActivityId) -> Result<Option<Activity>, StoreError> {
        let sql = self
            .dialect
            .sql(&format!("SELECT {COLUMNS} FROM activity WHERE id = ?"));
        let rows = self.rows(query(&sql).bind(id.to_string())).await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let mut activity = decode(row)?;
        activity.skus = self.allocations(id).await?;
        Ok(Some(activity))
    }

    /// The newest first, at most 1,000.
    pub async fn activities(&self) -> Result<Vec<Activity>, StoreError> {
        let sql = self.dialect.sql(&format!(
            "SELECT {COLUMNS} FROM activity ORDER BY created_at DESC, id DESC LIMIT {LIST_MAX}"
        ));
        let rows = self.rows(query(&sql)).await?;
        let mut activities = Vec::with_capacity(rows.len());
        for row in &rows {
            let mut activity = decode(row)?;
            activity.skus = self.allocations(&activity.id).await?;
            activities.push(activity);
        }
        Ok(activities)
    }

    async fn allocations(&self, id: &ActivityId) -> Result<Vec<Allocation>, StoreError> {
        let sql = self
            .dialect
            .sql("SELECT sku, total FROM activity_sku WHERE activity_id = ? ORDER BY sku");
        let rows = self.rows(query(&sql).bind(id.to_string())).await?;
        rows.iter()
            .map(|row| {
                Ok(Allocation {
                    sku: text(row, "sku")?,
                    total: row.try_get("total")?,
                })
            })
            .collect()
    }

    /// Where the units of every SKU are, in one statement (one snapshot).
    pub async fn ledgers(&self, id: &ActivityId) -> Result<Vec<Ledger>, StoreError> {
        let quantity_of = |state: &str| {
            self.dialect.sum(&format!(
                "CASE WHEN o.state = '{state}' THEN l.quantity ELSE 0 END"
            ))
        };
        let sql = self.dialect.sql(&format!(
            "SELECT s.sku, s.total, s.available, COALESCE(q.held, 0) AS held, COALESCE(q.sold, 0) AS sold \
             FROM activity_sku s LEFT JOIN ( \
               SELECT l.sku AS sku, {} AS held, {} AS sold \
               FROM orders o JOIN order_line l ON l.order_id = o.id \
               WHERE o.activity_id = ? AND o.live_key IS NOT NULL GROUP BY l.sku \
             ) q ON q.sku = s.sku WHERE s.activity_id = ? ORDER BY s.sku",
            quantity_of("PENDING_PAYMENT"),
            quantity_of("PAID"),
        ));
        let rows = self
            .rows(query(&sql).bind(id.to_string()).bind(id.to_string()))
            .await?;
        rows.iter()
            .map(|row| {
                Ok(Ledger {
                    sku: text(row, "sku")?,
                    total: row.try_get("total")?,
                    available: row.try_get("available")?,
                    held: row.try_get("held")?,
                    sold: row.try_get("sold")?,
                })
            })
            .collect()
    }

    /// Compare-and-set of the state. `false`: it was not `from` any more.
    pub async fn move_activity(
        &self,
        id: &ActivityId,
        from: ActivityState,
        to: ActivityState,
    ) -> Result<bool, StoreError> {
        let sql = self
            .dialect
            .sql("UPDATE activity SET state = ? WHERE id = ? AND state = ?");
        let mut tx = self.begin().await?;
        let update = query(&sql)
            .bind(to.as_str())
            .bind(id.to_string())
            .bind(from.as_str());
        let rows = tx.execute(update).await?;
        tx.commit().await?;
        Ok(rows == 1)
    }

    /// Sets another strategy by compare-and-set of the state, and takes the old one out of service:
    /// what it still has on its way writes no stock. `false`: the state was not `from` any more.
    pub async fn set_strategy(
        &self,
        activity: &Activity,
        from: ActivityState,
        to: ActivityState,
    ) -> Result<bool, StoreError> {
        let sql = self.dialect.sql(
            "UPDATE activity SET strategy = ?, guard_mode = ?, booking = ?, batch_max = ?, \
             fence_generation = fence_generation + 1, state = ? WHERE id = ? AND state = ?",
        );
        let update = query(&sql)
            .bind(activity.strategy.to_string())
            .bind(activity.guard.as_str())
            .bind(activity.booking.as_str())
            .bind(activity.batch_max)
            .bind(to.as_str())
            .bind(activity.id.to_string())
            .bind(from.as_str());
        self.supersede(&activity.id, update, Unpaid::MayStay).await
    }

    /// Elects the process that rebuilds the gate: raises `gate_epoch` from `epoch` by one and
    /// notes the Redis it is rebuilt on. `false`: another process was first.
    pub async fn elect_gate(
        &self,
        id: &ActivityId,
        epoch: i64,
        run_id: &str,
    ) -> Result<bool, StoreError> {
        let sql = self.dialect.sql(
            "UPDATE activity SET gate_epoch = gate_epoch + 1, gate_run_id = ? WHERE id = ? AND gate_epoch = ?",
        );
        let mut tx = self.begin().await?;
        let update = query(&sql)
            .bind(run_id.to_string())
            .bind(id.to_string())
            .bind(epoch);
        let rows = tx.execute(update).await?;
        tx.commit().await?;
        Ok(rows == 1)
    }
}

fn decode(row: &AnyRow) -> Result<Activity, StoreError> {
    let limits: String = row.try_get("limits")?;
    let limits: Limits = serde_json::from_str(&limits)
        .map_err(|e| StoreError::Refused(sqlx::Error::Decode(Box::new(e))))?;
    let strategy: String = row.try_get("strategy")?;
    Ok(Activity {
        id: text(row, "id")?,
        state: text(row, "state")?,
        strategy: StrategyName::new(strategy),
        guard: text(row, "guard_mode")?,
        batch_max: row.try_get("batch_max")?,
        booking: text(row, "booking")?,
        lock: LockSettings {
            ttl_ms: row.try_get("lock_ttl_ms")?,
            wait_ms: row.try_get("lock_wait_ms")?,
            watchdog: text(row, "lock_watchdog")?,
        },
        limits,
        opens_at_ms: row.try_get("opens_at")?,
        closes_at_ms: row.try_get("closes_at")?,
        pay_window_s: row.try_get("pay_window_s")?,
        units_per_user_max: row.try_get("units_per_user_max")?,
        fence_generation: row.try_get("fence_generation")?,
        gate_epoch: row.try_get("gate_epoch")?,
        gate_run_id: row.try_get("gate_run_id")?,
        skus: Vec::new(),
    })
}

/// A text column as one of our types.
pub(super) fn text<T>(row: &AnyRow, column: &str) -> Result<T, StoreError>
where
    T: std::str::FromStr,
    T::Err: std::error::Error + Send + Sync + 'static,
{
    let text: String = row.try_get(column)?;
    text.parse()
        .map_err(|e: T::Err| StoreError::Refused(sqlx::Error::Decode(Box::new(e))))
}

/// The same for a column that may be NULL.
pub(super) fn text_or_null<T>(row: &AnyRow, column: &str) -> Result<Option<T>, StoreError>
where
    T: std::str::FromStr,
    T::Err: std::error::Error + Send + Sync + 'static,
{
    let text: Option<String> = row.try_get(column)?;
    text.map(|text| {
        text.parse()
            .map_err(|e: T::Err| StoreError::Refused(sqlx::Error::Decode(Box::new(e))))
    })
    .transpose()
}

impl Dialect {
    /// `WHERE … IN (?, ?, …)` of `n` placeholders.
    pub(super) fn placeholders(n: usize) -> String {
        vec!["?"; n].join(", ")
    }
}
