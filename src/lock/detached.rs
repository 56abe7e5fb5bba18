//! How an acquire outlives its caller: it runs in a task of its own, so that a grant which is on
//! its way when the caller is dropped is still received, and given back.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::clock::{self, Instant};
use crate::lock::AcquireError;

/// What an acquire without any wait gives its one call: many round trips to a server near by.
const CALL_MIN: Duration = Duration::from_millis(100);

/// The caller, as seen from the task that asks on its behalf.
#[derive(Debug)]
pub struct Caller<G> {
    answer: oneshot::Sender<Result<G, AcquireError>>,
    asking: Arc<AtomicBool>,
}

/// Runs `ask` in a task of its own and waits for its answer until `deadline`, at least 100 ms.
///
/// At the deadline a caller whose question is under way hears `Unknown`, and one whose lock was
/// held when last asked hears `Busy`. `ask` bounds its own calls; it goes on alone, and what it is
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
    let asking = Arc::new(AtomicBool::new(true));
    tokio::spawn(ask(Caller {
        answer,
        asking: asking.clone(),
    }));
    let patience = deadline.max(clock::now() + CALL_MIN);
    match tokio::time::timeout_at(patience, answered).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) | Err(_) if asking.load(Ordering::Acquire) => Err(AcquireError::Unknown {
            server,
            source: "no answer within the wait".into(),
        }),
        Ok(Err(_)) | Err(_) => Err(AcquireError::Busy),
    }
}

// === impl Caller ===

impl<G> Caller<G> {
    /// A question is under way: what it leads to is unknown until it is answered.
    pub fn asks(&self) {
        self.asking.store(true, Ordering::Release);
    }

    /// The lock was held by another when last asked.
    pub fn hears_busy(&self) {
        self.asking.store(false, Ordering::Release);
    }

    /// Resolves once nobody waits for the answer any more.
    pub async fn gone(&mut self) {
        self.answer.closed().await;
    }

    pub fn is_gone(&self) -> bool {
        self.answer.is_closed()
    }

    /// Ends the wait. A guard that nobody receives is dropped, which releases it.
    pub fn answer(self, result: Result<G, AcquireError>) {
        drop(self.answer.send(result));
    }
}
