//! Who looks after a lease while its holder works: it renews, it tells the loss, it dies with the
//! guard.
//!
//! A guard owns a [`Tenure`]. Its task belongs to it: dropping the tenure ends it, so nothing is
//! renewed for a holder that is gone. A lock that can be renewed gives a [`Renew`]; what the server
//! answers is all the task needs to know.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::clock::{self, Instant};
use crate::lock::lease::{Event, Lease, Phase};
use crate::lock::wait::Turn;

/// Longest time one holder may keep a lock by renewing it: a critical section takes milliseconds,
/// so a holder of a minute hangs, and the sale must not hang with it.
pub const HOLD_MAX: Duration = Duration::from_secs(60);

/// Renews a lease, checked by owner; it must never create what is gone.
pub trait Renew: Send + 'static {
    /// Asks the server once. It is dropped at the lease's deadline.
    fn renew(&mut self) -> impl Future<Output = Renewal> + Send;
}

/// What a renewal came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    Renewed,
    /// The lock is another's or nobody's: it is lost.
    Gone,
    /// No answer, or one that says nothing about the owner: it is tried again while the lease lasts.
    Failed,
}

/// A lease, and the task that looks after it.
#[derive(Debug)]
pub struct Tenure {
    state: Arc<State>,
    task: AbortHandle,
}

/// Tells a tenure what was heard about it elsewhere, such as by a watch. Does not keep it alive.
#[derive(Debug, Clone)]
pub struct Informant(std::sync::Weak<State>);

#[derive(Debug)]
struct State {
    lease: watch::Sender<Lease>,
    /// The place in this process's queue; given up when the lease ends, so that a holder that
    /// hangs does not keep its neighbours waiting.
    turn: std::sync::Mutex<Option<Turn>>,
}

/// A holder whose lease is not renewed.
#[derive(Debug)]
enum Never {}

// === impl Tenure ===

impl Tenure {
    /// Renews the lease at a third of it until the tenure is dropped or the longest hold is over.
    /// Must be called within a tokio runtime.
    pub fn renewed(lease: Lease, turn: Turn, renew: impl Renew) -> Self {
        Self::start(lease, turn, Some(renew))
    }

    /// Lets the lease run out. Must be called within a tokio runtime.
    pub fn unattended(lease: Lease, turn: Turn) -> Self {
        Self::start(lease, turn, None::<Never>)
    }

    fn start(lease: Lease, turn: Turn, renew: Option<impl Renew>) -> Self {
        let state = Arc::new(State {
            lease: watch::Sender::new(lease),
            turn: std::sync::Mutex::new(Some(turn)),
        });
        // Belongs to the tenure: it is aborted when that is dropped.
        let task = tokio::spawn(attend(state.clone(), renew)).abort_handle();
        Self { state, task }
    }

    pub fn valid_until(&self) -> Instant {
        self.state.lease.borrow().valid_until()
    }

    pub fn is_held(&self) -> bool {
        self.state.lease.borrow().is_held(clock::now())
    }

    /// Resolves once the lease is lost; never after it was given back.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    pub async fn lost(&self) {
        self.state.lost().await;
    }

    pub fn informant(&self) -> Informant {
        Informant(Arc::downgrade(&self.state))
    }

    /// Ends the renewals before the lock is given back, so that none crosses the release.
    /// What is returned is the place in the queue: dropped after the release, the next waiter of
    /// this process finds the lock free.
    pub fn end(&mut self) -> Option<Turn> {
        self.task.abort();
        self.state.apply(Event::Released);
        self.state.take_turn()
    }
}

impl Drop for Tenure {
    fn drop(&mut self) {
        self.task.abort();
    }
}

// === impl Informant ===

impl Informant {
    /// Tells what happened; nothing happens when the tenure is over.
    pub fn tell(&self, event: Event) {
        if let Some(state) = self.0.upgrade() {
            state.apply(event);
            if !state.lease.borrow().is_held(clock::now()) {
                drop(state.take_turn());
            }
        }
    }
}

// === impl State ===

impl State {
    fn apply(&self, event: Event) {
        let now = clock::now();
        // A late event of a lease that was given back changes nothing.
        self.lease.send_modify(|lease| {
            if let Ok(next) = lease.next(event, now) {
                *lease = next;
            }
        });
    }

    async fn lost(&self) {
        let mut changes = self.lease.subscribe();
        loop {
            let lease = *changes.borrow_and_update();
            match lease.phase_at(clock::now()) {
                Phase::Lost(_) => return,
                Phase::Released => std::future::pending().await,
                Phase::Held => {
                    tokio::select! {
                        () = tokio::time::sleep_until(lease.valid_until()) => {}
                        changed = changes.changed() => changed.expect("self owns the sender"),
                    }
                }
            }
        }
    }

    fn take_turn(&self) -> Option<Turn> {
        self.turn
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .take()
    }
}

