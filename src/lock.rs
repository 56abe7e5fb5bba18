//! A mutual exclusion with a lease: what every lock promises, and the outcomes a caller can tell apart.
//!
//! The locks can be used without the rest. Each is one type with one constructor:
//!
//! | lock | opened by | source of the algorithm |
//! |---|---|---|
//! | [`RedisSetNxLock`](crate::strategy::redis_set_nx::RedisSetNxLock) | `new(redis_url)` | Redis documentation, "Distributed Locks with Redis": single instance |
//! | [`RedlockLock`](crate::strategy::redlock::RedlockLock) | `new(&redis_urls)`, an odd number, three or more | the same page: the Redlock algorithm |
//! | [`ZookeeperLock`](crate::strategy::zookeeper::ZookeeperLock) | `new("host:port,host:port")` | ZooKeeper documentation, "Recipes and Solutions": locks |
//! | [`DbUniqueInsertLock`](crate::strategy::db_unique_insert::DbUniqueInsertLock) | `new(store.lock_rows().clone())` | a lock table, as in ShedLock's JDBC provider |
//!
//! None of them connects when it is made; a server that was away is connected to again. Clones share
//! connections and one first-come queue per key, so one lock per process is enough.
//!
//! ```no_run
//! use std::time::Duration;
//! use flashlock::lock::{AcquireError, Guard, Lock, LockKey, Released, Terms};
//! use flashlock::strategy::redis_set_nx::RedisSetNxLock;
//!
//! # async fn write_report(fence: flashlock::lock::Fence) {}
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let lock = RedisSetNxLock::new("redis://127.0.0.1:6379")?;
//! let key = LockKey::named("nightly-report")?;
//! let terms = Terms { wait: Duration::from_secs(2), ..Terms::default() };
//! let guard = match lock.acquire(&key, &terms).await {
//!     Ok(guard) => guard,
//!     Err(AcquireError::Busy) => return Ok(()), // another does it
//!     Err(error @ (AcquireError::Unavailable { .. } | AcquireError::Unknown { .. })) => return Err(error.into()),
//! };
//! tokio::select! {
//!     () = write_report(guard.fence()) => {}
//!     () = guard.lost() => {} // stop: it may be another's now
//! }
//! match guard.release().await {
//!     Released::Released => {}
//!     Released::NotOwner => {} // the lease had ended before: what was done is suspect
//!     Released::Pending => {}  // no answer; goes on in the background until the lease ends
//! }
//! # Ok(()) }
//! ```
//!
//! `examples/` has one program per lock.
//!
//! # A lease is not a mutex
//! A holder that is paused for longer than its lease goes on as if it held the lock (C. Gray and D.
//! Cheriton, "Leases", 1989, assume bounded clock drift; M. Kleppmann, "How to do distributed locking",
//! 2016, says what follows). Two things help: [`Guard::valid_until`](crate::lock::Guard::valid_until) and [`Guard::lost`](crate::lock::Guard::lost), which are by
//! the holder's own monotonic clock and early rather than late; and [`Guard::fence`](crate::lock::Guard::fence), a token that a
//! store compares, so that what comes late is refused there.

pub mod caretaker;
pub mod claim;
pub mod guard;
pub mod lease;
pub mod leased;
pub mod wait;
pub mod watchdog;

use std::future::Future;
use std::time::Duration;

use serde::Serialize;

use crate::clock::Instant;
use crate::sale::Activity;

pub use crate::keys::LockKey;
pub use crate::sale::Watchdog;
/// A grant's token is what the store checks, so it is the store's word.
pub use crate::store::Fence;

/// What a caller asks of a lock. By default a lease of 10 s that is renewed, and a wait of 5 s.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Length of a lease, from when it was asked for. A holder that dies is waited for so long. Not
    /// for ZooKeeper, whose lease is its session.
    pub ttl: Duration,
    /// Longest wait; every acquire ends by then, or 100 ms after it was called.
    pub wait: Duration,
    /// Whether the lease is renewed, at a third of it, while its guard lives: for up to 60 s.
    pub watchdog: Watchdog,
}

