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
    #[error(transparent)]
    Database(sqlx::Error),
    #[error("no connection became free in time")]
    QueueFull,
    /// The activity was paused, ended or given another strategy since this was begun.
    #[error("the activity was paused, ended or given another strategy meanwhile")]
    Superseded,
}

/// PostgreSQL: serialization failure, deadlock, lock not available, statement or
/// idle-in-transaction timeout.
const POSTGRES_RETRY: [&str; 5] = ["40001", "40P01", "55P03", "57014", "25P03"];
/// MySQL and MariaDB: lock wait timeout, deadlock, record has changed, statement timeout.
const MYSQL_RETRY: [u16; 4] = [1205, 1213, 1020, 1969];
/// SQLite's primary result codes BUSY and LOCKED; extended codes carry them in the low byte.
const SQLITE_RETRY: [u32; 2] = [5, 6];
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
            if MYSQL_AWAY.contains(&number) {
                return Self::Unavailable(error);
            }
            return Self::Refused(error);
        }
        let code = db.code().unwrap_or_default().into_owned();
        if db.try_downcast_ref::<sqlx::sqlite::SqliteError>().is_some() {
            let retry = code
                .parse::<u32>()
                .is_ok_and(|code| SQLITE_RETRY.contains(&(code & 0xff)));
            return if retry {
                Self::Retry(Contended::Database(error))
            } else {
                Self::Refused(error)
            };
        }
        if POSTGRES_RETRY.contains(&code.as_str()) {
            Self::Retry(Contended::Database(error))
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
