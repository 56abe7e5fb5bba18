//! What a database error means for the caller: a conflict, another try, a lost server, or an
//! outcome nobody knows.

use sqlx::error::ErrorKind;

/// Why a statement did not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A unique key is taken: someone was first. Nothing of this transaction was written.
    #[error("a unique key is taken")]
    Conflict(#[source] sqlx::Error),
    /// Deadlock, serialization failure, a lock wait that was over, or a full queue. Nothing was
    /// written; try the whole transaction again.
    #[error("the database asks to try again: {0}")]
    Retry(Contended),
    /// The database is out of reach. Nothing was written.
    #[error("the database is out of reach: {0}")]
    Unavailable(#[source] sqlx::Error),
    /// COMMIT was sent and not answered: it may have been written.
    #[error("the database did not answer COMMIT: {0}")]
    Unknown(#[source] sqlx::Error),
    /// A CHECK refused the write, a row does not decode, a statement is wrong: a defect, here or in
    /// the data.
    #[error("the database refused: {0}")]
    Refused(#[source] sqlx::Error),
}

/// What a transaction was kept waiting by.
#[derive(Debug, thiserror::Error)]
pub enum Contended {
    /// Deadlock or serialization failure: it may go well at once.
    #[error(transparent)]
    Database(sqlx::Error),
    /// A row stayed locked, or a statement ran, for as long as a caller may be kept: trying again
    /// would multiply the wait.
    #[error("a wait in the database was over: {0}")]
    WaitOver(sqlx::Error),
    /// What was read without a lock was no more there when it should be written, each of so many
    /// times.
    #[error("others changed the stock between the read and the write, {0} times in a row")]
    Outrun(u32),
    #[error("no connection became free in time")]
    QueueFull,
    /// The activity was paused, ended or given another strategy since this was begun.
    #[error("the activity was paused, ended or given another strategy meanwhile")]
    Superseded,
}

/// PostgreSQL: serialization failure, deadlock, idle-in-transaction timeout.
const POSTGRES_RETRY: [&str; 3] = ["40001", "40P01", "25P03"];
/// PostgreSQL: lock not available in time, statement timeout.
const POSTGRES_WAIT_OVER: [&str; 2] = ["55P03", "57014"];
/// MySQL and MariaDB: deadlock, record has changed.
const MYSQL_RETRY: [u16; 2] = [1213, 1020];
/// MySQL and MariaDB: lock wait timeout, statement timeout.
const MYSQL_WAIT_OVER: [u16; 2] = [1205, 1969];
/// SQLite's primary result codes BUSY and LOCKED; extended codes carry them in the low byte.
const SQLITE_RETRY: [u32; 2] = [5, 6];
/// BUSY without an extension: the busy timeout has passed.
const SQLITE_WAIT_OVER: u32 = 5;
/// PostgreSQL: shutting down, starting up, too many connections; class 08 is the connection itself.
const POSTGRES_AWAY: [&str; 5] = ["57P01", "57P02", "57P03", "53300", "08"];
/// MySQL and MariaDB: too many connections, shutting down, query or connection killed.
const MYSQL_AWAY: [u16; 4] = [1040, 1053, 1317, 1927];

// === impl StoreError ===

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        let Some(db) = error.as_database_error() else {
            return match error {
                sqlx::Error::Io(_)
                | sqlx::Error::Tls(_)
                | sqlx::Error::Protocol(_)
                | sqlx::Error::PoolTimedOut
                | sqlx::Error::PoolClosed
                | sqlx::Error::WorkerCrashed => Self::Unavailable(error),
                other => Self::Refused(other),
            };
        };
        if db.kind() == ErrorKind::UniqueViolation {
            return Self::Conflict(error);
        }
        if let Some(mysql) = db.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>() {
            let number = mysql.number();
            if MYSQL_RETRY.contains(&number) {
                return Self::Retry(Contended::Database(error));
            }
            if MYSQL_WAIT_OVER.contains(&number) {
                return Self::Retry(Contended::WaitOver(error));
            }
            if MYSQL_AWAY.contains(&number) {
                return Self::Unavailable(error);
            }
            return Self::Refused(error);
        }
        let code = db.code().unwrap_or_default().into_owned();
        if db.try_downcast_ref::<sqlx::sqlite::SqliteError>().is_some() {
            return match code.parse::<u32>() {
                Ok(SQLITE_WAIT_OVER) => Self::Retry(Contended::WaitOver(error)),
                Ok(code) if SQLITE_RETRY.contains(&(code & 0xff)) => {
                    Self::Retry(Contended::Database(error))
                }
                Ok(_) | Err(_) => Self::Refused(error),
            };
        }
        if POSTGRES_RETRY.contains(&code.as_str()) {
            Self::Retry(Contended::Database(error))
        } else if POSTGRES_WAIT_OVER.contains(&code.as_str()) {
            Self::Retry(Contended::WaitOver(error))
        } else if POSTGRES_AWAY.iter().any(|away| code.starts_with(away)) {
            Self::Unavailable(error)
        } else {
            Self::Refused(error)
        }
    }
}

impl StoreError {
    /// What an error of COMMIT means: when the server said no, it was not written; when it said
    /// nothing, it may have been.
    pub(super) fn of_commit(error: sqlx::Error) -> Self {
        match Self::from(error) {
            Self::Unavailable(source) => Self::Unknown(source),
            said_no
            @ (Self::Conflict(_) | Self::Retry(_) | Self::Unknown(_) | Self::Refused(_)) => said_no,
        }
    }
}
