//! A lock whose server keeps leases: the contention and the grant that such servers share. What
//! differs is behind [`LeaseServer`]; what a holder does with its grant is in `guard.rs`.

use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use crate::clock::{self, Instant};
use crate::keys::LockKey;
use crate::lock::caretaker::Caretaker;
use crate::lock::claim::Pending;
use crate::lock::guard::{Handed, LeasedGuard, Run};
use crate::lock::lease::{Event, Lease, Timing};
use crate::lock::wait::{Queue, Turn};
use crate::lock::watchdog::{Care, HOLD_MAX, Renewal, Tenure};
use crate::lock::{AcquireError, Fence, Released, Terms};
use crate::sale::Watchdog;

/// What an acquire without any wait gives its one call: many round trips to a server near by. A
/// call that is under way for longer is taken for one that is not answered.
const CALL_MIN: Duration = Duration::from_millis(100);
/// No call is begun this shortly before the deadline: its answer would come too late, and the
/// outcome would be unknown without need.
const LAST_CALL: Duration = Duration::from_millis(10);
/// Calls without an answer before an acquire gives up: the second one tells a lost reply from a
/// lost server.
const UNANSWERED_MAX: u32 = 2;

/// The server's own error.
pub type Source = Box<dyn std::error::Error + Send + Sync>;

/// A server that grants a key to one claim for a time.
pub trait LeaseServer: Debug + Clone + Send + Sync + 'static {
    /// How errors name the server.
    const NAME: &'static str;

    /// Left at the end of a wait for finding out whether the server answers at all, where asking is
    /// more than one call, or leads into a queue of the server's own in which nothing is heard.
    const PROBE: Duration = Duration::ZERO;

    /// One acquisition, as the server tells it from all others. Random: what a late release may
    /// free is its own grant alone.
    type Claim: Debug + Send + Sync + 'static;

    /// A claim that nobody has made. Asks nobody.
    fn claim(&self, key: &LockKey, ttl: Duration) -> Self::Claim;

    /// Connects, where that is worth a step of its own. Nothing is granted by it.
    fn prepare(&self) -> impl Future<Output = Result<(), Source>> + Send {
        std::future::ready(Ok(()))
    }

    /// Asks once. The same claim asked again while it is granted is answered the same.
    ///
    /// # Cancel safety
    /// A dropped call may have been made: `release` undoes it.
    fn ask(&self, claim: &mut Self::Claim) -> impl Future<Output = Asked> + Send;

    /// Waits until it makes sense to ask again, `left` being what the holder's lease has left at
    /// most. A wake-up that is not missed, or a pause; never longer than the lease.
    fn changed(
        &self,
        claim: &mut Self::Claim,
        left: Option<Duration>,
    ) -> impl Future<Output = ()> + Send;

    /// Renews once; never makes a lease that is gone.
    fn renew(&self, claim: &Self::Claim) -> impl Future<Output = Renewal> + Send;

    /// Releases once, if the key is the claim's.
    fn release(&self, claim: &Self::Claim) -> impl Future<Output = Released> + Send;

    /// Releases `from` and asks for `to`, in one call where the server can.
    fn pass(
        &self,
        from: &Self::Claim,
        to: &mut Self::Claim,
        look: Look,
    ) -> impl Future<Output = Passed> + Send {
        let _ = (to, look);
        async {
            Passed {
                released: self.release(from).await,
                next: None,
                others: Others::None,
            }
        }
    }

    /// Tells what is heard about a grant besides renewals.
    fn watch(
        &self,
        claim: &Self::Claim,
        told: &(dyn Fn(Event) + Send + Sync),
    ) -> impl Future<Output = ()> + Send {
        let _ = (claim, told);
        std::future::pending()
    }

    /// How long the lease of a grant lasts.
    fn timing(&self, claim: &Self::Claim, ttl: Duration) -> Timing {
        let _ = claim;
        Timing {
            ttl,
            hold_max: HOLD_MAX.max(ttl),
        }
    }

    /// How it is looked after.
    fn care(&self, watchdog: Watchdog) -> Care {
        match watchdog {
            Watchdog::On => Care::Renewed,
            Watchdog::Off => Care::None,
        }
    }

    /// Why the last call had no answer; `None` once one was answered. Tells those who waited for
    /// their turn in vain whether it was the lock or the server.
    fn trouble(&self) -> Option<Source>;

    /// Whether it answers at all; asked for `PROBE` at most.
    fn answers(&self) -> impl Future<Output = Result<(), Source>> + Send {
        std::future::ready(Ok(()))
    }
}

