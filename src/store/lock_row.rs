//! The rows of `db-unique-insert`: inserted, renewed, taken over and deleted, on connections of
//! their own, so that they are never part of a business transaction.

use std::time::Duration;

use sqlx::{AnyPool, Row};
use tokio::sync::oneshot;

use super::{Dialect, Flush, OpenError, StoreError, migrate, pool, query};

/// Connections for lock rows: one waiter per key and process is towards the server at a time.
const CONNECTIONS_MAX: u32 = 8;
/// Releases of a row whose waiter has gone, tried in a row: a deadlock is told at once, and the next
/// try goes well.
const LATE_RELEASES_MAX: u32 = 5;

/// The lock table. On SQLite a file of its own: a renewal during our own write transaction would
/// find the one writer's place taken.
#[derive(Debug, Clone)]
pub struct LockRows {
    dialect: Dialect,
    pool: AnyPool,
}

/// Whether the row is ours now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowGrant {
    Mine {
        fence: i64,
    },
    /// Another's, for about this long by the database's clock.
    Held {
        for_ms: i64,
    },
}

impl LockRows {
    pub(super) async fn open(dialect: Dialect, url: &str) -> Result<Self, OpenError> {
        let url = match dialect {
            Dialect::Sqlite => {
                let (file, options) = url.split_once('?').unwrap_or((url, "mode=rwc"));
                format!("{file}-locks?{options}")
            }
            Dialect::Postgres | Dialect::Mysql => url.to_string(),
        };
        let pool = pool(dialect, &url, CONNECTIONS_MAX, Flush::Always).await?;
        Ok(Self { dialect, pool })
    }

    /// The tables of the lock file on SQLite; elsewhere the main database has them.
    pub(super) async fn migrate(&self) -> Result<(), OpenError> {
        match self.dialect {
            Dialect::Sqlite => migrate(self.dialect, &self.pool).await,
            Dialect::Postgres | Dialect::Mysql => Ok(()),
        }
    }

    pub(super) async fn close(&self) {
        self.pool.close().await;
    }

