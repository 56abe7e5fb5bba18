//! A lock whose server keeps a lease per key: the contention, the grant and the release that such
//! servers share. What differs is behind [`LeaseServer`].

use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use rand::RngExt;
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::clock::{self, Instant};
use crate::keys::LockKey;
use crate::lock::detached::{Caller, detached};
use crate::lock::lease::{Lease, Timing};
use crate::lock::wait::{Queue, Turn};
use crate::lock::watchdog::{HOLD_MAX, Renew, Renewal, Tenure};
use crate::lock::{AcquireError, Fence, Guard, Released, Terms};
use crate::sale::Watchdog;

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

/// The server's own error.
pub type Source = Box<dyn std::error::Error + Send + Sync>;

/// A server that grants a key to one owner for a time.
pub trait LeaseServer: Debug + Clone + Send + Sync + 'static {
    /// How errors name the server.
    const NAME: &'static str;
    /// A held lock is asked for again after this long at least, and at most twice as long: jitter,
    /// so that processes do not ask in step.
    const POLL: Duration;

    /// Asks once. The same owner asked again while it holds the key is granted the same.
    fn ask(&self, key: &LockKey, owner: &str, ttl: Duration) -> impl Future<Output = Asked> + Send;

    /// Renews once; never makes a lease that is gone.
    fn renew(
        &self,
        key: &LockKey,
        owner: &str,
        ttl: Duration,
    ) -> impl Future<Output = Renewal> + Send;

    /// Why the last call had no answer; `None` once one was answered. Tells those who waited for
    /// their turn in vain whether it was the lock or the server.
    fn trouble(&self) -> Option<Source>;

    /// Releases once, if the key is the owner's.
    fn release(&self, key: &LockKey, owner: &str) -> impl Future<Output = Released> + Send;
}

/// What asking once came to.
#[derive(Debug)]
pub enum Asked {
    Granted {
        fence: Fence,
    },
    /// Another's, for at most `left` unless it is renewed.
    Held {
        left: Option<Duration>,
    },
    /// The server is out of reach: nothing was granted.
    Unreached(Source),
    /// It may have been granted.
    Unanswered(Source),
}

/// The lock of one kind of server. Clones share the queue.
#[derive(Debug, Clone)]
pub struct LeasedLock<S> {
    server: S,
    queue: Queue,
}

/// A lease on one key.
#[derive(Debug)]
pub struct LeasedGuard<S: LeaseServer> {
    tenure: Tenure,
    fence: Fence,
    /// Taken by the release; a guard that is dropped with it releases in the background.
    ownership: Option<Ownership<S>>,
}

/// What it takes to renew or release one grant.
#[derive(Debug, Clone)]
struct Ownership<S> {
    server: S,
    key: LockKey,
    owner: String,
    ttl: Duration,
}

// === impl LeasedLock ===

impl<S: LeaseServer> LeasedLock<S> {
    pub fn new(server: S) -> Self {
        Self {
            server,
            queue: Queue::default(),
        }
    }

    pub fn server(&self) -> &S {
        &self.server
    }

    /// As [`crate::lock::Lock::acquire`].
    pub async fn acquire(
        &self,
        key: &LockKey,
        terms: &Terms,
    ) -> Result<LeasedGuard<S>, AcquireError> {
        let deadline = clock::now() + terms.wait;
        let server = S::NAME;
        let turn = self.queue.turn(&key.row(), deadline).await;
        let turn = turn.map_err(|_no_turn| match self.server.trouble() {
            Some(source) => AcquireError::Unavailable { server, source },
            None => AcquireError::Busy,
        })?;
        let ownership = Ownership {
            server: self.server.clone(),
            key: key.clone(),
            // Random per acquisition: what a late release may delete is its own grant alone.
            owner: Uuid::new_v4().simple().to_string(),
            ttl: terms.ttl,
        };
        let terms = *terms;
        detached(server, deadline, |caller| {
            contend(ownership, turn, terms, deadline, caller)
        })
        .await
    }
}

// === impl LeasedGuard ===

impl<S: LeaseServer> Guard for LeasedGuard<S> {
    fn fence(&self) -> Fence {
        self.fence
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
            let _gone = answer.send(first);
            if pending {
                ownership.release_until_answered().await;
            }
        });
        answered.await.unwrap_or(Released::Pending)
    }
}

impl<S: LeaseServer> Drop for LeasedGuard<S> {
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

impl<S: LeaseServer> Ownership<S> {
    async fn release_once(&self) -> Released {
        self.server.release(&self.key, &self.owner).await
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

    fn granted(self, turn: Turn, terms: Terms, asked_at: Instant, fence: Fence) -> LeasedGuard<S> {
        let timing = Timing {
            ttl: terms.ttl,
            hold_max: HOLD_MAX.max(terms.ttl),
        };
        let lease = Lease::granted(asked_at, timing);
        let tenure = match terms.watchdog {
            Watchdog::On => Tenure::renewed(lease, turn, self.clone()),
            Watchdog::Off => Tenure::unattended(lease, turn),
        };
        LeasedGuard {
            tenure,
            fence,
            ownership: Some(self),
        }
    }
}

impl<S: LeaseServer> Renew for Ownership<S> {
    async fn renew(&mut self) -> Renewal {
        self.server.renew(&self.key, &self.owner, self.ttl).await
    }
}

/// Asks until the lock is granted, the wait is over, or nobody waits any more.
async fn contend<S: LeaseServer>(
    ownership: Ownership<S>,
    turn: Turn,
    terms: Terms,
    deadline: Instant,
    mut caller: Caller<LeasedGuard<S>>,
) {
    let server = S::NAME;
    let mut unanswered: Option<(Instant, Source)> = None;
    let mut unanswered_count = 0;
    loop {
        caller.asks();
        // A reply that was lost may have granted the lease then, so it counts from then.
        let asked_at = unanswered.as_ref().map_or_else(clock::now, |(at, _)| *at);
        let asked = ownership
            .server
            .ask(&ownership.key, &ownership.owner, ownership.ttl);
        let left = match asked.await {
            Asked::Granted { fence } => {
                // A caller that is gone drops the guard, which releases.
                return caller.answer(Ok(ownership.granted(turn, terms, asked_at, fence)));
            }
            // Held by another: whatever was asked before was not granted, or is over.
            Asked::Held { left } => {
                unanswered = None;
                caller.hears_busy();
                left
            }
            Asked::Unanswered(source) => {
                unanswered_count += 1;
                if unanswered_count >= UNANSWERED_MAX || clock::now() >= deadline {
                    caller.answer(Err(AcquireError::Unknown { server, source }));
                    drop(turn);
                    return ownership.disown().await;
                }
                unanswered = Some((asked_at, source));
                continue;
            }
            Asked::Unreached(source) => {
                let Some((_, before)) = unanswered else {
                    return caller.answer(Err(AcquireError::Unavailable { server, source }));
                };
                caller.answer(Err(AcquireError::Unknown {
                    server,
                    source: before,
                }));
                drop(turn);
                return ownership.disown().await;
            }
        };
        let pause = left.map_or(S::POLL, |left| left.min(S::POLL));
        let pause = pause + pause.mul_f64(rand::rng().random::<f64>());
        let over = clock::now() + pause + LAST_CALL >= deadline;
        let until = if over { deadline } else { clock::now() + pause };
        tokio::select! {
            () = tokio::time::sleep_until(until) => {}
            () = caller.gone() => return,
        }
        if over {
            return caller.answer(Err(AcquireError::Busy));
        }
    }
}
