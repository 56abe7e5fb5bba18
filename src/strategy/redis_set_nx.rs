//! `redis-set-nx`: one Redis key per activity, `SET NX PX` with a random owner.
//!
//! The recipe is the one of the Redis documentation ("Distributed Locks with Redis", the correct
//! implementation with a single instance): a random owner per acquisition, compare-and-delete as
//! release. The acquire script counts a fencing token besides.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::{Missing, Servers};
use crate::clock::{self, Instant};
use crate::deduct::Deduct;
use crate::keys::LockKey;
use crate::lock::detached::{Caller, detached};
use crate::lock::lease::{Lease, Timing};
use crate::lock::wait::{Queue, Turn};
use crate::lock::watchdog::{HOLD_MAX, Renew, Renewal, Tenure};
use crate::lock::{AcquireError, Fence, Guarantees, Guard, Lock, Released, Terms};
use crate::sale::Watchdog;
use crate::script::lock::{self as script, Owned, Taken};
use crate::script::node::{CallError, Node, RESPONSE_TIMEOUT};

/// How errors name the server.
const SERVER: &str = "redis";
/// A held lock is asked for again after this long at least, and at most twice as long (jitter, so
/// that processes do not ask in step). A critical section takes a few milliseconds.
const POLL_MIN: Duration = Duration::from_millis(2);
/// No call is begun this shortly before the deadline: its answer would come too late, and the
/// outcome would be unknown without need.
const LAST_CALL: Duration = Duration::from_millis(10);
/// Calls without an answer before an acquire gives up: the second one tells a lost reply from a
/// lost server.
const UNANSWERED_MAX: u32 = 2;
/// Releases tried in the background before the lease is left to run out.
const RELEASE_TRIES_MAX: u32 = 20;
/// Pause between them: together they outlast a restart of the server.
const RELEASE_PAUSE: Duration = Duration::from_millis(250);

/// Exclusion by one Redis.
#[derive(Debug, Clone)]
pub struct RedisSetNxLock {
    node: Arc<Node>,
    queue: Queue,
}

/// A key of one Redis that holds this guard's owner.
#[derive(Debug)]
pub struct RedisSetNxGuard {
    tenure: Tenure,
    fence: i64,
    /// Taken by the release; a guard that is dropped with it releases in the background.
    ownership: Option<Ownership>,
}

/// What it takes to renew or release one grant.
#[derive(Debug, Clone)]
struct Ownership {
    node: Arc<Node>,
    key: LockKey,
    owner: String,
    ttl: Duration,
}

pub(super) fn open(servers: &Servers) -> Result<Box<dyn Deduct>, Missing> {
    let lock = RedisSetNxLock::new(servers.redis_url()?).map_err(Servers::not_redis)?;
    Ok(servers.locked(lock))
}

// === impl RedisSetNxLock ===

impl RedisSetNxLock {
    /// Connects on first use, and again whenever the server comes back. Clones share the
    /// connection and the queue.
    ///
    /// # Errors
    /// When `redis_url` is not a Redis URL.
    pub fn new(redis_url: &str) -> Result<Self, redis::RedisError> {
        Ok(Self {
            node: Arc::new(Node::new(redis_url, RESPONSE_TIMEOUT)?),
            queue: Queue::default(),
        })
    }
}

impl Lock for RedisSetNxLock {
    type Guard = RedisSetNxGuard;

    fn guarantees(&self) -> Guarantees {
        Guarantees {
            protects_by: "SET key owner NX PX on one Redis, released by compare-and-delete, renewed by a watchdog",
            stock_lives_in: "database",
            needs: &["redis"],
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
        let pong: Result<String, CallError> = self.node.query(&redis::cmd("PING")).await;
        pong.map(|_pong| ()).map_err(unavailable)
    }

    async fn acquire(&self, key: &LockKey, terms: &Terms) -> Result<RedisSetNxGuard, AcquireError> {
        let deadline = clock::now() + terms.wait;
        let turn = self
            .queue
            .turn(&key.redis(), deadline)
            .await
            .map_err(|_no_turn| match self.node.trouble() {
                Some(e) => unavailable(e),
                None => AcquireError::Busy,
            })?;
        let ownership = Ownership {
            node: self.node.clone(),
            key: key.clone(),
            owner: Uuid::new_v4().simple().to_string(),
            ttl: terms.ttl,
        };
        let terms = *terms;
        detached(SERVER, deadline, |caller| {
            contend(ownership, turn, terms, deadline, caller)
        })
        .await
    }

    async fn reseed(&self, key: &LockKey, floor: i64) -> Result<(), AcquireError> {
        match script::reseed(&self.node, key, floor).await {
            Ok(_counter) => Ok(()),
            Err(e) => Err(unavailable(e)),
        }
    }
}

// === impl RedisSetNxGuard ===

impl Guard for RedisSetNxGuard {
    fn fence(&self) -> Fence {
        Fence::Token(self.fence)
    }

    fn valid_until(&self) -> Instant {
        self.tenure.valid_until()
    }

    async fn lost(&self) {
        self.tenure.lost().await;
    }

    fn is_held(&self) -> bool {
        self.tenure.is_held()
    }

