//! What the gate's reservations add up to, against what its counters say.

use std::collections::{HashMap, HashSet};

use super::super::{Audit, GateError};
use crate::sale::{Rid, Sku};
use crate::script::gate::{Record, RecordState};

/// What all records of the gate add up to.
#[derive(Debug, Default)]
pub(in crate::gate) struct Tally {
    seen: HashSet<Rid>,
    held: HashMap<Sku, i64>,
    sold: HashMap<Sku, i64>,
}

// === impl Tally ===

impl Tally {
    /// Counts a record once. `false`: it was counted before.
    pub(in crate::gate) fn add(&mut self, rid: Rid, record: &Record) -> bool {
        if !self.seen.insert(rid) {
            return false;
        }
        let counts = match record.state {
            RecordState::Pending => &mut self.held,
            RecordState::Committed => &mut self.sold,
            RecordState::Released | RecordState::Tombstone => return true,
        };
        for line in &record.lines {
            *counts.entry(line.sku.clone()).or_default() += line.quantity;
        }
        true
    }

    /// The counters against the records, which did not change while they were read.
    pub(in crate::gate) fn compare(&self, audit: &Audit) -> Result<(), GateError> {
        for l in &audit.ledgers {
            let count = |of: &HashMap<Sku, i64>| of.get(&l.sku).copied().unwrap_or(0);
            let (held, sold) = (count(&self.held), count(&self.sold));
            if (held, sold) != (l.held, l.sold) {
                let what = format!(
                    "of {}, {} held and {} sold are counted, and the reservations are {held} held and {sold} sold",
                    l.sku, l.held, l.sold
                );
                return Err(GateError::Corrupt { what });
            }
        }
        Ok(())
    }
}
