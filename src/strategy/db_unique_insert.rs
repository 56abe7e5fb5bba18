//! Strategy `db-unique-insert`: a row whose unique key only one can insert, with expiry and
//! take-over by the database's clock.
//!
//! The recipe is the lock table known from ShedLock's JDBC provider and many a scheduler: whoever
//! inserts the row holds the lock, whoever finds it expired takes it over. A fencing token is counted
//! besides, in a row that outlives the lock. The row is written on connections of its own, and never
//! within the holder's transaction, which others would have to wait for.

use std::time::Duration;

use rand::RngExt;

use super::{Entry, Kind, Missing, Servers};
use crate::deduct::Deduct;
use crate::keys::LockKey;
use crate::lock::guard::LeasedGuard;
use crate::lock::leased::{Asked, LeaseServer, LeasedLock, Source};
use crate::lock::watchdog::Renewal;
use crate::lock::{self, AcquireError, Fence, Guarantees, Lock, Released, Terms};
use crate::store::{LockRows, RowGrant, StoreError};

/// Exclusion by the lock rows of a database. Clones share the connections and the queue.
#[derive(Debug, Clone)]
pub struct DbUniqueInsertLock(LeasedLock<LockRows>);

/// One acquisition.
#[derive(Debug)]
pub struct Claim {
    row: String,
    owner: String,
    ttl: Duration,
}

/// A held row is read again after this long at least, and at most twice as long, so that processes
/// do not ask in step: a critical section takes a few milliseconds.
const POLL: Duration = Duration::from_millis(3);

pub(super) const ENTRY: Entry = Entry {
    kind: Kind::Lock,
    needs: &[],
    open,
};

fn open(servers: &Servers) -> Result<Box<dyn Deduct>, Missing> {
    Ok(servers.locked(DbUniqueInsertLock::new(servers.store.lock_rows().clone())))
}

// === impl DbUniqueInsertLock ===

impl DbUniqueInsertLock {
    /// The rows are `store.lock_rows()` of a [`Store`](crate::store::Store) that has been opened and
    /// migrated; nothing else of it is needed.
    pub fn new(rows: LockRows) -> Self {
        Self(LeasedLock::new(rows))
    }
}

impl Lock for DbUniqueInsertLock {
    type Guard = LeasedGuard<LockRows>;

    fn guarantees(&self) -> Guarantees {
        Guarantees {
            protects_by: "a lock row with a unique key, taken over once it has expired, renewed by a watchdog",
            stock_lives_in: "database",
            fair: false,
            fenced: true,
            survives_failover: true,
            frees_after_crash: "lease",
            note: "waiters poll, first-come within a process only; expiry is decided by the database's \
                   clock; survives a failover as far as the database's commits do",
        }
    }

    async fn ready(&self) -> Result<(), AcquireError> {
        self.0
            .server()
            .ping()
            .await
            .map_err(|error| AcquireError::Unavailable {
                server: LockRows::NAME,
                source: Box::new(error),
            })
    }

    async fn acquire(&self, key: &LockKey, terms: &Terms) -> Result<Self::Guard, AcquireError> {
        self.0.acquire(key, terms).await
    }

    async fn reseed(&self, key: &LockKey, floor: i64) -> Result<(), AcquireError> {
        let reseeded = self.0.server().reseed(&key.row(), floor).await;
        reseeded.map_err(|error| AcquireError::Unavailable {
            server: LockRows::NAME,
            source: Box::new(error),
        })
    }
}

impl LeaseServer for LockRows {
    const NAME: &'static str = "database";
    type Claim = Claim;

    fn claim(&self, key: &LockKey, ttl: Duration) -> Claim {
        Claim {
            row: key.row(),
            owner: lock::random_owner(),
            ttl,
        }
    }

    async fn ask(&self, claim: &mut Claim) -> Asked {
        match self.try_acquire(&claim.row, &claim.owner, claim.ttl).await {
            Ok(RowGrant::Mine { fence }) => Asked::Granted {
                fence: Fence::Token(fence),
            },
            Ok(RowGrant::Held { for_ms }) => {
                let left = u64::try_from(for_ms).unwrap_or(0).max(1);
                Asked::Held {
                    left: Some(Duration::from_millis(left)),
                }
            }
            // Two inserts that met: a deadlock here is another contender, and not an error.
            Err(StoreError::Retry(_) | StoreError::Conflict(_)) => Asked::Held { left: None },
            Err(error @ StoreError::Unknown(_)) => Asked::Unanswered(Box::new(error)),
            Err(error @ (StoreError::Unavailable(_) | StoreError::Refused(_))) => {
                Asked::Unreached(Box::new(error))
            }
        }
    }

    /// No database of the three tells when a row is deleted.
    async fn changed(&self, _claim: &mut Claim, left: Option<Duration>) {
        let pause = left.map_or(POLL, |left| left.min(POLL));
        let jitter = pause.mul_f64(rand::rng().random::<f64>());
        tokio::time::sleep(pause + jitter).await;
    }

    async fn renew(&self, claim: &Claim) -> Renewal {
        match LockRows::renew(self, &claim.row, &claim.owner, claim.ttl).await {
            Ok(true) => Renewal::Renewed,
            Ok(false) => Renewal::Gone,
            Err(_) => Renewal::Failed,
        }
    }

    /// Each try finds out by itself: the pool's wait for a connection is bounded.
    fn trouble(&self) -> Option<Source> {
        None
    }

    async fn release(&self, claim: &Claim) -> Released {
        match LockRows::release(self, &claim.row, &claim.owner).await {
            Ok(true) => Released::Released,
            Ok(false) => Released::NotOwner,
            Err(_) => Released::Pending,
        }
    }
}
