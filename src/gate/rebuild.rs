//! How a gate is brought to agree with the database, and opened: after a restart, a failover, a
//! flush, and as the first warm-up.
//!
//! elect → load the stamped scripts → fence → warm → rehold every live order → check again →
//! add up → seal → open through the stamped script. A Redis that restarts in the middle does not know the
//! stamped script, so the last step fails and all of it starts over.

use std::collections::HashSet;

use super::recount::agree_and_add_up;
use super::{Gate, GateError, Mismatch, Step, Truth};
use crate::order::Order;
use crate::sale::{Activity, ActivityId, ActivityState, Rid};
use crate::script::gate::{
    CommitAnswer, GateState, ORDERS_PER_CALL_MAX, RecordState, ReholdAnswer, ReleaseAnswer,
    ShutState,
};

/// How often a rebuild starts over when Redis changes under it; then the next purchase tries.
const STARTS_MAX: usize = 4;

/// What a rebuild came to, with the activity as it stands.
#[derive(Debug, Clone, PartialEq)]
pub enum Rebuilt {
    /// Buyers are let in.
    Open(Activity),
    /// Complete; the database does not say that it is open.
    Ready(Activity),
    /// The database ended or paused the sale meanwhile.
    Shut(Activity),
    /// Another process was elected and rebuilds.
    NotElected,
    NoSuchActivity,
}

/// Brings the gate of `id` to agree with the database and, if the database says OPEN, lets buyers
/// in. Safe to repeat and to run in several processes at once: the database elects one.
///
/// # Cancel safety
/// Dropped half way it leaves the gate fenced; the next rebuild starts from there.
pub async fn rebuild(
    gate: &Gate,
    truth: &dyn Truth,
    id: &ActivityId,
) -> Result<Rebuilt, GateError> {
    let mut starts = 1;
    loop {
        match rebuild_once(gate, truth, id).await {
            Err(GateError::NotThisRedis(Mismatch::NoScript | Mismatch::NotWarmed))
                if starts < STARTS_MAX =>
            {
                starts += 1;
            }
            // Another was elected after this one, and is further.
            Err(GateError::NotThisRedis(Mismatch::StaleEpoch { .. })) => {
                return Ok(Rebuilt::NotElected);
            }
            ended => return ended,
        }
    }
}

async fn rebuild_once(
    gate: &Gate,
    truth: &dyn Truth,
    id: &ActivityId,
) -> Result<Rebuilt, GateError> {
    let Some(mut activity) = truth.activity(id).await? else {
        return Ok(Rebuilt::NoSuchActivity);
    };
    let run_id = gate.run_id().await?;
    if !truth.elect(id, activity.gate_epoch, &run_id).await? {
        return Ok(Rebuilt::NotElected);
    }
    activity.gate_epoch += 1;
    activity.gate_run_id = run_id;

    // Loaded before the first rehold: should Redis restart from here on, `open` notices.
    gate.load(&activity).await?;
    match gate
        .shut(id, ShutState::Fenced, Some(activity.gate_epoch))
        .await
    {
        Ok(Step::Refused(_)) => return Ok(Rebuilt::Shut(activity)),
        Ok(Step::Done | Step::Already) => {}
        Err(GateError::NotThisRedis(Mismatch::NotWarmed)) => {}
        Err(e) => return Err(e),
    }
    gate.warm(&activity).await?;

    // Asked again once the gate is fenced: whoever ends the sale writes the database first and
    // shuts the gate after, so either we read that here, or the shut comes after our fence.
    let Some(now) = truth.activity(id).await? else {
        return Ok(Rebuilt::NoSuchActivity);
    };
    if now.gate_epoch != activity.gate_epoch || now.fence_generation != activity.fence_generation {
        return Ok(Rebuilt::NotElected);
    }
    activity = now;
    if let Some(state) = shut_state(activity.state) {
        gate.shut(id, state, None).await?;
        return Ok(Rebuilt::Shut(activity));
    }

    agree_and_add_up(gate, truth, &activity).await?;
    if let Step::Refused(_) = gate.seal(&activity).await? {
        return Ok(Rebuilt::Shut(activity));
    }
    match activity.state {
        ActivityState::Open | ActivityState::Fenced => {}
        ActivityState::Draft
        | ActivityState::Warming
        | ActivityState::Ready
        | ActivityState::Pausing
        | ActivityState::Paused
        | ActivityState::Closing
        | ActivityState::Sealed => return Ok(Rebuilt::Ready(activity)),
    }
    match gate.open(&activity).await? {
        Step::Done | Step::Already => Ok(Rebuilt::Open(activity)),
        Step::Refused(_) => Ok(Rebuilt::Shut(activity)),
    }
}

/// Where the gate belongs while the database says `state`; `None` while it may be warm or open.
pub fn shut_state(state: ActivityState) -> Option<ShutState> {
    match state {
        ActivityState::Draft
        | ActivityState::Warming
        | ActivityState::Ready
        | ActivityState::Open
        | ActivityState::Fenced => None,
        ActivityState::Pausing | ActivityState::Paused => Some(ShutState::Paused),
        ActivityState::Closing => Some(ShutState::Closing),
        ActivityState::Sealed => Some(ShutState::Sealed),
    }
}

