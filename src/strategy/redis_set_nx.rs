//! `redis-set-nx`: one Redis key per activity, `SET NX PX` with a random owner.
//!
//! The recipe is the one of the Redis documentation ("Distributed Locks with Redis", the correct
//! implementation with a single instance): a random owner per acquisition, compare-and-delete as
//! release. The acquire script counts a fencing token besides.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;

use super::{Entry, Kind, Missing, Need, Servers};
use crate::deduct::Deduct;
use crate::keys::LockKey;
use crate::lock::guard::LeasedGuard;
use crate::lock::leased::{Asked, LeaseServer, LeasedLock, Look, Others, Passed, Source};
use crate::lock::watchdog::Renewal;
use crate::lock::{self, AcquireError, Fence, Guarantees, Lock, Released, Terms};
use crate::script::lock::{self as script, Owned, Taken};
use crate::script::node::{CallError, Hearing, Listener, Node, RESPONSE_TIMEOUT};

/// Exclusion by one Redis. Clones share the connection and the queue.
#[derive(Debug, Clone)]
pub struct RedisSetNxLock(LeasedLock<OneRedis>);

/// The Redis that keeps the leases.
#[derive(Debug, Clone)]
pub struct OneRedis(Arc<Node>);

/// One acquisition.
#[derive(Debug)]
pub struct Claim {
    key: LockKey,
    owner: String,
    ttl: Duration,
    /// Once it has been found held.
    listener: Option<Listener>,
}

/// Longest time to trust that a release would be heard: it is not when the key is deleted by hand,
/// or by a client that does not publish.
const UNHEARD_MAX: Duration = Duration::from_millis(500);
/// A held lock is asked for again after this while nothing can be heard, and at most twice as long:
/// a critical section takes a few milliseconds.
const POLL: Duration = Duration::from_millis(2);

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
                   refuses a token that is not higher, and the counter is then raised from the store.",
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
    type Claim = Claim;

    fn claim(&self, key: &LockKey, ttl: Duration) -> Claim {
        Claim {
            key: key.clone(),
            owner: lock::random_owner(),
            ttl,
            listener: None,
        }
    }

    async fn ask(&self, claim: &mut Claim) -> Asked {
        let Claim {
            key,
            owner,
            ttl,
            listener,
        } = claim;
        let asked = match listener {
            None => script::acquire(&self.0, key, owner.as_bytes(), *ttl).await,
            Some(listener) => {
                script::acquire_listening(&self.0, listener, key, owner.as_bytes(), *ttl).await
            }
        };
        match asked {
            Ok(Taken::Granted { fence }) => {
                claim.listener = None;
                Asked::Granted {
                    fence: Fence::Token(fence),
                }
            }
            Ok(Taken::Held { left }) => Asked::Held { left },
            Err(e) => failed(e),
        }
    }

    /// The first time it says only that it listens from now on: a release between the failed try
    /// and the subscription must not be missed, so it is asked again at once.
    async fn changed(&self, claim: &mut Claim, left: Option<Duration>) {
        let Some(listener) = &claim.listener else {
            claim.listener = Some(self.0.listener(claim.key.redis_channel()));
            return;
        };
        match listener.hearing() {
            Hearing::Subscribed => {
                let until = left.map_or(UNHEARD_MAX, |left| left.min(UNHEARD_MAX));
                drop(tokio::time::timeout(until + jitter(), listener.heard()).await);
            }
            Hearing::Deaf => {
                let pause = left.map_or(POLL, |left| left.min(POLL));
                tokio::time::sleep(pause + jitter()).await;
            }
        }
    }

    async fn renew(&self, claim: &Claim) -> Renewal {
        match script::renew(&self.0, &claim.key, claim.owner.as_bytes(), claim.ttl).await {
            Ok(Owned::Mine) => Renewal::Renewed,
            Ok(Owned::NotMine) => Renewal::Gone,
            Err(_) => Renewal::Failed,
        }
    }

    async fn release(&self, claim: &Claim) -> Released {
        released(script::release(&self.0, &claim.key, claim.owner.as_bytes()).await)
    }

    async fn pass(&self, from: &Claim, to: &mut Claim, look: Look) -> Passed {
        let (mine, heir) = (from.owner.as_bytes(), to.owner.as_bytes());
        let channel = match look {
            Look::Around => Some(from.key.redis_channel()),
            Look::Ahead => None,
        };
        match script::pass(&self.0, &from.key, mine, heir, to.ttl, channel.as_deref()).await {
            Ok(passed) => Passed {
                released: released(Ok(passed.freed)),
                next: Some(match passed.fence {
                    Some(fence) => Asked::Granted {
                        fence: Fence::Token(fence),
                    },
                    None => Asked::Held { left: None },
                }),
                others: match passed.listening {
                    0 => Others::None,
                    _some => Others::Waiting,
                },
            },
            Err(e) => Passed {
                released: Released::Pending,
                next: Some(failed(e)),
                others: Others::None,
            },
        }
    }

    fn trouble(&self) -> Option<Source> {
        self.0.trouble().map(|e| Box::new(e) as Source)
    }
}

fn released(answer: Result<Owned, CallError>) -> Released {
    match answer {
        Ok(Owned::Mine) => Released::Released,
        Ok(Owned::NotMine) => Released::NotOwner,
        Err(_) => Released::Pending,
    }
}

fn failed(e: CallError) -> Asked {
    match e {
        CallError::Unanswered(_) => Asked::Unanswered(Box::new(e)),
        CallError::Unreached(_) | CallError::Refused(_) => Asked::Unreached(Box::new(e)),
    }
}

/// So that processes do not ask in step.
fn jitter() -> Duration {
    POLL.mul_f64(rand::rng().random::<f64>())
}

fn unavailable(e: CallError) -> AcquireError {
    AcquireError::Unavailable {
        server: OneRedis::NAME,
        source: Box::new(e),
    }
}
