//! What a holder does with its grant: it looks after it, gives it back, or passes it on.
//!
//! # Passing on
//! When others of this process wait, a release asks for the next of them in the same call, under a
//! claim of its own: one round trip per critical section, and no lease is ever shared. Other
//! processes must not starve meanwhile: every 10 ms it is looked whether any wait. If so, the next
//! holder releases for all to see, and its process lets 2 ms pass before it contends again.

use std::time::Duration;

use crate::clock::{self, Instant};
use crate::keys::LockKey;
use crate::lock::claim::{self, Pending};
use crate::lock::lease::Event;
use crate::lock::leased::{Asked, Grant, LeaseServer, Look, Others};
use crate::lock::wait::{Heir, Turn};
use crate::lock::watchdog::{Attend, Renewal, Tenure};
use crate::lock::{Fence, Guard, Released};

/// How long a process may pass a lock on while others wait: some critical sections.
const RUN_MAX: Duration = Duration::from_millis(10);
/// How long it lets others go first then: a wake-up and a round trip on a busy machine.
const REST: Duration = Duration::from_millis(2);

/// A lease on one key.
#[derive(Debug)]
pub struct LeasedGuard<S: LeaseServer> {
    /// Taken once the server has confirmed the release; a guard that is dropped with it releases in
    /// the background.
    tenure: Option<Holding<S>>,
    fence: Fence,
    run: Run,
}

type Holding<S> = Tenure<Attendant<S>, Turn<Handed<S>>>;

/// Looks after one grant.
#[derive(Debug)]
pub(super) struct Attendant<S: LeaseServer> {
    pub(super) server: S,
    pub(super) key: LockKey,
    pub(super) claim: S::Claim,
}

/// What was asked for on behalf of the next in this process's line; dropped, it is given back.
#[derive(Debug)]
pub struct Handed<S: LeaseServer> {
    pub(super) pending: Pending<S>,
    /// `None`: it has a place in the server's own queue.
    pub(super) grant: Option<Grant>,
    pub(super) run: Run,
}

/// Grants in a row within this process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    begun_at: Instant,
    others: Others,
}

// === impl Run ===

impl Run {
    pub(super) fn begun_now() -> Self {
        Self {
            begun_at: clock::now(),
            others: Others::None,
        }
    }

    /// Whether it is another process's turn.
    fn is_over(&self) -> bool {
        self.others == Others::Waiting
    }

    /// Only the end of a run depends on others.
    fn look(&self) -> Look {
        match clock::now() < self.begun_at + RUN_MAX {
            true => Look::Ahead,
            false => Look::Around,
        }
    }

    /// The run that goes on with the next in line.
    fn next(self, look: Look, others: Others) -> Self {
        match (look, others) {
            (Look::Ahead, _) => self,
            (Look::Around, Others::Waiting) => Self { others, ..self },
            (Look::Around, Others::None) => Self::begun_now(),
        }
    }
}

// === impl Attendant ===

impl<S: LeaseServer> Attend for Attendant<S> {
    async fn renew(&self) -> Renewal {
        self.server.renew(&self.claim).await
    }

    async fn watch(&self, told: &(dyn Fn(Event) + Send + Sync)) {
        self.server.watch(&self.claim, told).await;
    }
}

// === impl LeasedGuard ===

impl<S: LeaseServer> LeasedGuard<S> {
    pub(super) fn new(tenure: Holding<S>, fence: Fence, run: Run) -> Self {
        Self {
            tenure: Some(tenure),
            fence,
            run,
        }
    }

    fn tenure(&self) -> &Holding<S> {
        self.tenure.as_ref().expect("only the release takes it")
    }
}

impl<S: LeaseServer> Guard for LeasedGuard<S> {
    fn fence(&self) -> Fence {
        self.fence
    }

    fn valid_until(&self) -> Instant {
        self.tenure().valid_until()
    }

    async fn lost(&self) {
        self.tenure().lost().await;
    }

    fn is_held(&self) -> bool {
        self.tenure().is_held()
    }

    async fn release(mut self) -> Released {
        let tenure = self.tenure();
        let mine = tenure.attendant();
        let released = match tenure.end() {
            Some(mut turn) if self.run.is_over() => {
                turn.rest(clock::now() + REST);
                mine.server.release(&mine.claim).await
            }
            Some(turn) => match turn.to_heir() {
                Ok(heir) => pass(mine, heir, self.run).await,
                // The turn is kept meanwhile: the next one finds the lock free.
                Err(_turn) => mine.server.release(&mine.claim).await,
            },
            // The lease has ended, and others have had their turn since.
            None => mine.server.release(&mine.claim).await,
        };
        if released != Released::Pending {
            drop(self.tenure.take());
        }
        // Otherwise it is dropped with its tenure, and goes on in the background.
        released
    }
}

/// Releases `mine` and gives what the server grants instead to the heir.
async fn pass<S: LeaseServer>(mine: &Attendant<S>, heir: Heir<Handed<S>>, run: Run) -> Released {
    let mut pending = Pending::new(&mine.server, &mine.key, heir.ttl());
    let (asked_at, look) = (clock::now(), run.look());
    let call = mine.server.pass(&mine.claim, pending.called(), look);
    let passed = call.await;
    let Some(asked) = passed.next else {
        pending.told(&Asked::Held { left: None });
        return passed.released;
    };
    pending.told(&asked);
    let grant = match asked {
        Asked::Granted { fence } => Some(Grant { fence, asked_at }),
        Asked::Queued => None,
        // The heir gets the turn alone, and asks for itself.
        Asked::Held { .. } | Asked::Unreached(_) | Asked::Unanswered(_) => {
            return passed.released;
        }
    };
    heir.give(Handed {
        pending,
        grant,
        run: run.next(look, passed.others),
    });
    passed.released
}

impl<S: LeaseServer> Drop for LeasedGuard<S> {
    fn drop(&mut self) {
        let Some(tenure) = self.tenure.take() else {
            return;
        };
        let turn = tenure.end();
        // Spawned because drop cannot wait; without a runtime the lease runs out.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let mine = tenure.attendant();
                claim::release_until_answered(&mine.server, &mine.claim).await;
                drop(turn);
            });
        }
    }
}
