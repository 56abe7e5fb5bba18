//! What this process remembers of a sold-out SKU, so that the crowd does not ask the stores again.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::{self, Instant};
use crate::deduct::Ending;
use crate::sale::{ActivityId, Line, Sku};

/// How long a memory lasts: a restock by another process is seen after this at the latest.
const REMEMBER: Duration = Duration::from_millis(200);
/// Most memories kept; past that the expired ones go.
const MEMORIES_MAX: usize = 10_000;

/// Sold-out SKUs, each for at most 200 ms. A restock in this process drops it at once.
#[derive(Debug, Default)]
pub(super) struct SoldOutMemory {
    told: Mutex<Told>,
}

#[derive(Debug, Default)]
struct Told {
    left: HashMap<(ActivityId, Sku), Memory>,
    restocks: Restocks,
}

/// How often units came back, in any activity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Restocks(u64);

/// What was left, and when that was told.
#[derive(Debug, Clone, Copy)]
struct Memory {
    left: i64,
    at: Instant,
}

impl SoldOutMemory {
    /// The answer the store would give now, if it was asked within the last 200 ms and before
    /// `begun`: when this purchase began to be looked up. What was told after that may be told
    /// because of this very purchase, sent twice.
    pub(super) fn recall(
        &self,
        activity: &ActivityId,
        lines: &[Line],
        begun: Instant,
    ) -> Option<Ending> {
        let now = clock::now();
        self.find(activity, lines, |memory| {
            memory.at <= begun && memory.is_fresh(now)
        })
    }

    /// Whether the store's last word to this process was that one of these lines is sold out,
    /// however long ago; nobody has come back with units or got any since, as far as this process
    /// knows.
    pub(super) fn was_told(&self, activity: &ActivityId, lines: &[Line]) -> bool {
        self.find(activity, lines, |_| true).is_some()
    }

    /// To be read before the store is asked.
    pub(super) fn restocks(&self) -> Restocks {
        self.lock().restocks
    }

    /// What a purchase of these lines came to; `asked` is from before the store was asked.
    pub(super) fn hear(
        &self,
        activity: &ActivityId,
        lines: &[Line],
        ending: &Ending,
        asked: Restocks,
    ) {
        match ending {
            Ending::SoldOut { sku, left } => self.remember(activity, sku, *left, asked),
            Ending::Booked { .. } | Ending::Accepted(_) => self.sold(activity, lines),
            // What was held for it may have been given back.
            Ending::AlreadyPurchased(_) | Ending::Abandoned => self.forget(activity),
            Ending::Replayed(_)
            | Ending::KeyReused
            | Ending::NotOpen { .. }
            | Ending::Ended { .. }
            | Ending::UnknownSku(_)
            | Ending::Busy(_)
            | Ending::Paused
            | Ending::Recovering => {}
        }
    }

    /// The store has told this. What was told before units came back is not true any more.
    fn remember(&self, activity: &ActivityId, sku: &Sku, left: i64, asked: Restocks) {
        let mut told = self.lock();
        if told.restocks != asked {
            return;
        }
        let at = clock::now();
        if told.left.len() >= MEMORIES_MAX {
            told.left.retain(|_, memory| memory.is_fresh(at));
        }
        told.left
            .insert((activity.clone(), sku.clone()), Memory { left, at });
    }

    /// These lines were sold, so there was enough of each.
    fn sold(&self, activity: &ActivityId, lines: &[Line]) {
        let mut told = self.lock();
        for line in lines {
            told.left.remove(&(activity.clone(), line.sku.clone()));
        }
    }

    /// Units came back.
    pub(super) fn forget(&self, activity: &ActivityId) {
        let mut told = self.lock();
        told.restocks.0 += 1;
        told.left.retain(|(of, _), _| of != activity);
    }

    fn find(
        &self,
        activity: &ActivityId,
        lines: &[Line],
        counts: impl Fn(&Memory) -> bool,
    ) -> Option<Ending> {
        let told = self.lock();
        lines.iter().find_map(|line| {
            let memory = told.left.get(&(activity.clone(), line.sku.clone()))?;
            (counts(memory) && memory.left < line.quantity).then(|| Ending::SoldOut {
                sku: line.sku.clone(),
                left: memory.left,
            })
        })
    }

    fn lock(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Memory {
    fn is_fresh(self, now: Instant) -> bool {
        now < self.at + REMEMBER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(quantities: &[(&str, i64)]) -> Vec<Line> {
        let lines = quantities.iter();
        lines
            .map(|(sku, quantity)| Line {
                sku: sku.parse().expect("a SKU"),
                quantity: *quantity,
            })
            .collect()
    }

    #[test]
    fn only_what_was_told_before_a_purchase_began_is_recalled_for_it() {
        let (memory, id) = (SoldOutMemory::default(), ActivityId::generate());
        let two = lines(&[("phone", 2)]);
        let before = clock::now();
        memory.remember(&id, &two[0].sku, 1, memory.restocks());
        assert_eq!(memory.recall(&id, &two, before), None);
        let sold_out = Ending::SoldOut {
            sku: two[0].sku.clone(),
            left: 1,
        };
        let now = clock::now();
        assert_eq!(memory.recall(&id, &two, now), Some(sold_out.clone()));
        let cart = lines(&[("case", 9), ("phone", 2)]);
        assert_eq!(memory.recall(&id, &cart, now), Some(sold_out));
        assert_eq!(memory.recall(&id, &lines(&[("phone", 1)]), now), None);
        assert_eq!(memory.recall(&id, &lines(&[("case", 9)]), now), None);
        let other = ActivityId::generate();
        assert_eq!(memory.recall(&other, &two, now), None);
    }

    #[test]
    fn what_was_told_before_units_came_back_is_not_remembered_after() {
        let (memory, id) = (SoldOutMemory::default(), ActivityId::generate());
        let one = lines(&[("phone", 1)]);
        // Asked, then a restock, then the answer arrives: it is from before the restock.
        let asked = memory.restocks();
        memory.forget(&id);
        memory.remember(&id, &one[0].sku, 0, asked);
        assert_eq!(memory.recall(&id, &one, clock::now()), None);
        assert!(!memory.was_told(&id, &one));
        memory.remember(&id, &one[0].sku, 0, memory.restocks());
        assert!(memory.recall(&id, &one, clock::now()).is_some());
        memory.forget(&id);
        assert_eq!(memory.recall(&id, &one, clock::now()), None);
    }

    #[test]
    fn a_memory_answers_for_200_ms_and_is_the_last_word_until_a_sale_or_a_restock() {
        let at = clock::now();
        let told = Memory { left: 0, at };
        assert!(told.is_fresh(at + REMEMBER - Duration::from_millis(1)));
        assert!(!told.is_fresh(at + REMEMBER));

        let (memory, id) = (SoldOutMemory::default(), ActivityId::generate());
        let one = lines(&[("phone", 1)]);
        memory.remember(&id, &one[0].sku, 0, memory.restocks());
        assert!(memory.was_told(&id, &one));
        memory.sold(&id, &one);
        assert!(!memory.was_told(&id, &one));
        memory.remember(&id, &one[0].sku, 0, memory.restocks());
        memory.forget(&id);
        assert!(!memory.was_told(&id, &one));
    }
}
