//! Who is next: a first-come queue per key inside one process, so that a process sends one
//! contender per key to the server however many of its buyers wait.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::clock::Instant;

/// Most waiters of one key in one process: at a millisecond per critical section the last of them
/// would wait for four seconds, longer than any buyer's wait.
pub const WAITING_MAX: usize = 4096;

/// A first-come queue per key. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Queue(Arc<Mutex<HashMap<String, Line>>>);

/// The waiters of one key, its present holder included.
#[derive(Debug)]
struct Line {
    /// One permit, given in the order of asking (tokio's semaphore is fair).
    permit: Arc<Semaphore>,
    present: usize,
}

/// The only contender of its key in this process, until it is dropped.
#[derive(Debug)]
pub struct Turn {
    /// Given back before the place: fields are dropped in this order.
    _permit: OwnedSemaphorePermit,
    _place: Place,
}

/// Why there was no turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoTurn {
    #[error("the wait is over")]
    TimedOut,
    #[error("{WAITING_MAX} others wait already")]
    Full,
}

/// One of those present in a line; the last to leave removes the line.
#[derive(Debug)]
struct Place {
    queue: Queue,
    key: String,
}

// === impl Queue ===

impl Queue {
    /// Waits until `key` has no other contender in this process. A deadline that is over still
    /// gets a turn that is free.
    ///
    /// # Errors
    /// [`NoTurn::TimedOut`] at the deadline, [`NoTurn::Full`] at once.
    ///
    /// # Cancel safety
    /// A dropped wait leaves the queue; those behind move up.
    pub async fn turn(&self, key: &str, deadline: Instant) -> Result<Turn, NoTurn> {
        let (place, permit) = self.join(key).ok_or(NoTurn::Full)?;
        match tokio::time::timeout_at(deadline, permit.acquire_owned()).await {
            Ok(permit) => Ok(Turn {
                _permit: permit.expect("no line is ever closed"),
                _place: place,
            }),
            Err(_elapsed) => Err(NoTurn::TimedOut),
        }
    }

    /// How many keys have a contender in this process.
    pub fn lines(&self) -> usize {
        self.lock().len()
    }

    fn join(&self, key: &str) -> Option<(Place, Arc<Semaphore>)> {
        let mut lines = self.lock();
        if !lines.contains_key(key) {
            let permit = Arc::new(Semaphore::new(1));
            lines.insert(key.to_string(), Line { permit, present: 0 });
        }
        let line = lines.get_mut(key)?;
        if line.present > WAITING_MAX {
            return None;
        }
        line.present += 1;
        let permit = line.permit.clone();
        let place = Place {
            queue: self.clone(),
            key: key.to_string(),
        };
        Some((place, permit))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Line>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Place ===

impl Drop for Place {
    fn drop(&mut self) {
        let mut lines = self.queue.lock();
        if let Some(line) = lines.get_mut(&self.key) {
            line.present -= 1;
            if line.present == 0 {
                lines.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt;

    use super::*;
    use crate::clock;

    fn soon() -> Instant {
        clock::now() + Duration::from_secs(1)
    }

    #[tokio::test]
    async fn turns_are_given_in_the_order_of_asking() {
        let queue = Queue::default();
        let first = queue.turn("k", soon()).await.unwrap();
        let (said, mut heard) = tokio::sync::mpsc::channel(10);
        for n in 0..10 {
            let (queue, said) = (queue.clone(), said.clone());
            let mut waiting = Box::pin(async move {
                let _turn = queue.turn("k", soon()).await.unwrap();
                said.send(n).await.unwrap();
            });
            assert!((&mut waiting).now_or_never().is_none());
            tokio::spawn(waiting);
        }
        drop(first);
        for n in 0..10 {
            assert_eq!(heard.recv().await, Some(n));
        }
    }

    #[tokio::test]
    async fn a_wait_ends_at_its_deadline_and_leaves_nothing() {
        let queue = Queue::default();
        let first = queue.turn("k", soon()).await.unwrap();
        let at_once = clock::now() + Duration::from_millis(20);
        assert_eq!(queue.turn("k", at_once).await.err(), Some(NoTurn::TimedOut));
        assert!(queue.turn("other", soon()).await.is_ok());
        drop(first);
        assert_eq!(queue.lines(), 0);
    }

    #[tokio::test]
    async fn a_dropped_wait_lets_those_behind_move_up() {
        let queue = Queue::default();
        let first = queue.turn("k", soon()).await.unwrap();
        let mut dropped = Box::pin(queue.turn("k", soon()));
        assert!((&mut dropped).now_or_never().is_none());
        let mut behind = Box::pin(queue.turn("k", soon()));
        assert!((&mut behind).now_or_never().is_none());
        drop(dropped);
        drop(first);
        assert!(behind.await.is_ok());
        assert_eq!(queue.lines(), 0);
    }

    #[tokio::test]
    async fn a_full_queue_says_so_at_once() {
        let queue = Queue::default();
        let _first = queue.turn("k", soon()).await.unwrap();
        let mut waiting = Vec::new();
        for _ in 0..WAITING_MAX {
            let mut one = Box::pin(queue.turn("k", soon()));
            assert!((&mut one).now_or_never().is_none());
            waiting.push(one);
        }
        let mut one_more = Box::pin(queue.turn("k", soon()));
        assert!(matches!(
            (&mut one_more).now_or_never(),
            Some(Err(NoTurn::Full))
        ));
    }
}
