//! How an acquire outlives its caller: it runs in a task of its own, so that a grant which is on
//! its way when the caller is dropped is still received, and given back.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::clock::{self, Instant};
use crate::lock::AcquireError;

/// What an acquire without any wait gives its one call: many round trips to a server near by. A
/// call that is under way for longer is taken for one that is not answered.
pub const CALL_MIN: Duration = Duration::from_millis(100);

/// The caller, as seen from the task that asks on its behalf.
#[derive(Debug)]
pub struct Caller<G> {
    answer: oneshot::Sender<Result<G, AcquireError>>,
    progress: Arc<Mutex<Progress>>,
}

/// How far the asking has come.
#[derive(Debug, Clone, Copy)]
struct Progress {
    /// When the call that is under way was begun.
    asked_at: Option<Instant>,
    /// Some earlier call was answered: the lock was held.
    heard_busy: bool,
}

/// Runs `ask` in a task of its own and waits for its answer until `deadline`, at least 100 ms.
///
/// At the deadline a caller whose lock was held when last asked hears `Busy`, and one whose call is
/// not answered hears `Unknown`. `ask` bounds its own calls; it goes on alone, and what it is
/// granted then is dropped, so `G` must release on drop.
///
/// # Cancel safety
/// A dropped caller is the same as one whose deadline has come.
pub async fn detached<G, F>(
    server: &'static str,
    deadline: Instant,
    ask: impl FnOnce(Caller<G>) -> F,
) -> Result<G, AcquireError>
where
    G: Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let (answer, answered) = oneshot::channel();
    let progress = Arc::new(Mutex::new(Progress {
        asked_at: Some(clock::now()),
        heard_busy: false,
    }));
    tokio::spawn(ask(Caller {
        answer,
        progress: progress.clone(),
    }));
    let patience = deadline.max(clock::now() + CALL_MIN);
    match tokio::time::timeout_at(patience, answered).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) | Err(_) if read(&progress).is_unanswered() => Err(AcquireError::Unknown {
            server,
            source: "no answer within the wait".into(),
        }),
        Ok(Err(_)) | Err(_) => Err(AcquireError::Busy),
    }
}

// === impl Progress ===

impl Progress {
    fn is_unanswered(self) -> bool {
        self.asked_at.is_some_and(|at| {
            // A call that was begun just before the deadline of a held lock was merely cut off:
            // what it may be granted is given back within a round trip.
            !self.heard_busy || clock::now() >= at + CALL_MIN
        })
    }
}

fn read(progress: &Mutex<Progress>) -> Progress {
    *progress.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl Caller ===

impl<G> Caller<G> {
    /// A call is under way: what it leads to is unknown until it is answered.
    pub fn asks(&self) {
        let asked_at = Some(clock::now());
        self.progress().asked_at = asked_at;
    }

    /// The lock was held by another when last asked.
    pub fn hears_busy(&self) {
        *self.progress() = Progress {
            asked_at: None,
            heard_busy: true,
        };
    }

    fn progress(&self) -> std::sync::MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resolves once nobody waits for the answer any more.
    pub async fn gone(&mut self) {
        self.answer.closed().await;
    }

    /// Ends the wait. A guard that nobody receives is dropped, which releases it.
    pub fn answer(self, result: Result<G, AcquireError>) {
        drop(self.answer.send(result));
    }
}
