//! The database: connections, transactions, and what an error means. The only SQL is below here.

mod activity;
mod compensation;
mod delivery;
mod dialect;
mod error;
mod event;
mod final_state;
mod inbox;
mod life;
mod lock_row;
mod migrate;
mod order;
mod outbox;
mod payment;
mod recon;
mod rejected;
mod stock;
mod tombstone;
mod version;

use std::sync::Arc;
use std::time::Duration;

use sqlx::any::{AnyArguments, AnyPoolOptions, AnyRow};
use sqlx::query::Query;
use sqlx::{Any, AnyPool, AssertSqlSafe, Row, Transaction};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub use compensation::{Compensation, CompensationState};
pub use dialect::{Dialect, UnknownDatabase, without_password};
pub use error::{Contended, StoreError};
pub use final_state::{FinalOrder, FinalSku, FinalState, LedgerRow, OutboxRow};
pub use life::{Late, Unpaid, Unsettled};
pub use lock_row::{LockRows, RowGrant};
use migrate::migrate;
pub use order::{Found, Lookup};
pub use outbox::{
    Before, ClaimedEvent, ClaimedEvents, DeadEvent, Event, EventKind, NextTry, OutboxCounts,
    Replayed, Undelivered,
};
pub use payment::{Payment, PaymentOutcome};
pub use recon::WrongRow;
pub use rejected::Rejection;
pub use stock::{Claim, Claimed, ClaimedSku, Fence};
pub use tombstone::Tombstone;
pub use version::Versioned;

/// Longest wait for a free connection, and for a connection to be made.
const ACQUIRE_WAIT: Duration = Duration::from_secs(3);
/// Longest wait for a row lock. Long enough for a queue on one hot row, short enough to answer 503
/// before a buyer's client gives up.
const ROW_WAIT_S: u64 = 3;
/// Longest run of one statement.
const STATEMENT_S: u64 = 10;
/// Longest wait for the answer to one statement. A server that works says no before; this is one
/// that hangs, or a network that swallows what is sent.
const ANSWER_WAIT: Duration = Duration::from_secs(STATEMENT_S + 2);
/// A transaction that stands still longer than this was left by a process that hangs.
const IDLE_TRANSACTION_S: u64 = 15;

/// How the store is opened.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    pub url: String,
    /// Most connections of the main pool.
    pub connections_max: u32,
}

/// The database.
#[derive(Debug, Clone)]
pub struct Store {
    dialect: Dialect,
    pool: AnyPool,
    /// Claims need no flush of their own: the write that follows flushes them too.
    claims: AnyPool,
    lock_rows: LockRows,
    /// Taken before the pool, so that thousands of waiters queue here with a deadline instead of
    /// collapsing the pool.
    permits: Arc<Semaphore>,
    /// SQLite has one writer: its queue is here rather than in its unfair busy loop.
    writer: Arc<Semaphore>,
}

/// A transaction that writes. Commit it or roll it back, in so many words: a drop only queues the
/// rollback.
#[derive(Debug)]
pub struct Tx {
    dialect: Dialect,
    inner: Transaction<'static, Any>,
    /// The generation of the strategy that sells or gives back in this transaction: from then on no
    /// stock row of a later one is written.
    under: Option<i64>,
    _permit: OwnedSemaphorePermit,
    _writer: Option<OwnedSemaphorePermit>,
}

// === impl Store ===

impl Store {
    /// Opens the pools. Needs the server, so that a wrong URL is told at the start.
    ///
    /// # Errors
    /// `Unavailable` when the database cannot be reached, `Refused` when it does not let us in.
    pub async fn open(options: &StoreOptions) -> Result<Self, OpenError> {
        sqlx::any::install_default_drivers();
        let dialect = Dialect::of_url(&options.url)?;
        let pool = pool(
            dialect,
            &options.url,
            options.connections_max,
            Flush::Always,
        )
        .await?;
        let claims = match dialect {
            Dialect::Sqlite | Dialect::Mysql => pool.clone(),
            Dialect::Postgres => {
                pool_lazy(dialect, &options.url, options.connections_max, Flush::Later)?
            }
        };
        let lock_rows = LockRows::open(dialect, &options.url).await?;
        let permits = usize::try_from(options.connections_max).unwrap_or(1);
        Ok(Self {
            dialect,
            pool,
            claims,
            lock_rows,
            permits: Arc::new(Semaphore::new(permits)),
            writer: Arc::new(Semaphore::new(1)),
        })
    }

    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// The rows of `db-unique-insert`, on connections of their own.
    pub fn lock_rows(&self) -> &LockRows {
        &self.lock_rows
    }

