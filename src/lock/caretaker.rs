//! Which leases need care, and when? One timer for all leases of a lock: most are given back before
//! they are due, so a lease costs an entry in a list, and a task only once it is due.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::clock::{self, Instant};

/// Wakes those that are due. Clones share the list.
///
/// Its task runs on the runtime of whoever adds to an empty list, and ends when the list is empty.
#[derive(Debug, Clone, Default)]
pub struct Caretaker(Arc<Shared>);

/// An entry of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket {
    due: Instant,
    number: u64,
}

/// What is woken when its time has come.
pub trait Due: Send + Sync {
    /// Called once, within a runtime; must not block.
    fn due(self: Arc<Self>);
}

#[derive(Default)]
struct Shared {
    list: Mutex<List>,
    earlier: Notify,
}

#[derive(Default)]
struct List {
    entries: BTreeMap<Ticket, Arc<dyn Due>>,
    number: u64,
    /// When the task wakes next; `None` while there is no task.
    wakes_at: Option<Instant>,
}

/// Notes the end of the task when its runtime ends it.
struct Watching {
    caretaker: Caretaker,
    is_over: bool,
}

// === impl Caretaker ===

impl Caretaker {
    /// Must be called within a tokio runtime.
    pub fn add(&self, due: Instant, what: Arc<dyn Due>) -> Ticket {
        let mut list = self.list();
        list.number += 1;
        let number = list.number;
        let ticket = Ticket { due, number };
        list.entries.insert(ticket, what);
        match list.wakes_at {
            Some(at) if at <= due => {}
            Some(_later) => {
                list.wakes_at = Some(due);
                self.0.earlier.notify_one();
            }
            None => {
                list.wakes_at = Some(due);
                // Ends by itself when nothing is left to wait for.
                tokio::spawn(watch(Watching {
                    caretaker: self.clone(),
                    is_over: false,
                }));
            }
        }
        ticket
    }

    /// Nothing happens when its time has come already.
    pub fn remove(&self, ticket: Ticket) {
        let removed = self.list().entries.remove(&ticket);
        // Dropped outside of the lock: it may hold others of the list.
        drop(removed);
    }

    fn list(&self) -> MutexGuard<'_, List> {
        self.0.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes those that are due, and says when to come again.
    fn take_due(&self) -> (Vec<Arc<dyn Due>>, Option<Instant>) {
        let now = clock::now();
        let mut list = self.list();
        let mut due = Vec::new();
        while let Some(first) = list.entries.first_entry() {
            if first.key().due > now {
                break;
            }
            due.push(first.remove());
        }
        list.wakes_at = list.entries.keys().next().map(|ticket| ticket.due);
        (due, list.wakes_at)
    }
}

async fn watch(mut watching: Watching) {
    loop {
        let (due, next) = watching.caretaker.take_due();
        for one in due {
            one.due();
        }
        // The list was empty under its lock: whoever adds to it starts a task of its own.
        watching.is_over = next.is_none();
        let Some(next) = next else { return };
        tokio::select! {
            () = tokio::time::sleep_until(next) => {}
            () = watching.caretaker.0.earlier.notified() => {}
        }
    }
}

// === impl Watching ===

impl Drop for Watching {
    fn drop(&mut self) {
        if !self.is_over {
            self.caretaker.list().wakes_at = None;
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::mpsc;

    use super::*;

    struct Bell(&'static str, mpsc::UnboundedSender<&'static str>);

    impl Due for Bell {
        fn due(self: Arc<Self>) {
            self.1.send(self.0).expect("the test listens");
        }
    }

    fn soon(ms: u64) -> Instant {
        clock::now() + Duration::from_millis(ms)
    }

    #[tokio::test]
    async fn the_earliest_is_woken_first_and_the_removed_never() {
        let (said, mut heard) = mpsc::unbounded_channel();
        let caretaker = Caretaker::default();
        let bell = |name| Arc::new(Bell(name, said.clone()));
        caretaker.add(soon(60), bell("late"));
        let removed = caretaker.add(soon(30), bell("removed"));
        caretaker.add(soon(10), bell("early"));
        caretaker.remove(removed);
        assert_eq!(heard.recv().await, Some("early"));
        assert_eq!(heard.recv().await, Some("late"));
        assert!(heard.try_recv().is_err());
    }

    #[tokio::test]
    async fn an_empty_list_has_no_task_and_a_new_entry_starts_one() {
        let (said, mut heard) = mpsc::unbounded_channel();
        let caretaker = Caretaker::default();
        for name in ["first", "second"] {
            caretaker.add(soon(5), Arc::new(Bell(name, said.clone())));
            assert_eq!(heard.recv().await, Some(name));
            while caretaker.list().wakes_at.is_some() {
                tokio::task::yield_now().await;
            }
        }
    }
}