/// What asking once came to.
#[derive(Debug)]
pub enum Asked {
    Granted {
        fence: Fence,
    },
    /// Another's, for at most `left` unless it is renewed. The claim has left no trace.
    Held {
        left: Option<Duration>,
    },
    /// The claim has a place in the server's own queue, to be given up by a release.
    Queued,
    /// The server is out of reach: nothing was granted.
    Unreached(Source),
    /// It may have been granted.
    Unanswered(Source),
}

/// What passing a lock on came to.
#[derive(Debug)]
pub struct Passed {
    pub released: Released,
    /// `None` when the next was not asked for.
    pub next: Option<Asked>,
    pub others: Others,
}

/// Whether it is looked who else waits while a lock is passed on: a part of the call's cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// For other processes that wait.
    Around,
    /// For nobody: it is this process's turn for a while yet.
    Ahead,
}

/// Whether other processes wait for the lock, as far as the server knows and was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Others {
    None,
    Waiting,
}

/// The lock of one kind of server. Clones share the queue.
#[derive(Debug, Clone)]
pub struct LeasedLock<S: LeaseServer> {
    server: S,
    queue: Queue<Handed<S>>,
    caretaker: Caretaker,
}

/// What was granted, and when it was asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grant {
    pub(super) fence: Fence,
    pub(super) asked_at: Instant,
}

/// One acquire that has its turn.
struct Contender<S: LeaseServer> {
    server: S,
    pending: Pending<S>,
    call: Call,
    /// Some earlier call was answered: the lock was held.
    heard_busy: bool,
}

/// What a contender is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    /// It connects.
    Preparing,
    /// It asks, since then.
    Asking(Instant),
    /// It was answered that the lock is held.
    Answered,
    /// It has a place in the server's own queue, and hears nothing until its turn.
    Queued,
}

// === impl LeasedLock ===

impl<S: LeaseServer> LeasedLock<S> {
    pub fn new(server: S) -> Self {
        Self {
            server,
            queue: Queue::default(),
            caretaker: Caretaker::default(),
        }
    }

    pub fn server(&self) -> &S {
        &self.server
    }

    /// As [`crate::lock::Lock::acquire`].
    ///
    /// # Cancel safety
    /// Dropped while a call is under way, what that may have been granted is given back by a task.
    pub async fn acquire(
        &self,
        key: &LockKey,
        terms: &Terms,
    ) -> Result<LeasedGuard<S>, AcquireError> {
        let deadline = clock::now() + terms.wait;
        let name = key.redis();
        let turn = self.queue.turn(&name, terms.ttl, deadline).await;
        let mut turn = turn.map_err(|_no_turn| match self.server.trouble() {
            Some(source) => AcquireError::Unavailable {
                server: S::NAME,
                source,
            },
            None => AcquireError::Busy,
        })?;
        let mut pending = None;
        if let Some(handed) = turn.take_handed() {
            match handed.grant {
                Some(grant) => match self.guard(handed.pending, grant, handed.run, turn, terms) {
                    Ok(guard) => return Ok(guard),
                    // Its lease ended on the way here: from the start.
                    Err(back) => turn = back,
                },
                None => pending = Some(handed.pending),
            }
        }
        if let Some(rest_until) = turn.rest_until() {
            tokio::time::sleep_until(rest_until.min(deadline)).await;
        }
        loop {
            let fresh = || Pending::new(&self.server, key, terms.ttl);
            let mut contender = Contender {
                server: self.server.clone(),
                pending: pending.take().unwrap_or_else(fresh),
                call: Call::Preparing,
                heard_busy: false,
            };
            let begun_at = clock::now();
            let patience = deadline.max(begun_at + CALL_MIN);
            let stop_at = patience - S::PROBE.min((patience - begun_at) / 2);
            let contended = tokio::time::timeout_at(stop_at, contender.contend(deadline));
            let grant = match contended.await {
                Ok(contended) => contended?,
                // What the call may be granted yet is given back by the drop of the contender.
                Err(_elapsed) => return Err(contender.cut_off(deadline, patience).await),
            };
            let run = Run::begun_now();
            match self.guard(contender.pending, grant, run, turn, terms) {
                Ok(guard) => return Ok(guard),
                Err(_late) if clock::now() >= deadline => return Err(AcquireError::Busy),
                Err(back) => turn = back,
            }
        }
    }

