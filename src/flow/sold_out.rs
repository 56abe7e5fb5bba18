//! What this process remembers of a sold-out SKU, so that the crowd does not ask the stores again.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::clock::{self, Instant};
use crate::deduct::Ending;
use crate::order::NewOrder;
use crate::sale::{ActivityId, Sku};

/// How long a memory lasts: a restock by another process is seen after this at the latest.
const REMEMBER: Duration = Duration::from_millis(200);
/// Most memories kept; past that the expired ones go.
const MEMORIES_MAX: usize = 10_000;

/// Sold-out SKUs, each for at most 200 ms. A restock in this process drops it at once.
#[derive(Debug, Default)]
pub(super) struct SoldOutMemory {
    left: Mutex<HashMap<(ActivityId, Sku), Memory>>,
}

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
        order: &NewOrder,
        begun: Instant,
    ) -> Option<Ending> {
        let memories = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let now = clock::now();
        order.lines.iter().find_map(|line| {
            let memory = memories.get(&(activity.clone(), line.sku.clone()))?;
            let counts = memory.at <= begun && memory.is_fresh(now);
            (counts && memory.left < line.quantity).then(|| Ending::SoldOut {
                sku: line.sku.clone(),
                left: memory.left,
            })
        })
    }

    pub(super) fn remember(&self, activity: &ActivityId, sku: &Sku, left: i64) {
        let mut memories = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let at = clock::now();
        if memories.len() >= MEMORIES_MAX {
            memories.retain(|_, memory| memory.is_fresh(at));
        }
        memories.insert((activity.clone(), sku.clone()), Memory { left, at });
    }

    /// Units came back.
    pub(super) fn forget(&self, activity: &ActivityId) {
        let mut memories = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        memories.retain(|(of, _), _| of != activity);
    }
}

impl Memory {
    fn is_fresh(self, now: Instant) -> bool {
        now < self.at + REMEMBER
    }
}
