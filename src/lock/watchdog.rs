//! Who looks after a lease while its holder works: it renews, it tells the loss, it dies with the
//! guard.
//!
//! A guard owns a [`Tenure`]. Nothing runs for it until its first renewal is due, a third of the
//! lease after the grant: most holders are done by then. What runs from then on belongs to the
//! tenure: dropping it ends the task, so nothing is renewed for a holder that is gone.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::clock::{self, Instant};
use crate::lock::caretaker::{Caretaker, Due, Ticket};
use crate::lock::lease::{Event, Lease, Phase};

/// Longest time one holder may keep a lock by renewing it: a critical section takes milliseconds,
/// so a holder of a minute hangs, and the sale must not hang with it.
pub const HOLD_MAX: Duration = Duration::from_secs(60);

/// What looks after one grant; it asks the server.
pub trait Attend: Send + Sync + 'static {
    /// Renews once, checked by owner; must never create what is gone. It is dropped at the lease's
    /// deadline.
    fn renew(&self) -> impl Future<Output = Renewal> + Send;

    /// Tells what is heard about the grant besides renewals, such as by a watch. Runs beside them
    /// and is dropped with the tenure.
    fn watch(&self, told: &(dyn Fn(Event) + Send + Sync)) -> impl Future<Output = ()> + Send {
        let _ = told;
        std::future::pending()
    }
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

/// A lease, and what looks after it.
#[derive(Debug)]
pub struct Tenure<A: Attend, T: Send + 'static> {
    held: Arc<Held<A, T>>,
    caretaker: Caretaker,
}

/// How a lease is looked after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Care {
    /// It is renewed at a third of it, until the tenure is dropped or the longest hold is over.
    Renewed,
    /// As `Renewed`, and watched from then on besides.
    Watched { after: Duration },
    /// It runs out.
    None,
}

#[derive(Debug)]
struct Held<A, T> {
    attendant: A,
    care: Care,
    lease: Mutex<Lease>,
    changed: Notify,
    /// The place in this process's queue; given up when the lease ends, so that a holder that
    /// hangs does not keep its neighbours waiting.
    turn: Mutex<Option<T>>,
    stage: Mutex<Stage>,
}

/// Who has it in hand.
#[derive(Debug)]
enum Stage {
    /// The caretaker's list.
    Listed(Ticket),
    /// A task of its own.
    Attended(AbortHandle),
    Over,
}

// === impl Tenure ===

impl<A: Attend, T: Send + 'static> Tenure<A, T> {
    /// Must be called within a tokio runtime.
    pub fn new(caretaker: &Caretaker, lease: Lease, care: Care, turn: T, attendant: A) -> Self {
        let due = match care {
            Care::Renewed => first_renewal(&lease),
            Care::Watched { after } => first_renewal(&lease).min(clock::now() + after),
            Care::None => lease.valid_until(),
        };
        let held = Arc::new(Held {
            attendant,
            care,
            lease: Mutex::new(lease),
            changed: Notify::new(),
            turn: Mutex::new(Some(turn)),
            stage: Mutex::new(Stage::Over),
        });
        // Locked meanwhile, so that it cannot be due before it is known to be listed.
        let mut stage = lock(&held.stage);
        *stage = Stage::Listed(caretaker.add(due, held.clone()));
        drop(stage);
        let caretaker = caretaker.clone();
        Self { held, caretaker }
    }

    pub fn attendant(&self) -> &A {
        &self.held.attendant
    }

    pub fn valid_until(&self) -> Instant {
        lock(&self.held.lease).valid_until()
    }

    pub fn is_held(&self) -> bool {
        let lease = lock(&self.held.lease);
        lease.is_held(clock::now())
    }

    /// Resolves once the lease is lost; never after it was given back.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    pub async fn lost(&self) {
        self.held.lost().await;
    }

    /// Ends the renewals before the lock is given back, so that none crosses the release.
    /// What is returned is the place in the queue: dropped after the release, the next waiter of
    /// this process finds the lock free.
    pub fn end(&self) -> Option<T> {
        match std::mem::replace(&mut *lock(&self.held.stage), Stage::Over) {
            Stage::Listed(ticket) => self.caretaker.remove(ticket),
            Stage::Attended(task) => task.abort(),
            Stage::Over => return None,
        }
        self.held.apply(Event::Released);
        self.held.take_turn()
    }
}

impl<A: Attend, T: Send + 'static> Drop for Tenure<A, T> {
    fn drop(&mut self) {
        drop(self.end());
    }
}

// === impl Held ===

