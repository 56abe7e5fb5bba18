//! `redis-set-nx`: one Redis key per activity, `SET NX PX` with a random owner.
//!
//! The recipe is the one of the Redis documentation ("Distributed Locks with Redis", the correct
//! implementation with a single instance): a random owner per acquisition, compare-and-delete as
//! release. The acquire script counts a fencing token besides.

use std::sync::Arc;
use std::time::Duration;

use super::{Entry, Kind, Missing, Need, Servers};
use crate::deduct::Deduct;
use crate::keys::LockKey;
use crate::lock::leased::{Asked, LeaseServer, LeasedGuard, LeasedLock, Source};
use crate::lock::watchdog::Renewal;
use crate::lock::{AcquireError, Fence, Guarantees, Lock, Released, Terms};
use crate::script::lock::{self as script, Owned, Taken};
use crate::script::node::{CallError, Node, RESPONSE_TIMEOUT};

/// Exclusion by one Redis. Clones share the connection and the queue.
#[derive(Debug, Clone)]
pub struct RedisSetNxLock(LeasedLock<OneRedis>);

/// The Redis that keeps the leases.
#[derive(Debug, Clone)]
pub struct OneRedis(Arc<Node>);

pub(super) const ENTRY: Entry = Entry {
    kind: Kind::Lock,
    needs: &[Need::Redis],
    open,
};

fn open(servers: &Servers) -> Result<Box<dyn Deduct>, Missing> {
    let lock = RedisSetNxLock::new(servers.redis_url()?).map_err(Servers::not_redis)?;
    Ok(servers.locked(lock))
}

// === impl RedisSetNxLock ===

impl RedisSetNxLock {
    /// Connects on first use, and again whenever the server comes back.
    ///
    /// # Errors
    /// When `redis_url` is not a Redis URL.
    pub fn new(redis_url: &str) -> Result<Self, redis::RedisError> {
        let node = Node::new(redis_url, RESPONSE_TIMEOUT)?;
        Ok(Self(LeasedLock::new(OneRedis(Arc::new(node)))))
    }

    fn node(&self) -> &Node {
        &self.0.server().0
    }
}

impl Lock for RedisSetNxLock {
    type Guard = LeasedGuard<OneRedis>;

    fn guarantees(&self) -> Guarantees {
        Guarantees {
            protects_by: "SET key owner NX PX on one Redis, released by compare-and-delete, renewed by a watchdog",
            stock_lives_in: "database",
            fair: false,
            fenced: true,
            survives_failover: false,
            frees_after_crash: "lease",
            note: "Waiters are first-come within a process only. After a failover to a replica, or a \
                   flush, two holders may overlap and the fencing counter may go back: the store \
                   refuses the lower token, and the counter is then raised from the store.",
        }
    }

    async fn ready(&self) -> Result<(), AcquireError> {
        let pong: Result<String, CallError> = self.node().query(&redis::cmd("PING")).await;
        pong.map(|_pong| ()).map_err(unavailable)
    }

    async fn acquire(&self, key: &LockKey, terms: &Terms) -> Result<Self::Guard, AcquireError> {
        self.0.acquire(key, terms).await
    }

    async fn reseed(&self, key: &LockKey, floor: i64) -> Result<(), AcquireError> {
        let counter = script::reseed(self.node(), key, floor).await;
        counter.map(|_counter| ()).map_err(unavailable)
    }

    /// The fencing counter, which outlives every lease.
    async fn retire(&self, key: &LockKey, grace: Duration) -> Result<(), AcquireError> {
        let mut expire = redis::cmd("PEXPIRE");
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        expire.arg(key.redis_fence()).arg(grace_ms);
        let was_there: Result<i64, CallError> = self.node().query(&expire).await;
        was_there.map(|_was_there| ()).map_err(unavailable)
    }
}

// === impl OneRedis ===

impl LeaseServer for OneRedis {
    const NAME: &'static str = "redis";
    /// A critical section takes a few milliseconds.
    const POLL: Duration = Duration::from_millis(2);

    async fn ask(&self, key: &LockKey, owner: &str, ttl: Duration) -> Asked {
        match script::acquire(&self.0, key, owner.as_bytes(), ttl).await {
            Ok(Taken::Granted { fence }) => Asked::Granted {
                fence: Fence::Token(fence),
            },
            Ok(Taken::Held { left }) => Asked::Held { left },
            Err(e @ CallError::Unanswered(_)) => Asked::Unanswered(Box::new(e)),
            Err(e @ (CallError::Unreached(_) | CallError::Refused(_))) => {
                Asked::Unreached(Box::new(e))
            }
        }
    }

    async fn renew(&self, key: &LockKey, owner: &str, ttl: Duration) -> Renewal {
        match script::renew(&self.0, key, owner.as_bytes(), ttl).await {
            Ok(Owned::Mine) => Renewal::Renewed,
            Ok(Owned::NotMine) => Renewal::Gone,
            Err(_) => Renewal::Failed,
        }
    }

    async fn release(&self, key: &LockKey, owner: &str) -> Released {
        match script::release(&self.0, key, owner.as_bytes()).await {
            Ok(Owned::Mine) => Released::Released,
            Ok(Owned::NotMine) => Released::NotOwner,
            Err(_) => Released::Pending,
        }
    }

    fn trouble(&self) -> Option<Source> {
        self.0.trouble().map(|e| Box::new(e) as Source)
    }
}

fn unavailable(e: CallError) -> AcquireError {
    AcquireError::Unavailable {
        server: OneRedis::NAME,
        source: Box::new(e),
    }
}
