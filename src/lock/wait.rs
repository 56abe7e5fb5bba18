//! Who is next: a first-come queue per key inside one process, so that a process sends one
//! contender per key to the server however many of its buyers wait.
//!
//! A turn may be passed on together with what its holder has got for the next in line (`G`), such
//! as a lock that the server has granted to it already.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::clock::Instant;

/// Most waiters of one key in one process: at a millisecond per critical section the last of them
/// would wait for four seconds, longer than any buyer's wait.
pub const WAITING_MAX: usize = 4096;

/// A first-come queue per key. Clones share it.
#[derive(Debug)]
pub struct Queue<G>(Arc<Mutex<HashMap<String, VecDeque<Waiter<G>>>>>);

/// The only contender of its key in this process, until it is dropped.
#[derive(Debug)]
pub struct Turn<G> {
    queue: Queue<G>,
    /// Taken when the turn is passed on.
    key: Option<String>,
    handed: Option<Box<G>>,
    rest_until: Option<Instant>,
}

/// The first in line, taken out of it by the present turn, which owes it the next.
#[derive(Debug)]
pub struct Heir<G> {
    waiter: Option<Waiter<G>>,
    turn: Option<Turn<G>>,
}

/// Why there was no turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoTurn {
    #[error("the wait is over")]
    TimedOut,
    #[error("{WAITING_MAX} others wait already")]
    Full,
}

#[derive(Debug)]
struct Waiter<G> {
    ttl: Duration,
    /// A turn that is not received any more is dropped with the channel, and so passes on.
    turn: oneshot::Sender<Turn<G>>,
}

// === impl Queue ===

impl<G> Queue<G> {
    /// Waits until `key` has no other contender in this process. `ttl` is the lease it wants. A
    /// deadline that is over still gets a turn that is free.
    ///
    /// # Errors
    /// [`NoTurn::TimedOut`] at the deadline, [`NoTurn::Full`] at once.
    ///
    /// # Cancel safety
    /// A dropped wait leaves the queue; those behind move up.
    pub async fn turn(
        &self,
        key: &str,
        ttl: Duration,
        deadline: Instant,
    ) -> Result<Turn<G>, NoTurn> {
        let Some(come) = self.join(key, ttl)? else {
            return Ok(Turn {
                queue: self.clone(),
                key: Some(key.to_string()),
                handed: None,
                rest_until: None,
            });
        };
        match tokio::time::timeout_at(deadline, come).await {
            Ok(turn) => Ok(turn.expect("a waiter stays in line until it gets its turn")),
            Err(_elapsed) => Err(NoTurn::TimedOut),
        }
    }

    /// How many keys have a contender in this process.
    pub fn lines(&self) -> usize {
        self.lock().len()
    }

    /// A place in the line; `None` when there is no line, so that the turn is the caller's now.
    fn join(&self, key: &str, ttl: Duration) -> Result<Option<oneshot::Receiver<Turn<G>>>, NoTurn> {
        let mut lines = self.lock();
        let Some(line) = lines.get_mut(key) else {
            lines.insert(key.to_string(), VecDeque::new());
            return Ok(None);
        };
        if line.len() >= WAITING_MAX {
            line.retain(|waiter| !waiter.turn.is_closed());
        }
        if line.len() >= WAITING_MAX {
            return Err(NoTurn::Full);
        }
        let (turn, come) = oneshot::channel();
        line.push_back(Waiter { ttl, turn });
        Ok(Some(come))
    }

    /// Takes the first who still waits out of the line; without any, the line ends.
    fn next(&self, key: &str) -> Option<Waiter<G>> {
        let mut lines = self.lock();
        let next = Self::first(lines.get_mut(key)?);
        if next.is_none() {
            lines.remove(key);
        }
        next
    }