impl Renew for Never {
    async fn renew(&mut self) -> Renewal {
        match *self {}
    }
}

/// Renews until the lease is lost or the task is aborted, then lets the next in the queue try.
async fn attend(state: Arc<State>, renew: Option<impl Renew>) {
    let renewals = async {
        if let Some(renew) = renew {
            keep_renewing(&state, renew).await;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = state.lost() => {}
        () = renewals => {}
    }
    drop(state.take_turn());
}

async fn keep_renewing(state: &State, mut renew: impl Renew) {
    loop {
        let lease = *state.lease.borrow();
        let Some(due) = lease.renew_at() else { return };
        tokio::time::sleep_until(due).await;
        let asked_at = clock::now();
        let deadline = state.lease.borrow().valid_until();
        let event = match tokio::time::timeout_at(deadline, renew.renew()).await {
            Ok(Renewal::Renewed) => Event::Renewed { asked_at },
            Ok(Renewal::Gone) => Event::Gone,
            Ok(Renewal::Failed) | Err(_) => Event::RenewalFailed,
        };
        state.apply(event);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::lock::lease::Timing;
    use crate::lock::wait::Queue;

    const TIMING: Timing = Timing {
        ttl: Duration::from_millis(150),
        hold_max: Duration::from_millis(900),
    };

    /// Answers as scripted, then with the last answer for ever.
    struct Scripted {
        answers: Vec<Renewal>,
        asked: Arc<AtomicU32>,
    }

    impl Renew for Scripted {
        async fn renew(&mut self) -> Renewal {
            self.asked.fetch_add(1, Ordering::SeqCst);
            if self.answers.len() > 1 {
                self.answers.remove(0)
            } else {
                self.answers[0]
            }
        }
    }

    async fn tenure(answers: &[Renewal]) -> (Tenure, Arc<AtomicU32>) {
        let turn = Queue::default()
            .turn("k", clock::now() + Duration::from_secs(1))
            .await
            .expect("nobody else waits");
        let asked = Arc::new(AtomicU32::new(0));
        let renew = Scripted {
            answers: answers.to_vec(),
            asked: asked.clone(),
        };
        let lease = Lease::granted(clock::now(), TIMING);
        (Tenure::renewed(lease, turn, renew), asked)
    }

    #[tokio::test]
    async fn a_renewed_lease_outlives_its_ttl_but_not_the_longest_hold() {
        let begun = clock::now();
        let (tenure, asked) = tenure(&[Renewal::Renewed]).await;
        tokio::time::sleep(TIMING.ttl * 3).await;
        assert!(tenure.is_held());
        tenure.lost().await;
        let held = clock::now() - begun;
        assert!(held >= TIMING.hold_max && held < TIMING.hold_max + TIMING.ttl);
        assert!(asked.load(Ordering::SeqCst) >= 3);
    }

    #[tokio::test]
    async fn one_failed_renewal_is_tried_again_in_time() {
        let (tenure, _asked) = tenure(&[Renewal::Failed, Renewal::Renewed]).await;
        tokio::time::sleep(TIMING.ttl + TIMING.ttl / 3).await;
        assert!(tenure.is_held());
    }

    #[tokio::test]
    async fn renewals_that_keep_failing_end_at_the_deadline() {
        let begun = clock::now();
        let (tenure, asked) = tenure(&[Renewal::Failed]).await;
        tenure.lost().await;
        assert!(clock::now() - begun <= TIMING.ttl * 2);
        assert!(asked.load(Ordering::SeqCst) <= 9);
    }

    #[tokio::test]
    async fn a_lock_that_is_gone_is_lost_at_once_and_asked_for_no_more() {
        let begun = clock::now();
        let (tenure, asked) = tenure(&[Renewal::Gone]).await;
        tenure.lost().await;
        assert!(clock::now() - begun < TIMING.ttl);
        tokio::time::sleep(TIMING.ttl * 4).await;
        assert_eq!(asked.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn the_watchdog_dies_with_its_guard() {
        let (tenure, asked) = tenure(&[Renewal::Renewed]).await;
        tokio::time::sleep(TIMING.ttl).await;
        drop(tenure);
        let before = asked.load(Ordering::SeqCst);
        tokio::time::sleep(TIMING.ttl * 4).await;
        assert_eq!(asked.load(Ordering::SeqCst), before);
    }

    #[tokio::test]
    async fn a_lost_lease_lets_the_next_waiter_try() {
        let queue = Queue::default();
        let soon = clock::now() + Duration::from_secs(1);
        let turn = queue.turn("k", soon).await.expect("nobody else waits");
        let held = Tenure::unattended(Lease::granted(clock::now(), TIMING), turn);
        queue.turn("k", soon).await.expect("the lease ended");
        assert!(!held.is_held());
    }
}