/// A mutual exclusion with a lease.
pub trait Lock: Send + Sync + std::fmt::Debug + 'static {
    type Guard: Guard;

    fn guarantees(&self) -> Guarantees;

    /// Whether the server it relies on answers now; `Err(Unavailable)` names it.
    fn ready(&self) -> impl Future<Output = Result<(), AcquireError>> + Send;

    /// Waits up to `terms.wait` for the lock of `key`. `Ok` means that the server granted it to
    /// this call, under an identity of its own.
    ///
    /// # Errors
    /// `Busy`: another had it for the whole wait; nothing is wrong. `Unavailable`: nothing was
    /// granted, and the server is named. `Unknown`: it may have been granted; it is given back in the
    /// background, and its lease bounds how long that can take.
    ///
    /// # Cancel safety
    /// A future dropped at any point leaves nothing behind for longer than one round trip: what the
    /// server may have granted meanwhile is released in the background.
    fn acquire(
        &self,
        key: &LockKey,
        terms: &Terms,
    ) -> impl Future<Output = Result<Self::Guard, AcquireError>> + Send;

    /// Tells the token's source that the store has already accepted `floor`: the next grant's token
    /// is above it. For a source that lost its history; the others have nothing to do.
    fn reseed(
        &self,
        key: &LockKey,
        floor: i64,
    ) -> impl Future<Output = Result<(), AcquireError>> + Send {
        let _ = (key, floor);
        async { Ok(()) }
    }

    /// Lets go of what its server keeps of `key` beside the lease, once `grace` is over. For most
    /// there is nothing.
    fn retire(
        &self,
        key: &LockKey,
        grace: Duration,
    ) -> impl Future<Output = Result<(), AcquireError>> + Send {
        let _ = (key, grace);
        async { Ok(()) }
    }
}

/// A lease that was granted.
///
/// Dropped instead of released, it is given back in the background, where there is still a tokio
/// runtime; otherwise it runs out.
pub trait Guard: Send + Sync + 'static {
    /// The token of this grant: higher than that of every earlier grant of the same key, as far as
    /// the lock's guarantees say. A store that remembers the highest it has seen refuses the others.
    fn fence(&self) -> Fence;

    /// Until when the holder may believe in its lease, by its own monotonic clock; stamped *before*
    /// the call that granted it, and moved on by a renewal.
    fn valid_until(&self) -> Instant;

    /// Resolves once the lease has ended or may have ended; never before.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    fn lost(&self) -> impl Future<Output = ()> + Send;

    /// Whether a write may be invoked now: not lost, and before the deadline.
    fn is_held(&self) -> bool;

    /// Gives the lock back and says what the server answered; bounded by a second or so.
    ///
    /// # Cancel safety
    /// Dropped half way, the release goes on in the background.
    fn release(self) -> impl Future<Output = Released> + Send;
}

/// What a release came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    Released,
    /// The lease had ended and the lock may be another's: the work under it is suspect.
    NotOwner,
    /// Not confirmed; it is retried in the background, and the lease bounds it.
    Pending,
}

/// Why a lock was not granted.
#[derive(Debug, thiserror::Error)]
pub enum AcquireError {
    /// Someone holds it and the wait is over.
    #[error("the lock is held by another and the wait is over")]
    Busy,
    /// The server is out of reach, or no quorum answered. Nothing was granted.
    #[error("{server} is out of reach: {source}")]
    Unavailable {
        server: &'static str,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// It may have been granted; cleaned up in the background.
    #[error(
        "{server} did not answer: the lock may have been granted and is being released: {source}"
    )]
    Unknown {
        server: &'static str,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// What a strategy promises, as a caller of `GET /v1/strategies` reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Guarantees {
    /// How the stock is protected, in one sentence.
    pub protects_by: &'static str,
    /// Where the sellable stock lives while the sale runs.
    pub stock_lives_in: &'static str,
    /// Waiters are served in the order in which they came.
    pub fair: bool,
    /// A holder whose lease has ended can be told apart by its token.
    pub fenced: bool,
    /// Exclusion (or, for `redis-lua`, the stock) survives the failover of the server it relies on.
    pub survives_failover: bool,
    /// A holder that dies is waited for, at most this: `lease`, `session`, `transaction`, `sweep` or `none`.
    pub frees_after_crash: &'static str,
    /// What a decision should know besides.
    pub note: &'static str,
}

/// The name of one acquisition, told from all others: 128 random bits of the thread's generator, which
/// the system has seeded.
pub(crate) fn random_owner() -> String {
    format!("{:032x}", rand::random::<u128>())
}

// === impl Terms ===

impl Default for Terms {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(10),
            wait: Duration::from_secs(5),
            watchdog: Watchdog::On,
        }
    }
}

impl Terms {
    /// As the activity's lock settings say.
    pub fn of(activity: &Activity) -> Self {
        let ms = |n: i64| Duration::from_millis(u64::try_from(n).unwrap_or(0));
        Self {
            ttl: ms(activity.lock.ttl_ms),
            wait: ms(activity.lock.wait_ms),
            watchdog: activity.lock.watchdog,
        }
    }
}