    fn first(line: &mut VecDeque<Waiter<G>>) -> Option<Waiter<G>> {
        loop {
            let waiter = line.pop_front()?;
            if !waiter.turn.is_closed() {
                return Some(waiter);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, VecDeque<Waiter<G>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<G> Clone for Queue<G> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<G> Default for Queue<G> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

// === impl Turn ===

impl<G> Turn<G> {
    /// What the one before has got for this one.
    pub fn take_handed(&mut self) -> Option<G> {
        self.handed.take().map(|got| *got)
    }

    /// Until when this process should let others go first.
    pub fn rest_until(&self) -> Option<Instant> {
        self.rest_until
    }

    /// Lets other processes go first: who gets the turn next should not contend before `until`.
    pub fn rest(&mut self, until: Instant) {
        self.rest_until = Some(until);
    }

    /// Goes to the first in line, if anybody waits.
    ///
    /// # Errors
    /// Nobody waits: the turn as it was.
    pub fn to_heir(mut self) -> Result<Heir<G>, Self> {
        let waiter = self.key.as_ref().and_then(|key| {
            let mut lines = self.queue.lock();
            Queue::first(lines.get_mut(key)?)
        });
        if waiter.is_none() {
            return Err(self);
        }
        self.rest_until = None;
        Ok(Heir {
            waiter,
            turn: Some(self),
        })
    }

    fn pass_on(mut self, first: Option<Waiter<G>>) {
        let Some(key) = self.key.take() else { return };
        let mut rest_until = self.rest_until;
        let mut handed = self.handed.take();
        let mut waiter = first;
        loop {
            let Some(to) = waiter.take().or_else(|| self.queue.next(&key)) else {
                return;
            };
            let turn = Self {
                queue: self.queue.clone(),
                key: Some(key.clone()),
                handed: handed.take(),
                rest_until: rest_until.take(),
            };
            let Err(mut back) = to.turn.send(turn) else {
                return;
            };
            // It left meanwhile. What was got for it is dropped; the next contends for itself.
            back.key = None;
            drop(back.handed.take());
            rest_until = back.rest_until;
        }
    }
}

impl<G> Drop for Turn<G> {
    fn drop(&mut self) {
        let Some(key) = self.key.take() else { return };
        let turn = Self {
            queue: self.queue.clone(),
            key: Some(key),
            handed: None,
            rest_until: self.rest_until,
        };
        turn.pass_on(None);
    }
}

// === impl Heir ===

impl<G> Heir<G> {
    /// The lease it wants.
    pub fn ttl(&self) -> Duration {
        self.waiter.as_ref().map_or(Duration::ZERO, |w| w.ttl)
    }

    /// Gives it the turn together with `got`. An heir that is dropped instead gets the turn alone.
    pub fn give(mut self, got: G) {
        if let Some(turn) = &mut self.turn {
            turn.handed = Some(Box::new(got));
        }
    }
}

impl<G> Drop for Heir<G> {
    fn drop(&mut self) {
        if let Some(turn) = self.turn.take() {
            turn.pass_on(self.waiter.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::clock;

    const TTL: Duration = Duration::from_secs(1);

    fn soon() -> Instant {
        clock::now() + Duration::from_secs(1)
    }

    #[tokio::test]
    async fn turns_are_given_in_the_order_of_asking() {
        let queue = Queue::<u32>::default();
        let first = queue.turn("k", TTL, soon()).await.unwrap();
        let (said, mut heard) = tokio::sync::mpsc::channel(10);
        for n in 0..10 {
            let (queue, said) = (queue.clone(), said.clone());
            let mut waiting = Box::pin(async move {
                let _turn = queue.turn("k", TTL, soon()).await.unwrap();
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
        let queue = Queue::<u32>::default();
        let first = queue.turn("k", TTL, soon()).await.unwrap();
        let at_once = clock::now() + Duration::from_millis(20);
        assert_eq!(
            queue.turn("k", TTL, at_once).await.err(),
            Some(NoTurn::TimedOut)
        );
        assert!(queue.turn("other", TTL, soon()).await.is_ok());
        drop(first);
        assert_eq!(queue.lines(), 0);
    }

    #[tokio::test]
    async fn a_dropped_wait_lets_those_behind_move_up() {
        let queue = Queue::<u32>::default();
        let first = queue.turn("k", TTL, soon()).await.unwrap();
        let mut dropped = Box::pin(queue.turn("k", TTL, soon()));
        assert!((&mut dropped).now_or_never().is_none());
        let mut behind = Box::pin(queue.turn("k", TTL, soon()));
        assert!((&mut behind).now_or_never().is_none());
        drop(dropped);
        drop(first);
        assert!(behind.await.is_ok());
        assert_eq!(queue.lines(), 0);
    }

    #[tokio::test]
    async fn a_full_queue_says_so_at_once() {
        let queue = Queue::<u32>::default();
        let _first = queue.turn("k", TTL, soon()).await.unwrap();
        let mut waiting = Vec::new();
        for _ in 0..WAITING_MAX {
            let mut one = Box::pin(queue.turn("k", TTL, soon()));
            assert!((&mut one).now_or_never().is_none());
            waiting.push(one);
        }
        let mut one_more = Box::pin(queue.turn("k", TTL, soon()));
        assert!(matches!(
            (&mut one_more).now_or_never(),
            Some(Err(NoTurn::Full))
        ));
    }

    #[tokio::test]
    async fn what_is_got_for_the_heir_reaches_it_and_nobody_else() {
        let queue = Queue::<u32>::default();
        let first = queue.turn("k", TTL, soon()).await.unwrap();
        let mut gone = Box::pin(queue.turn("k", TTL, soon()));
        assert!((&mut gone).now_or_never().is_none());
        let mut heir = Box::pin(queue.turn("k", TTL * 2, soon()));
        assert!((&mut heir).now_or_never().is_none());
        let mut behind = Box::pin(queue.turn("k", TTL, soon()));
        assert!((&mut behind).now_or_never().is_none());
        drop(gone);
        let next = first.to_heir().expect("two wait");
        assert_eq!(next.ttl(), TTL * 2);
        next.give(7);
        let mut turn = heir.await.unwrap();
        assert_eq!(turn.take_handed(), Some(7));
        drop(turn);
        let mut turn = behind.await.unwrap();
        assert_eq!(turn.take_handed(), None);
        let turn = turn.to_heir().expect_err("nobody waits");
        drop(turn);
        assert_eq!(queue.lines(), 0);
    }

    #[tokio::test]
    async fn an_heir_that_left_lets_the_next_have_the_turn_alone() {
        let queue = Queue::<u32>::default();
        let first = queue.turn("k", TTL, soon()).await.unwrap();
        let mut heir = Box::pin(queue.turn("k", TTL, soon()));
        assert!((&mut heir).now_or_never().is_none());
        let mut behind = Box::pin(queue.turn("k", TTL, soon()));
        assert!((&mut behind).now_or_never().is_none());
        let next = first.to_heir().expect("two wait");
        drop(heir);
        next.give(7);
        let mut turn = behind.await.unwrap();
        assert_eq!(turn.take_handed(), None);
        drop(turn);
        assert_eq!(queue.lines(), 0);
    }
}