    /// The guard of a grant, unless its lease has ended already: that is never handed out.
    fn guard(
        &self,
        pending: Pending<S>,
        grant: Grant,
        run: Run,
        turn: Turn<Handed<S>>,
        terms: &Terms,
    ) -> Result<LeasedGuard<S>, Turn<Handed<S>>> {
        let timing = self.server.timing(pending.claim(), terms.ttl);
        let lease = Lease::granted(grant.asked_at, timing);
        if !lease.is_held(clock::now()) {
            return Err(turn);
        }
        let attendant = pending.into_attendant();
        let care = self.server.care(terms.watchdog);
        let tenure = Tenure::new(&self.caretaker, lease, care, turn, attendant);
        Ok(LeasedGuard::new(tenure, grant.fence, run))
    }
}

// === impl Contender ===

impl<S: LeaseServer> Contender<S> {
    /// Asks until the lock is granted or the wait is over.
    async fn contend(&mut self, deadline: Instant) -> Result<Grant, AcquireError> {
        let server = S::NAME;
        let prepared = self.server.prepare().await;
        prepared.map_err(|source| AcquireError::Unavailable { server, source })?;
        let mut unanswered: Option<(Instant, Source)> = None;
        let mut unanswered_count = 0;
        loop {
            // A reply that was lost may have granted the lease then, so it counts from then.
            let asked_at = unanswered.as_ref().map_or_else(clock::now, |(at, _)| *at);
            self.call = Call::Asking(clock::now());
            let left = match self.pending.ask().await {
                Asked::Granted { fence } => return Ok(Grant { fence, asked_at }),
                // Held by another: whatever was asked before was not granted, or is over.
                Asked::Held { left } => left,
                Asked::Queued => {
                    unanswered = None;
                    self.call = Call::Queued;
                    self.pending.changed(None).await;
                    continue;
                }
                Asked::Unanswered(source) => {
                    unanswered_count += 1;
                    if unanswered_count >= UNANSWERED_MAX || clock::now() >= deadline {
                        return Err(AcquireError::Unknown { server, source });
                    }
                    unanswered = Some((asked_at, source));
                    continue;
                }
                Asked::Unreached(source) => {
                    return Err(match unanswered {
                        Some((_, source)) => AcquireError::Unknown { server, source },
                        None => AcquireError::Unavailable { server, source },
                    });
                }
            };
            unanswered = None;
            self.call = Call::Answered;
            self.heard_busy = true;
            let last_call = deadline - LAST_CALL;
            tokio::select! {
                () = self.pending.changed(left) => {}
                () = tokio::time::sleep_until(last_call) => {}
            }
            if clock::now() >= last_call {
                tokio::time::sleep_until(deadline).await;
                return Err(AcquireError::Busy);
            }
        }
    }

    /// Why a wait that is over was in vain.
    async fn cut_off(&self, deadline: Instant, patience: Instant) -> AcquireError {
        let server = S::NAME;
        match self.call {
            Call::Preparing => AcquireError::Unavailable {
                server,
                source: self
                    .server
                    .trouble()
                    .unwrap_or_else(|| "no connection within the wait".into()),
            },
            Call::Answered => AcquireError::Busy,
            // A call that was begun just before the deadline of a held lock was merely cut off: what
            // it may be granted is given back within a round trip.
            Call::Asking(at) if self.heard_busy && clock::now() < at + CALL_MIN => {
                AcquireError::Busy
            }
            Call::Asking(_) if S::PROBE.is_zero() => no_answer(server),
            Call::Asking(_) | Call::Queued => {
                match tokio::time::timeout_at(patience, self.server.answers()).await {
                    Ok(Ok(())) => {
                        tokio::time::sleep_until(deadline).await;
                        AcquireError::Busy
                    }
                    Ok(Err(source)) => AcquireError::Unknown { server, source },
                    Err(_elapsed) => no_answer(server),
                }
            }
        }
    }
}

fn no_answer(server: &'static str) -> AcquireError {
    AcquireError::Unknown {
        server,
        source: "no answer within the wait".into(),
    }
}