    /// Creates or upgrades the tables. Processes that start at once wait for each other.
    pub async fn migrate(&self) -> Result<(), OpenError> {
        migrate(self.dialect, &self.pool).await?;
        self.lock_rows.migrate().await
    }

    /// Asks the database whether it is there, and for its clock (Unix milliseconds).
    pub async fn now_ms(&self) -> Result<i64, StoreError> {
        let sql = self.dialect.sql("SELECT {now}");
        let rows = self.rows(query(&sql)).await?;
        let row = rows
            .first()
            .ok_or(StoreError::Refused(sqlx::Error::RowNotFound))?;
        Ok(row.try_get(0)?)
    }

    /// Begins a transaction that writes; waits for a connection up to a bound.
    pub async fn begin(&self) -> Result<Tx, StoreError> {
        let permit = self.permit(&self.permits).await?;
        let writer = match self.dialect {
            Dialect::Sqlite => Some(self.permit(&self.writer).await?),
            Dialect::Postgres | Dialect::Mysql => None,
        };
        let inner = answered(self.pool.begin_with(self.dialect.begin())).await?;
        Ok(Tx {
            dialect: self.dialect,
            inner,
            under: None,
            _permit: permit,
            _writer: writer,
        })
    }

    pub async fn close(&self) {
        self.pool.close().await;
        self.claims.close().await;
        self.lock_rows.close().await;
    }

    async fn permit(&self, of: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, StoreError> {
        match tokio::time::timeout(ACQUIRE_WAIT, Arc::clone(of).acquire_owned()).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_closed)) => Err(StoreError::Unavailable(sqlx::Error::PoolClosed)),
            Err(_elapsed) => Err(StoreError::Retry(Contended::QueueFull)),
        }
    }

    /// Runs one statement on its own, outside any transaction.
    async fn rows(&self, sql: Query<'_, Any, AnyArguments>) -> Result<Vec<AnyRow>, StoreError> {
        let _permit = self.permit(&self.permits).await?;
        Ok(answered(sql.fetch_all(&self.pool)).await?)
    }
}

// === impl Tx ===

impl Tx {
    /// # Errors
    /// `Unknown` when the answer did not come: it may have been written.
    pub async fn commit(self) -> Result<(), StoreError> {
        let committed = answered(self.inner.commit()).await;
        committed.map_err(StoreError::of_commit)
    }

    /// What cannot be rolled back with a lost connection is rolled back by the server.
    pub async fn rollback(self) {
        if let Err(error) = answered(self.inner.rollback()).await {
            tracing::debug!(%error, "rollback on a lost connection");
        }
    }

    async fn execute(&mut self, sql: Query<'_, Any, AnyArguments>) -> Result<u64, StoreError> {
        Ok(answered(sql.execute(&mut *self.inner))
            .await?
            .rows_affected())
    }
}

/// What the database answers within `ANSWER_WAIT`. A connection that was given up is tried before
/// it is used again, and closed when it still says nothing.
async fn answered<T>(
    answer: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    match tokio::time::timeout(ANSWER_WAIT, answer).await {
        Ok(answer) => answer,
        Err(_elapsed) => Err(sqlx::Error::Io(std::io::Error::new(
            std::io::ErrorKind::TimedOut,
            format!("no answer in {} s", ANSWER_WAIT.as_secs()),
        ))),
    }
}

/// The statement `sql`, which this store has put together from its own texts and placeholders.
fn query(sql: &str) -> Query<'_, Any, AnyArguments> {
    sqlx::query(AssertSqlSafe(sql.to_string()))
}

