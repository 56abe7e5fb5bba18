//! The gate at the turns of its activity's life: when it is warmed up, and what is on its way when it
//! is to pause or to end.

use std::time::Duration;

use super::RedisLua;
use super::words::{unavailable, unread};
use crate::clock;
use crate::deduct::DeductError;
use crate::gate::rebuild::Rebuilt;
use crate::sale::{ActivityId, ActivityState};
use crate::script::gate::GateState;

/// Longest wait for another process that warms up the same activity: reholding 100,000 orders takes
/// about two seconds.
const ELSEWHERE_WAIT: Duration = Duration::from_secs(10);
/// Between two looks at how far it is.
const ELSEWHERE_POLL: Duration = Duration::from_millis(50);

impl RedisLua {
    /// Brings stock and live orders into the gate. Where several do so at once, the database elects
    /// one and the others wait for it.
    pub(super) async fn warm(&self, id: &ActivityId) -> Result<(), DeductError> {
        let begun = clock::now();
        loop {
            if self.is_warm(id).await? {
                return Ok(());
            }
            match self.rebuild(id).await? {
                Rebuilt::Open(_) | Rebuilt::Ready(_) => return Ok(()),
                Rebuilt::NotElected if begun.elapsed() < ELSEWHERE_WAIT => {
                    tokio::time::sleep(ELSEWHERE_POLL).await;
                }
                Rebuilt::NotElected => {
                    return Err(unavailable("another process is warming it up"));
                }
                Rebuilt::Shut(a) => {
                    return Err(unavailable(&format!("the activity is {}", a.state)));
                }
                Rebuilt::NoSuchActivity => {
                    return Err(DeductError::Corrupt {
                        what: format!("there is no activity {id}"),
                    });
                }
            }
        }
    }

    /// Whether another has warmed it up already: a repeat must not fence a gate that is as it should
    /// be. One that the database says is still warming up may have been warmed up in part.
    async fn is_warm(&self, id: &ActivityId) -> Result<bool, DeductError> {
        let now = self.fresh(id).await?;
        let wanted = match now.state {
            ActivityState::Open | ActivityState::Fenced => GateState::Open,
            ActivityState::Ready => GateState::Ready,
            ActivityState::Draft
            | ActivityState::Warming
            | ActivityState::Pausing
            | ActivityState::Paused
            | ActivityState::Closing
            | ActivityState::Sealed => return Ok(false),
        };
        let audit = self.gate.audit(id).await.map_err(unread)?;
        Ok(audit.is_some_and(|a| a.state == wanted && a.epoch == now.gate_epoch))
    }

    /// Holds that wait for their booking, in the index or in the stream. None at a gate that is not
    /// there.
    pub(super) async fn holds(&self, id: &ActivityId) -> Result<i64, DeductError> {
        let audit = self.gate.audit(id).await.map_err(unread)?;
        let handed = self.gate.handed(id).await.map_err(unread)?;
        Ok(audit.map_or(0, |audit| audit.holds.max(handed)))
    }
}