/// Reservation by reservation, never by setting a counter: what is live in the database is
/// committed here; what is dead or unknown there gives back what it took. A hold without an order
/// may be on its way and is left alone.
pub(super) async fn agree(
    gate: &Gate,
    truth: &dyn Truth,
    activity: &Activity,
) -> Result<(), GateError> {
    let id = &activity.id;
    let mut live = HashSet::new();
    let mut after = None;
    loop {
        let page = truth.live_orders(id, after, ORDERS_PER_CALL_MAX).await?;
        rehold_checked(gate, truth, id, &page).await?;
        live.extend(page.iter().map(|o| o.id.rid));
        match page.last() {
            Some(last) if page.len() == ORDERS_PER_CALL_MAX => after = Some(last.id.rid),
            Some(_) | None => break,
        }
    }
    let mut cursor = 0;
    loop {
        let (next, records) = gate.scan(id, cursor).await?;
        let mut holds = Vec::new();
        let mut settled = Vec::new();
        for (rid, record) in records.into_iter().filter(|(rid, _)| !live.contains(rid)) {
            match record.state {
                RecordState::Pending => holds.push(rid),
                RecordState::Committed => settled.push(rid),
                RecordState::Released | RecordState::Tombstone => {}
            }
        }
        release_dead(gate, truth, id, &holds, Absent::Keep).await?;
        release_dead(gate, truth, id, &settled, Absent::Release).await?;
        if next == 0 {
            return Ok(());
        }
        cursor = next;
    }
}

/// Makes the gate agree with orders that were read as live, then asks again whether they still
/// are: one that was closed meanwhile found nothing to give back when it was released.
pub async fn rehold_checked(
    gate: &Gate,
    truth: &dyn Truth,
    id: &ActivityId,
    orders: &[Order],
) -> Result<(), GateError> {
    if orders.is_empty() {
        return Ok(());
    }
    let mut pending = Vec::new();
    let mut written = Vec::new();
    for (order, answer) in orders.iter().zip(gate.rehold(id, orders).await?) {
        match answer {
            ReholdAnswer::Reheld | ReholdAnswer::ReheldDead => written.push(order.id.rid),
            ReholdAnswer::Pending => pending.push(order.id.rid),
            ReholdAnswer::Already => {}
            ReholdAnswer::Gone => return Err(super::NOT_WARMED),
            ReholdAnswer::UnknownSku | ReholdAnswer::Corrupt => {
                let what = format!("order {} does not fit its counters: {answer:?}", order.id);
                return Err(GateError::Corrupt { what });
            }
        }
    }
    for (rid, answer) in pending.iter().zip(gate.commit(id, &pending).await?) {
        if answer == CommitAnswer::Corrupt {
            let what = format!("fewer units are pending than {rid} holds");
            return Err(GateError::Corrupt { what });
        }
    }
    written.extend(pending);
    release_dead(gate, truth, id, &written, Absent::Keep).await
}

/// What becomes of a reservation that the database does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Absent {
    Keep,
    Release,
}

async fn release_dead(
    gate: &Gate,
    truth: &dyn Truth,
    id: &ActivityId,
    rids: &[Rid],
    absent: Absent,
) -> Result<(), GateError> {
    for rids in rids.chunks(ORDERS_PER_CALL_MAX) {
        let states = truth.states(id, rids).await?;
        let is_live = |s: &(Rid, _)| crate::order::OrderState::is_live(s.1);
        let keep: HashSet<Rid> = match absent {
            Absent::Release => states.iter().filter(|s| is_live(s)).map(|s| s.0).collect(),
            Absent::Keep => {
                let dead: HashSet<Rid> =
                    states.iter().filter(|s| !is_live(s)).map(|s| s.0).collect();
                rids.iter().copied().filter(|r| !dead.contains(r)).collect()
            }
        };
        let dead: Vec<Rid> = rids.iter().copied().filter(|r| !keep.contains(r)).collect();
        for (rid, answer) in dead.iter().zip(gate.release(id, &dead, "rebuild").await?) {
            match answer {
                ReleaseAnswer::Released | ReleaseAnswer::Already | ReleaseAnswer::Tombstoned => {}
                ReleaseAnswer::Gone => return Err(super::NOT_WARMED),
                ReleaseAnswer::Corrupt => {
                    let what = format!("fewer units are counted than {rid} took");
                    return Err(GateError::Corrupt { what });
                }
            }
        }
    }
    Ok(())
}

/// Whether a gate in this state is on its way to open.
pub fn is_recovering(state: GateState) -> bool {
    match state {
        GateState::Warming | GateState::Ready | GateState::Fenced => true,
        GateState::Open | GateState::Closing | GateState::Paused | GateState::Sealed => false,
    }
}