/// Why the store could not be opened or migrated.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Url(#[from] UnknownDatabase),
    #[error(
        "cannot open the database {url}: {source}; check that it runs and that the URL is right"
    )]
    Connect {
        url: String,
        #[source]
        source: sqlx::Error,
    },
    #[error("cannot create or upgrade the tables: {0}")]
    Migrate(#[from] sqlx::migrate::MigrateError),
    #[error(
        "another process has been creating or upgrading the tables for {0} s; try again when it is done"
    )]
    MigratingElsewhere(u64),
}

// === pools ===

/// Whether a commit waits for the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flush {
    Always,
    Later,
}

fn pool_options(dialect: Dialect, connections_max: u32, flush: Flush) -> AnyPoolOptions {
    AnyPoolOptions::new()
        .max_connections(connections_max)
        .acquire_timeout(ACQUIRE_WAIT)
        .test_before_acquire(false)
        .after_connect(move |connection, _meta| {
            Box::pin(async move {
                for sql in session(dialect, flush) {
                    let done = sqlx::raw_sql(AssertSqlSafe(sql.text))
                        .execute(&mut *connection)
                        .await;
                    match (done, sql.missing) {
                        (Err(error), Missing::Fails) => return Err(error),
                        (Err(_) | Ok(_), Missing::IsFine) | (Ok(_), Missing::Fails) => {}
                    }
                }
                Ok(())
            })
        })
}

async fn pool(
    dialect: Dialect,
    url: &str,
    connections_max: u32,
    flush: Flush,
) -> Result<AnyPool, OpenError> {
    pool_options(dialect, connections_max, flush)
        .connect(&full_url(dialect, url))
        .await
        .map_err(|source| OpenError::Connect {
            url: without_password(url),
            source,
        })
}

fn pool_lazy(
    dialect: Dialect,
    url: &str,
    connections_max: u32,
    flush: Flush,
) -> Result<AnyPool, OpenError> {
    pool_options(dialect, connections_max, flush)
        .connect_lazy(&full_url(dialect, url))
        .map_err(|source| OpenError::Connect {
            url: without_password(url),
            source,
        })
}

/// SQLite's file is created when it is not there.
fn full_url(dialect: Dialect, url: &str) -> String {
    match dialect {
        Dialect::Sqlite if !url.contains('?') => format!("{url}?mode=rwc"),
        Dialect::Sqlite | Dialect::Postgres | Dialect::Mysql => url.to_string(),
    }
}

/// A session setting, and whether an older or other server may not know it.
struct Setting {
    text: String,
    missing: Missing,
}

#[derive(Clone, Copy)]
enum Missing {
    Fails,
    IsFine,
}

fn session(dialect: Dialect, flush: Flush) -> Vec<Setting> {
    let needed = |text: String| Setting {
        text,
        missing: Missing::Fails,
    };
    let if_known = |text: String| Setting {
        text,
        missing: Missing::IsFine,
    };
    match dialect {
        Dialect::Sqlite => vec![
            needed(format!("PRAGMA busy_timeout = {}", ROW_WAIT_S * 1000)),
            needed("PRAGMA journal_mode = WAL".to_string()),
            needed("PRAGMA synchronous = FULL".to_string()),
        ],
        Dialect::Postgres => {
            let mut settings = vec![
                needed(format!("SET lock_timeout = '{ROW_WAIT_S}s'")),
                needed(format!("SET statement_timeout = '{STATEMENT_S}s'")),
                needed(format!(
                    "SET idle_in_transaction_session_timeout = '{IDLE_TRANSACTION_S}s'"
                )),
                needed("SET default_transaction_isolation = 'read committed'".to_string()),
            ];
            if flush == Flush::Later {
                settings.push(needed("SET synchronous_commit = off".to_string()));
            }
            settings
        }
        Dialect::Mysql => vec![
            needed(format!(
                "SET SESSION innodb_lock_wait_timeout = {ROW_WAIT_S}"
            )),
            needed("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED".to_string()),
            if_known(format!("SET SESSION max_statement_time = {STATEMENT_S}")),
            if_known(format!(
                "SET SESSION idle_write_transaction_timeout = {IDLE_TRANSACTION_S}"
            )),
        ],
    }
}