    /// One try: insert the row, or take it over if it has expired by the database's clock. The
    /// fencing token is raised in the same transaction.
    ///
    /// # Errors
    /// `Retry` is a deadlock or a lock wait: ordinary under contention, on MySQL above all.
    /// `Unknown`: it may be ours; `release` finds out.
    ///
    /// # Cancel safety
    /// Dropped before the COMMIT is sent, nothing is written; dropped after it, the row is released
    /// once that is answered.
    pub async fn try_acquire(
        &self,
        key: &str,
        owner: &str,
        ttl: Duration,
    ) -> Result<RowGrant, StoreError> {
        // A plain look first: most tries find the lock held, and need no write to learn it.
        if let Some(held) = self.holder(key, owner).await? {
            return Ok(held);
        }
        let ttl_ms = i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX);
        let mut tx = self.pool.begin_with(self.dialect.begin()).await?;
        let sql = self.dialect.sql(
            "UPDATE distributed_lock SET owner_token = ?, expires_at = {now} + ? \
             WHERE lock_key = ? AND expires_at < {now}",
        );
        let take_over = query(&sql).bind(owner).bind(ttl_ms).bind(key);
        let taken_over = match take_over.execute(&mut *tx).await {
            Ok(done) => done.rows_affected() == 1,
            Err(error) => return give_up(tx, error).await,
        };
        if !taken_over {
            let sql = self.dialect.sql(
                "INSERT INTO distributed_lock (lock_key, owner_token, expires_at) VALUES (?, ?, {now} + ?)",
            );
            let insert = query(&sql).bind(key).bind(owner).bind(ttl_ms);
            if let Err(error) = insert.execute(&mut *tx).await {
                return give_up(tx, error).await;
            }
        }
        let sql = match self.dialect {
            Dialect::Sqlite | Dialect::Postgres => self.dialect.sql(
                "INSERT INTO lock_fence (lock_key, last) VALUES (?, 1) \
                 ON CONFLICT (lock_key) DO UPDATE SET last = lock_fence.last + 1",
            ),
            Dialect::Mysql => {
                "INSERT INTO lock_fence (lock_key, last) VALUES (?, 1) ON DUPLICATE KEY UPDATE last = last + 1"
                    .to_string()
            }
        };
        if let Err(error) = query(&sql).bind(key).execute(&mut *tx).await {
            return give_up(tx, error).await;
        }
        let sql = self
            .dialect
            .sql("SELECT last FROM lock_fence WHERE lock_key = ?");
        let fence = match query(&sql).bind(key).fetch_one(&mut *tx).await {
            Ok(row) => row.try_get("last")?,
            Err(error) => return give_up(tx, error).await,
        };
        self.commit(tx, key, owner, ttl).await?;
        Ok(RowGrant::Mine { fence })
    }

    /// A COMMIT whose waiter has gone may be carried out later than any release on another
    /// connection. So it is sent by a task of its own, which waits for the answer, for the lease at
    /// most, and then releases for a waiter that has gone.
    async fn commit(
        &self,
        tx: sqlx::Transaction<'static, sqlx::Any>,
        key: &str,
        owner: &str,
        ttl: Duration,
    ) -> Result<(), StoreError> {
        let (tell, told) = oneshot::channel();
        let (rows, key, owner) = (self.clone(), key.to_string(), owner.to_string());
        tokio::spawn(async move {
            let Ok(committed) = tokio::time::timeout(ttl, tx.commit()).await else {
                return;
            };
            if tell.send(committed).is_ok() {
                return;
            }
            for _ in 0..LATE_RELEASES_MAX {
                if rows.release(&key, &owner).await.is_ok() {
                    return;
                }
            }
        });
        match told.await {
            Ok(committed) => committed.map_err(StoreError::of_commit),
            Err(_no_answer) => Err(StoreError::Unknown(sqlx::Error::WorkerCrashed)),
        }
    }

    /// Who holds the row, if it has not expired. The owner itself holds it when the answer to its
    /// last try was lost; it is answered the same again.
    async fn holder(&self, key: &str, owner: &str) -> Result<Option<RowGrant>, StoreError> {
        let sql = self.dialect.sql(
            "SELECT l.owner_token AS owner_token, l.expires_at - {now} AS for_ms, f.last AS last \
             FROM distributed_lock l JOIN lock_fence f ON f.lock_key = l.lock_key \
             WHERE l.lock_key = ? AND l.expires_at >= {now}",
        );
        let Some(row) = query(&sql).bind(key).fetch_optional(&self.pool).await? else {
            return Ok(None);
        };
        let holder: String = row.try_get("owner_token")?;
        Ok(Some(if holder == owner {
            RowGrant::Mine {
                fence: row.try_get("last")?,
            }
        } else {
            RowGrant::Held {
                for_ms: row.try_get("for_ms")?,
            }
        }))
    }

    /// Moves the expiry on, while the row is still the owner's and has not expired. `false`: it is
    /// not, and is not made again.
    pub async fn renew(&self, key: &str, owner: &str, ttl: Duration) -> Result<bool, StoreError> {
        let ttl_ms = i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX);
        let sql = self.dialect.sql(
            "UPDATE distributed_lock SET expires_at = {now} + ? \
             WHERE lock_key = ? AND owner_token = ? AND expires_at >= {now}",
        );
        let done = query(&sql)
            .bind(ttl_ms)
            .bind(key)
            .bind(owner)
            .execute(&self.pool)
            .await?;
        Ok(done.rows_affected() == 1)
    }

    /// Deletes the row if it is the owner's. `false`: it was not.
    pub async fn release(&self, key: &str, owner: &str) -> Result<bool, StoreError> {
        let sql = self
            .dialect
            .sql("DELETE FROM distributed_lock WHERE lock_key = ? AND owner_token = ?");
        let done = query(&sql)
            .bind(key)
            .bind(owner)
            .execute(&self.pool)
            .await?;
        Ok(done.rows_affected() == 1)
    }

    /// Raises the last token to at least `floor`.
    pub async fn reseed(&self, key: &str, floor: i64) -> Result<(), StoreError> {
        let sql = self
            .dialect
            .sql("UPDATE lock_fence SET last = ? WHERE lock_key = ? AND last < ?");
        query(&sql)
            .bind(floor)
            .bind(key)
            .bind(floor)
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    pub async fn ping(&self) -> Result<(), StoreError> {
        query("SELECT 1").execute(&self.pool).await?;
        Ok(())
    }
}

/// A unique key that is taken is another holder; anything else is told. Either way nothing stays.
async fn give_up(
    tx: sqlx::Transaction<'_, sqlx::Any>,
    error: sqlx::Error,
) -> Result<RowGrant, StoreError> {
    if let Err(error) = tx.rollback().await {
        tracing::debug!(%error, "rollback on a lost connection");
    }
    match StoreError::from(error) {
        StoreError::Conflict(_) => Ok(RowGrant::Held { for_ms: 0 }),
        other => Err(other),
    }
}