impl<A: Attend, T: Send + 'static> Held<A, T> {
    fn apply(&self, event: Event) {
        let mut lease = lock(&self.lease);
        // Read while it is locked: a loss that was told by then must stand. A late event of a
        // lease that was given back changes nothing.
        if let Ok(next) = lease.next(event, clock::now()) {
            *lease = next;
        }
        drop(lease);
        self.changed.notify_waiters();
    }

    async fn lost(&self) {
        loop {
            let changed = self.changed.notified();
            let (phase, valid_until) = {
                let lease = lock(&self.lease);
                (lease.phase_at(clock::now()), lease.valid_until())
            };
            match phase {
                Phase::Lost(_) => return,
                Phase::Released => std::future::pending().await,
                Phase::Held => {
                    tokio::select! {
                        () = tokio::time::sleep_until(valid_until) => {}
                        () = changed => {}
                    }
                }
            }
        }
    }

    fn take_turn(&self) -> Option<T> {
        lock(&self.turn).take()
    }

    /// Looks after the lease until it is lost or the task is aborted, then lets the next in the
    /// queue try.
    async fn attend(&self) {
        let told = |event| self.apply(event);
        let renewals = async {
            if self.care != Care::None {
                self.keep_renewing().await;
            }
            std::future::pending::<()>().await;
        };
        let watch = async {
            if let Care::Watched { .. } = self.care {
                self.attendant.watch(&told).await;
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = self.lost() => {}
            () = renewals => {}
            () = watch => {}
        }
        drop(self.take_turn());
    }

    async fn keep_renewing(&self) {
        loop {
            let lease = *lock(&self.lease);
            let Some(due) = lease.renew_at() else { return };
            tokio::time::sleep_until(due).await;
            let asked_at = clock::now();
            let deadline = lock(&self.lease).valid_until();
            let event = match tokio::time::timeout_at(deadline, self.attendant.renew()).await {
                Ok(Renewal::Renewed) => Event::Renewed { asked_at },
                Ok(Renewal::Gone) => Event::Gone,
                Ok(Renewal::Failed) | Err(_) => Event::RenewalFailed,
            };
            self.apply(event);
        }
    }
}

impl<A: Attend, T: Send + 'static> Due for Held<A, T> {
    fn due(self: Arc<Self>) {
        let mut stage = lock(&self.stage);
        // Given back at this moment: nothing to look after.
        if let Stage::Listed(_) = *stage {
            let held = self.clone();
            // Belongs to the tenure: it is aborted when that ends.
            let task = tokio::spawn(async move { held.attend().await });
            *stage = Stage::Attended(task.abort_handle());
        }
    }
}

fn first_renewal(lease: &Lease) -> Instant {
    lease.renew_at().unwrap_or_else(|| lease.valid_until())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::lock::lease::Timing;
    use crate::lock::wait::{Queue, Turn};

    type Held = Tenure<Scripted, Turn<u32>>;

    const TIMING: Timing = Timing {
        ttl: Duration::from_millis(150),
        hold_max: Duration::from_millis(900),
    };

    /// Answers as scripted, then with the last answer for ever.
    struct Scripted {
        answers: Mutex<Vec<Renewal>>,
        asked: Arc<AtomicU32>,
    }

    impl Attend for Scripted {
        async fn renew(&self) -> Renewal {
            self.asked.fetch_add(1, Ordering::SeqCst);
            let mut answers = lock(&self.answers);
            if answers.len() > 1 {
                answers.remove(0)
            } else {
                answers[0]
            }
        }
    }

    async fn tenure(answers: &[Renewal]) -> (Held, Arc<AtomicU32>) {
        let turn = Queue::default()
            .turn("k", TIMING.ttl, clock::now() + Duration::from_secs(1))
            .await
            .expect("nobody else waits");
        let asked = Arc::new(AtomicU32::new(0));
        let renew = Scripted {
            answers: Mutex::new(answers.to_vec()),
            asked: asked.clone(),
        };
        let lease = Lease::granted(clock::now(), TIMING);
        let tenure = Tenure::new(&Caretaker::default(), lease, Care::Renewed, turn, renew);
        (tenure, asked)
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
        let queue = Queue::<u32>::default();
        let soon = clock::now() + Duration::from_secs(1);
        let turn = queue
            .turn("k", TIMING.ttl, soon)
            .await
            .expect("nobody else waits");
        let nobody = Scripted {
            answers: Mutex::default(),
            asked: Arc::default(),
        };
        let lease = Lease::granted(clock::now(), TIMING);
        let held = Tenure::new(&Caretaker::default(), lease, Care::None, turn, nobody);
        queue
            .turn("k", TIMING.ttl, soon)
            .await
            .expect("the lease ended");
        assert!(!held.is_held());
    }
}
