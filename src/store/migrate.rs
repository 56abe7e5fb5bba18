//! How are the tables created or upgraded, when several processes start at once?

use std::time::Duration;

use sqlx::migrate::{MigrateError, Migrator};
use sqlx::{AnyPool, Row};

use super::{Dialect, OpenError, query};

/// Tries on SQLite, which has no lock for this: of two processes at once one fails, and finds the
/// tables when it looks again.
const SQLITE_TRIES_MAX: u32 = 5;
const SQLITE_PAUSE: Duration = Duration::from_millis(100);
/// One wait for MySQL's lock: below the longest run of a statement.
const MYSQL_WAIT_S: u64 = 5;
/// Waits for it: an upgrade of large tables takes a while.
const MYSQL_WAITS_MAX: u64 = 12;

/// Creates or upgrades the tables. Processes that do so at once wait for each other.
pub(super) async fn migrate(dialect: Dialect, pool: &AnyPool) -> Result<(), OpenError> {
    match dialect {
        Dialect::Sqlite => sqlite(sqlx::migrate!("migrations/sqlite"), pool).await,
        Dialect::Postgres => Ok(sqlx::migrate!("migrations/postgres").run(pool).await?),
        Dialect::Mysql => mysql(sqlx::migrate!("migrations/mysql"), pool).await,
    }
}

async fn sqlite(migrator: Migrator, pool: &AnyPool) -> Result<(), OpenError> {
    let mut tries = 1;
    loop {
        match migrator.run(pool).await {
            Ok(()) => return Ok(()),
            Err(error) if tries < SQLITE_TRIES_MAX => {
                tracing::debug!(%error, tries, "migrating again: another process may be at it");
                tries += 1;
                tokio::time::sleep(SQLITE_PAUSE).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Under a lock of our own: sqlx asks for its lock with the wait -1, which MariaDB takes for no
/// wait at all, and goes on without it.
async fn mysql(mut migrator: Migrator, pool: &AnyPool) -> Result<(), OpenError> {
    migrator.set_locking(false);
    let name = "CONCAT('flashlock-migrate-', MD5(DATABASE()))";
    let take = format!("SELECT CAST(COALESCE(GET_LOCK({name}, {MYSQL_WAIT_S}), 0) AS SIGNED)");
    let free = format!("DO RELEASE_LOCK({name})");
    // The lock is the connection's: it goes with it, should this process end here.
    let mut connection = pool.acquire().await.map_err(MigrateError::from)?;
    let mut waits = 0;
    loop {
        let row = query(&take).fetch_one(&mut *connection).await;
        let taken: i64 = row
            .and_then(|row| row.try_get(0))
            .map_err(MigrateError::from)?;
        if taken == 1 {
            break;
        }
        waits += 1;
        if waits == MYSQL_WAITS_MAX {
            return Err(OpenError::MigratingElsewhere(
                MYSQL_WAIT_S * MYSQL_WAITS_MAX,
            ));
        }
    }
    let migrated = migrator.run(&mut *connection).await;
    if let Err(error) = query(&free).execute(&mut *connection).await {
        tracing::debug!(%error, "the lock of the migration goes with its connection");
    }
    Ok(migrated?)
}
