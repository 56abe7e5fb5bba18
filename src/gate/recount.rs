//! Whether a gate's counters are what its reservations add up to, and how they are set right before
//! it opens again. Never while it sells.

use super::rebuild::agree;
use super::reconcile::Tally;
use super::{Gate, GateError, NOT_WARMED, Truth, stale};
use crate::keys::GateKeys;
use crate::sale::Activity;
use crate::script::gate::RecountAnswer;

/// How often the reservations are read until the gate has not changed meanwhile; they are counted
/// inside of Redis after that.
const LOOKS_MAX: u32 = 3;

/// What the reservations said of the counters.
#[derive(Debug)]
enum Sums {
    Right,
    /// It changed while it was read.
    Moving,
}

/// Makes the fenced gate agree with the database, reservation by reservation. Should its counters
/// not be what its reservations add up to, they are counted anew: what sells by wrong counters
/// oversells, or has units that nobody can buy.
pub(super) async fn agree_and_add_up(
    gate: &Gate,
    truth: &dyn Truth,
    activity: &Activity,
) -> Result<(), GateError> {
    let sums = match agree(gate, truth, activity).await {
        Ok(()) => add_up(gate, activity).await,
        Err(error) => Err(error),
    };
    match sums {
        Ok(Sums::Right) => return Ok(()),
        Ok(Sums::Moving) => {}
        Err(GateError::Corrupt { what }) => {
            tracing::error!(activity = %activity.id, what, "the gate's counters are wrong and are counted anew");
        }
        Err(other) => return Err(other),
    }
    let changed = gate.recount(activity).await?;
    if changed > 0 {
        metrics::counter!("flashlock_gate_recounted_total").increment(1);
        tracing::error!(activity = %activity.id, changed, "counters of the gate were set to what its reservations add up to");
    }
    // From right counters each transition leads to right counters.
    agree(gate, truth, activity).await
}

async fn add_up(gate: &Gate, activity: &Activity) -> Result<Sums, GateError> {
    for _ in 0..LOOKS_MAX {
        let before = gate.audit(&activity.id).await?.ok_or(NOT_WARMED)?;
        let mut tally = Tally::default();
        let mut cursor = 0;
        loop {
            let (next, records) = gate.scan(&activity.id, cursor).await?;
            for (rid, record) in &records {
                tally.add(*rid, record);
            }
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        let after = gate.audit(&activity.id).await?.ok_or(NOT_WARMED)?;
        if before.seq == after.seq && before.epoch == after.epoch {
            tally.compare(&after)?;
            return match after.wrong_counters().first() {
                Some(what) => Err(GateError::Corrupt { what: what.clone() }),
                None => Ok(Sums::Right),
            };
        }
    }
    Ok(Sums::Moving)
}

impl Gate {
    /// How many counters were wrong.
    async fn recount(&self, activity: &Activity) -> Result<i64, GateError> {
        let keys = GateKeys::of(&activity.id);
        let mut con = self.con();
        let answer = self
            .scripts
            .recount(&mut con, &keys, activity.gate_epoch)
            .await;
        match answer.map_err(GateError::from)? {
            RecountAnswer::Counted { changed } => Ok(changed),
            RecountAnswer::StaleEpoch { epoch } => Err(stale(epoch)),
            RecountAnswer::NotWarmed => Err(NOT_WARMED),
            RecountAnswer::Gate(state) => Err(GateError::Corrupt {
                what: format!("the gate is {state} while it is rebuilt"),
            }),
            RecountAnswer::Corrupt { what } => Err(GateError::Corrupt { what }),
        }
    }
}
