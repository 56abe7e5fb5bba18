//! How is a claim given back that nobody is left to hold? A claim from its first call on until it is
//! a guard's, and again from a release on until the server has confirmed it.

use std::time::Duration;

use crate::keys::LockKey;
use crate::lock::Released;
use crate::lock::guard::Attendant;
use crate::lock::leased::{Asked, LeaseServer};

/// Releases tried in the background before the lease is left to run out.
const RELEASE_TRIES_MAX: u32 = 20;
/// Pause between them: together they outlast a restart of the server.
const RELEASE_PAUSE: Duration = Duration::from_millis(250);

/// Why a claim is there.
const TAKEN: &str = "only into_attendant and drop take it";

/// A claim that is not a guard's yet; dropped, it is given back in the background if the server may
/// know of it.
#[derive(Debug)]
pub struct Pending<S: LeaseServer> {
    server: S,
    key: LockKey,
    /// Taken by the guard.
    claim: Option<S::Claim>,
    trace: Trace,
}

/// Whether the server may know of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trace {
    None,
    Maybe,
}

// === impl Pending ===

impl<S: LeaseServer> Pending<S> {
    pub(super) fn new(server: &S, key: &LockKey, ttl: Duration) -> Self {
        Self {
            server: server.clone(),
            key: key.clone(),
            claim: Some(server.claim(key, ttl)),
            trace: Trace::None,
        }
    }

    pub(super) fn claim(&self) -> &S::Claim {
        self.claim.as_ref().expect(TAKEN)
    }

    /// The guard looks after it from now on.
    pub(super) fn into_attendant(mut self) -> Attendant<S> {
        Attendant {
            server: self.server.clone(),
            key: self.key.clone(),
            claim: self.claim.take().expect(TAKEN),
        }
    }

    pub(super) async fn ask(&mut self) -> Asked {
        let earlier = self.trace;
        self.trace = Trace::Maybe;
        let claim = self.claim.as_mut().expect(TAKEN);
        let asked = self.server.ask(claim).await;
        self.answered(&asked, earlier);
        asked
    }

    pub(super) async fn changed(&mut self, left: Option<Duration>) {
        if let Some(claim) = &mut self.claim {
            self.server.changed(claim, left).await;
        }
    }

    /// The claim, for a call that may leave a trace of it.
    pub(super) fn called(&mut self) -> &mut S::Claim {
        self.trace = Trace::Maybe;
        self.claim.as_mut().expect(TAKEN)
    }

    /// What came of such a call.
    pub(super) fn told(&mut self, asked: &Asked) {
        self.answered(asked, Trace::None);
    }

    fn answered(&mut self, asked: &Asked, earlier: Trace) {
        self.trace = match asked {
            Asked::Granted { .. } | Asked::Queued | Asked::Unanswered(_) => Trace::Maybe,
            Asked::Held { .. } => Trace::None,
            // This call was not made; an earlier one may have been.
            Asked::Unreached(_) => earlier,
        };
    }
}

impl<S: LeaseServer> Drop for Pending<S> {
    fn drop(&mut self) {
        let Some(claim) = self.claim.take() else {
            return;
        };
        if self.trace == Trace::None {
            return;
        }
        let server = self.server.clone();
        // Spawned because drop cannot wait; without a runtime the lease runs out.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { disown(&server, &claim).await });
        }
    }
}

/// Releases until the server has said whether it did.
pub(super) async fn release_until_answered<S: LeaseServer>(server: &S, claim: &S::Claim) {
    for _ in 0..RELEASE_TRIES_MAX {
        if server.release(claim).await != Released::Pending {
            return;
        }
        tokio::time::sleep(RELEASE_PAUSE).await;
    }
    tracing::warn!(
        ?claim,
        "a lock could not be released; its lease has to run out"
    );
}

/// After a call without an answer: it may run later than the release that follows it on another
/// connection, so the release is repeated once more after a pause.
async fn disown<S: LeaseServer>(server: &S, claim: &S::Claim) {
    release_until_answered(server, claim).await;
    tokio::time::sleep(RELEASE_PAUSE).await;
    release_until_answered(server, claim).await;
}