    async fn release(mut self) -> Released {
        let Some(ownership) = self.ownership.take() else {
            return Released::NotOwner;
        };
        let turn = self.tenure.end();
        let (answer, answered) = oneshot::channel();
        // A task of its own: a release must reach the server even if its caller is dropped.
        tokio::spawn(async move {
            let first = ownership.release_once().await;
            drop(turn);
            let pending = first == Released::Pending;
            // Nobody may be left to hear it; the release is done either way.
            let _ = answer.send(first);
            if pending {
                ownership.release_until_answered().await;
            }
        });
        answered.await.unwrap_or(Released::Pending)
    }
}

impl Drop for RedisSetNxGuard {
    fn drop(&mut self) {
        let Some(ownership) = self.ownership.take() else {
            return;
        };
        let turn = self.tenure.end();
        // Spawned because drop cannot wait; without a runtime the lease runs out.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                ownership.release_until_answered().await;
                drop(turn);
            });
        }
    }
}

// === impl Ownership ===

impl Ownership {
    async fn release_once(&self) -> Released {
        match script::release(&self.node, &self.key, self.owner.as_bytes()).await {
            Ok(Owned::Mine) => Released::Released,
            Ok(Owned::NotMine) => Released::NotOwner,
            Err(_) => Released::Pending,
        }
    }

    async fn release_until_answered(&self) {
        for _ in 0..RELEASE_TRIES_MAX {
            if self.release_once().await != Released::Pending {
                return;
            }
            tokio::time::sleep(RELEASE_PAUSE).await;
        }
        tracing::warn!(key = ?self.key, "a lock could not be released; its lease has to run out");
    }

    /// After an acquire without an answer: the command may run later than the release that follows
    /// it on another connection, so the release is repeated once more after a pause.
    async fn disown(self) {
        self.release_until_answered().await;
        tokio::time::sleep(RELEASE_PAUSE).await;
        self.release_until_answered().await;
    }
}

impl Renew for Ownership {
    async fn renew(&mut self) -> Renewal {
        match script::renew(&self.node, &self.key, self.owner.as_bytes(), self.ttl).await {
            Ok(Owned::Mine) => Renewal::Renewed,
            Ok(Owned::NotMine) => Renewal::Gone,
            Err(_) => Renewal::Failed,
        }
    }
}

/// Asks until the lock is granted, the wait is over, or nobody waits any more.
async fn contend(
    ownership: Ownership,
    turn: Turn,
    terms: Terms,
    deadline: Instant,
    mut caller: Caller<RedisSetNxGuard>,
) {
    let mut unanswered: Option<(Instant, CallError)> = None;
    let mut unanswered_count = 0;
    loop {
        caller.asks();
        // A reply that was lost may have granted the lease then, so it counts from then.
        let asked_at = unanswered.as_ref().map_or_else(clock::now, |(at, _)| *at);
        let call = script::acquire(
            &ownership.node,
            &ownership.key,
            ownership.owner.as_bytes(),
            ownership.ttl,
        );
        let left = match call.await {
            Ok(Taken::Granted { fence }) => {
                let guard = grant(ownership, turn, terms, asked_at, fence);
                caller.answer(Ok(guard));
                return;
            }
            // Held by another: whatever was asked before was not granted, or is over.
            Ok(Taken::Held { left }) => {
                unanswered = None;
                caller.hears_busy();
                left
            }
            Err(e @ CallError::Unanswered(_)) => {
                unanswered_count += 1;
                if unanswered_count >= UNANSWERED_MAX || clock::now() >= deadline {
                    caller.answer(Err(unknown(e)));
                    drop(turn);
                    ownership.disown().await;
                    return;
                }
                unanswered = Some((asked_at, e));
                continue;
            }
            Err(e) => {
                let maybe_granted = unanswered.is_some();
                let error = match unanswered {
                    Some((_, before)) => unknown(before),
                    None => unavailable(e),
                };
                caller.answer(Err(error));
                drop(turn);
                if maybe_granted {
                    ownership.disown().await;
                }
                return;
            }
        };
        let pause = left.map_or(POLL_MIN, |l| l.min(POLL_MIN));
        let pause = pause + pause.mul_f64(rand::rng().random::<f64>());
        let over = clock::now() + pause + LAST_CALL >= deadline;
        let until = if over { deadline } else { clock::now() + pause };
        tokio::select! {
            () = tokio::time::sleep_until(until) => {}
            () = caller.gone() => return,
        }
        if over {
            caller.answer(Err(AcquireError::Busy));
            return;
        }
    }
}

fn grant(
    ownership: Ownership,
    turn: Turn,
    terms: Terms,
    asked_at: Instant,
    fence: i64,
) -> RedisSetNxGuard {
    let timing = Timing {
        ttl: terms.ttl,
        hold_max: HOLD_MAX.max(terms.ttl),
    };
    let lease = Lease::granted(asked_at, timing);
    let tenure = match terms.watchdog {
        Watchdog::On => Tenure::renewed(lease, turn, ownership.clone()),
        Watchdog::Off => Tenure::unattended(lease, turn),
    };
    RedisSetNxGuard {
        tenure,
        fence,
        ownership: Some(ownership),
    }
}

fn unavailable(e: CallError) -> AcquireError {
    AcquireError::Unavailable {
        server: SERVER,
        source: Box::new(e),
    }
}

fn unknown(e: CallError) -> AcquireError {
    AcquireError::Unknown {
        server: SERVER,
        source: Box::new(e),
    }
}
