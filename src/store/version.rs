//! The stock rows as `db-version` has them: read without a lock, written only as they were read.

use sqlx::Row;

use super::{StoreError, Tx, query};
use crate::sale::{ActivityId, Sku};

/// What one SKU had when it was read without a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versioned {
    pub available: i64,
    /// Higher after every write of `available`, whoever writes.
    pub version: i64,
}

impl Tx {
    /// What one SKU has now, and under which version. No row is locked, and a later read of the same
    /// transaction sees what others have committed meanwhile.
    pub async fn versioned(
        &mut self,
        activity: &ActivityId,
        sku: &Sku,
    ) -> Result<Option<Versioned>, StoreError> {
        let sql = self
            .dialect
            .sql("SELECT available, version FROM activity_sku WHERE activity_id = ? AND sku = ?");
        let select = query(&sql).bind(activity.to_string()).bind(sku.to_string());
        let row = select.fetch_optional(&mut *self.inner).await?;
        row.map(|row| {
            Ok(Versioned {
                available: row.try_get("available")?,
                version: row.try_get("version")?,
            })
        })
        .transpose()
    }

    /// Writes what was computed from a read without a lock, while the row still has the version that
    /// was read. `false`: another has written it since, and nothing was written.
    pub async fn write_versioned(
        &mut self,
        activity: &ActivityId,
        sku: &Sku,
        available: i64,
        read: i64,
    ) -> Result<bool, StoreError> {
        let sql = self.dialect.sql(
            "UPDATE activity_sku SET available = ?, version = version + 1 \
             WHERE activity_id = ? AND sku = ? AND version = ? AND fence_generation <= ?",
        );
        let update = query(&sql)
            .bind(available)
            .bind(activity.to_string())
            .bind(sku.to_string())
            .bind(read)
            .bind(self.generation_max());
        let rows = self.execute(update).await?;
        self.written(activity, sku, rows).await?;
        Ok(rows == 1)
    }
}
