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
use crate::lock::lease::{Lease, Timing};
use crate::lock::wait::{Queue, Turn};
use crate::lock::watchdog::{HOLD_MAX, Renew, Renewal, Tenure};
use crate::lock::{AcquireError, Fence, Guard, Released, Terms};
use crate::sale::Watchdog;

/// What an acquire without any wait gives its one call: many round trips to a server near by.
const CALL_MIN: Duration = Duration::from_millis(100);
/// Calls without an answer before an acquire gives up: the second one tells a lost reply from a
/// lost server.
const UNANSWERED_MAX: u32 = 2;
/// Releases tried in the background before the lease is left to run out.
const RELEASE_TRIES_MAX: u32 = 20;
/// Pause between them: together they outlast a restart of the server.
const RELEASE_PAUSE: Duration = Duration::from_millis(250);

type Source = Box<dyn std::error::Error + Send + Sync>;

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
        let turn = self.queue.turn(&key.row(), deadline).await;
        let turn = turn.map_err(|_no_turn| AcquireError::Busy)?;
        let ownership = Ownership {
            server: self.server.clone(),
            key: key.clone(),
            // Random per acquisition: what a late release may delete is its own grant alone.
            owner: Uuid::new_v4().simple().to_string(),
            ttl: terms.ttl,
        };
        let (answer, answered) = oneshot::channel();
        // A task of its own: when the caller is dropped, a grant that is on its way must still be
        // received, and given back by the guard's drop.
        tokio::spawn(contend(ownership, turn, *terms, deadline, answer));
        let patience = deadline.max(clock::now() + CALL_MIN);
        match tokio::time::timeout_at(patience, answered).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) | Err(_) => Err(AcquireError::Unknown {
                server: S::NAME,
                source: "no answer within the wait".into(),
            }),
        }
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
    mut answer: oneshot::Sender<Result<LeasedGuard<S>, AcquireError>>,
) {
    let mut unanswered: Option<(Instant, Source)> = None;
    let mut unanswered_count = 0;
    loop {
        // A reply that was lost may have granted the lease then, so it counts from then.
        let asked_at = unanswered.as_ref().map_or_else(clock::now, |(at, _)| *at);
        let asked = ownership
            .server
            .ask(&ownership.key, &ownership.owner, ownership.ttl);
        let left = match asked.await {
            Asked::Granted { fence } => {
                // A caller that is gone drops the guard, which releases.
                drop(answer.send(Ok(ownership.granted(turn, terms, asked_at, fence))));
                return;
            }
            // Held by another: whatever was asked before was not granted, or is over.
            Asked::Held { left } => {
                unanswered = None;
                left
            }
            Asked::Unanswered(source) => {
                unanswered_count += 1;
                if unanswered_count >= UNANSWERED_MAX || clock::now() >= deadline {
                    drop(answer.send(Err(AcquireError::Unknown {
                        server: S::NAME,
                        source,
                    })));
                    drop(turn);
                    ownership.disown().await;
                    return;
                }
                unanswered = Some((asked_at, source));
                continue;
            }
            Asked::Unreached(source) => {
                let server = S::NAME;
                let maybe_granted = unanswered.is_some();
                let error = match unanswered {
                    Some((_, source)) => AcquireError::Unknown { server, source },
                    None => AcquireError::Unavailable { server, source },
                };
                drop(answer.send(Err(error)));
                drop(turn);
                if maybe_granted {
                    ownership.disown().await;
                }
                return;
            }
        };
        let pause = left.map_or(S::POLL, |left| left.min(S::POLL));
        let pause = pause + pause.mul_f64(rand::rng().random::<f64>());
        let over = clock::now() + pause >= deadline;
        tokio::select! {
            () = tokio::time::sleep_until(deadline.min(clock::now() + pause)) => {}
            () = answer.closed() => return,
        }
        if over {
            drop(answer.send(Err(AcquireError::Busy)));
            return;
        }
    }
}
