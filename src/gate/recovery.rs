//! When this process rebuilds a gate, and when it waits for another that does.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::rebuild::{Rebuilt, rebuild};
use super::{Gate, Truth};
use crate::clock::{self, Instant};
use crate::sale::{Activity, ActivityId, ActivityState};

/// Longest a purchase waits for the look at the database that tells it how the gate stands.
const LOOK_MAX: Duration = Duration::from_millis(500);
/// How long an epoch that never worked here is left to the process that was elected for it: it has
/// its scripts loaded within a few round trips. Doubles each time that it was too long, so that
/// processes on a slow network do not overtake each other for ever.
const LOAD_GRACE_MIN: Duration = Duration::from_millis(250);
/// The doublings end at four seconds.
const LOAD_DOUBLINGS_MAX: u32 = 4;
/// How long a gate may be on its way to open before another process takes over: reholding 100,000
/// orders takes about two seconds.
const REBUILD_GRACE: Duration = Duration::from_secs(10);
/// A rebuild that takes longer than this has hung.
const REBUILD_MAX: Duration = Duration::from_secs(60);
/// Activities remembered; beyond that all are forgotten and looked up again.
const ACTIVITIES_MAX: usize = 1_024;

/// Knows the present epoch of each activity's gate and rebuilds a gate that was lost, one rebuild
/// per activity at a time.
#[derive(Debug)]
pub struct Recovery {
    gate: Gate,
    truth: Arc<dyn Truth>,
    activities: Mutex<HashMap<ActivityId, Arc<Standing>>>,
}

/// How the gate looked to the purchase that found it lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// Not the Redis that was opened.
    NotThisRedis,
    /// Known, and on its way to open.
    Recovering,
}

/// What the purchase should do.
#[derive(Debug, Clone, PartialEq)]
pub enum Next {
    /// The gate was rebuilt: try again with this.
    Again(Arc<Activity>),
    /// It is being rebuilt.
    Wait,
    /// The database says that the sale is not open; this is how it stands.
    Shut(Arc<Activity>),
}

#[derive(Debug, Default)]
struct Standing {
    known: Mutex<Known>,
    /// One look at the database at a time.
    look: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Known {
    activity: Option<Arc<Activity>>,
    /// The last epoch in which the gate answered here.
    worked: Option<i64>,
    /// Since when it has not, in the epoch named.
    lost: Option<(i64, Instant)>,
    /// Elected processes that were overtaken since then.
    overtaken: u32,
    /// The epoch in which a rebuild of this process began that came to nothing.
    failed: Option<i64>,
    rebuilding: bool,
}

// === impl Recovery ===

impl Recovery {
    pub fn new(gate: Gate, truth: Arc<dyn Truth>) -> Self {
        Self {
            gate,
            truth,
            activities: Mutex::default(),
        }
    }

    /// The later of `activity` and what a rebuild has taught this process.
    pub fn current(&self, activity: &Activity) -> Option<Arc<Activity>> {
        let standing = self.standing(&activity.id);
        standing.known().later_than(activity)
    }

    /// The gate answered in the epoch of `activity`.
    pub fn answered(&self, activity: &Activity) {
        let standing = self.standing(&activity.id);
        let mut known = standing.known();
        known.worked = Some(activity.gate_epoch);
        known.lost = None;
        known.overtaken = 0;
    }

    /// Remembers what a rebuild came to.
    pub fn learn(&self, activity: Activity) {
        let standing = self.standing(&activity.id);
        standing.known().learn(activity);
    }

    /// The gate was `seen` lost in the epoch of `used`: finds out whether it was rebuilt meanwhile,
    /// and starts a rebuild when nobody else seems to.
    pub async fn lost(&self, used: &Activity, seen: Seen) -> Next {
        let standing = self.standing(&used.id);
        if standing.known().rebuilding {
            return Next::Wait;
        }
        let Ok(_one) = tokio::time::timeout(LOOK_MAX, standing.look.lock()).await else {
            return Next::Wait;
        };
        if let Some(later) = standing.known().later_than(used) {
            return Next::Again(later);
        }
        let look = tokio::time::timeout(LOOK_MAX, self.truth.activity(&used.id)).await;
        let fresh = match look {
            Ok(Ok(Some(fresh))) => fresh,
            Ok(Ok(None)) => return Next::Shut(Arc::new(used.clone())),
            Ok(Err(_)) | Err(_) => return Next::Wait,
        };
        // Under another generation it may be sold in another way, and this gate is nobody's.
        if !is_selling(fresh.state) || fresh.fence_generation != used.fence_generation {
            return Next::Shut(Arc::new(fresh));
        }
        if fresh.gate_epoch > used.gate_epoch {
            return Next::Again(standing.known().learn(fresh));
        }
        let on_its_way = match seen {
            Seen::NotThisRedis => self.is_elected_for_this_redis(&fresh).await,
            Seen::Recovering => true,
        };
        {
            let mut known = standing.known();
            let is_overdue = known.is_overdue(used.gate_epoch, seen);
            if known.rebuilding || on_its_way && !is_overdue {
                return Next::Wait;
            }
            known.overtaken = match on_its_way {
                true => known.overtaken.saturating_add(1),
                false => 0,
            };
            known.failed = None;
            known.rebuilding = true;
        }
        tracing::warn!(activity = %used.id, epoch = used.gate_epoch, ?seen, "the gate is lost and is being rebuilt");
        let (gate, truth) = (self.gate.clone(), Arc::clone(&self.truth));
        let (id, epoch) = (used.id.clone(), used.gate_epoch);
        let standing = Arc::clone(&standing);
        // Spawned: the buyer who noticed may go away, the rebuild must not.
        tokio::spawn(async move {
            let ended = tokio::time::timeout(REBUILD_MAX, rebuild(&gate, &*truth, &id)).await;
            let mut known = standing.known();
            known.rebuilding = false;
            match ended {
                Ok(Ok(Rebuilt::Open(activity))) => {
                    metrics::counter!("flashlock_gate_rebuilt_total").increment(1);
                    tracing::info!(activity = %id, epoch = activity.gate_epoch, "the gate is rebuilt and open");
                    known.learn(activity);
                }
                Ok(Ok(other)) => {
                    tracing::info!(activity = %id, ended = ?other, "the gate was not opened here");
                }
                Ok(Err(e)) => {
                    known.failed = Some(epoch);
                    tracing::error!(activity = %id, error = %e, "the gate could not be rebuilt");
                }
                Err(_elapsed) => {
                    known.failed = Some(epoch);
                    tracing::error!(activity = %id, "the rebuild of the gate took too long");
                }
            }
        });
        Next::Wait
    }

    /// Whether somebody may be about to open the gate here: the database says for which start of
    /// Redis it was elected, and on another one nothing is loaded any more.
    async fn is_elected_for_this_redis(&self, activity: &Activity) -> bool {
        match tokio::time::timeout(LOOK_MAX, self.gate.run_id()).await {
            Ok(Ok(run_id)) => run_id == activity.gate_run_id,
            Ok(Err(_)) | Err(_) => true,
        }
    }

    fn standing(&self, id: &ActivityId) -> Arc<Standing> {
        let mut activities = self
            .activities
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(standing) = activities.get(id) {
            return Arc::clone(standing);
        }
        if activities.len() >= ACTIVITIES_MAX {
            activities.clear();
        }
        let standing = Arc::<Standing>::default();
        activities.insert(id.clone(), Arc::clone(&standing));
        standing
    }
}

/// Whether the database says that buyers may come in.
pub(super) fn is_selling(state: ActivityState) -> bool {
    match state {
        ActivityState::Open | ActivityState::Fenced => true,
        ActivityState::Draft
        | ActivityState::Warming
        | ActivityState::Ready
        | ActivityState::Pausing
        | ActivityState::Paused
        | ActivityState::Closing
        | ActivityState::Sealed => false,
    }
}

// === impl Standing ===

impl Standing {
    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Known ===

impl Known {
    fn learn(&mut self, activity: Activity) -> Arc<Activity> {
        if let Some(later) = self.activity.as_ref()
            && later.gate_epoch > activity.gate_epoch
        {
            return Arc::clone(later);
        }
        let activity = Arc::new(activity);
        self.activity = Some(Arc::clone(&activity));
        self.lost = None;
        activity
    }

    fn later_than(&self, used: &Activity) -> Option<Arc<Activity>> {
        self.activity
            .as_ref()
            .filter(|a| a.gate_epoch > used.gate_epoch)
            .map(Arc::clone)
    }

    /// Whether it is for this process to rebuild, rather than for the one that was elected last.
    fn is_overdue(&mut self, epoch: i64, seen: Seen) -> bool {
        let since = match self.lost {
            Some((lost, since)) if lost == epoch => since,
            Some(_) | None => {
                let now = clock::now();
                self.lost = Some((epoch, now));
                now
            }
        };
        // Elected for the epoch behind the one it began in, if at all: nobody else is on the way.
        if self.failed.is_some_and(|failed| epoch <= failed + 1) {
            return true;
        }
        match seen {
            // It worked in this epoch, so nobody is on the way to load it.
            Seen::NotThisRedis if self.worked == Some(epoch) => true,
            Seen::NotThisRedis => since.elapsed() >= load_grace(self.overtaken),
            Seen::Recovering => since.elapsed() >= REBUILD_GRACE,
        }
    }
}

/// When so many were overtaken.
fn load_grace(overtaken: u32) -> Duration {
    LOAD_GRACE_MIN * 2_u32.pow(overtaken.min(LOAD_DOUBLINGS_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_elected_process_is_left_more_time_when_others_were_overtaken() {
        assert_eq!(load_grace(0), LOAD_GRACE_MIN);
        assert_eq!(load_grace(2), 4 * LOAD_GRACE_MIN);
        assert_eq!(load_grace(u32::MAX), Duration::from_secs(4));
        let mut known = Known::default();
        assert!(!known.is_overdue(2, Seen::NotThisRedis));
        known.worked = Some(2);
        assert!(known.is_overdue(2, Seen::NotThisRedis));
    }

    #[test]
    fn whose_own_rebuild_failed_waits_for_nobody_but_those_elected_since() {
        let mut known = Known {
            failed: Some(7),
            ..Known::default()
        };
        assert!(known.is_overdue(8, Seen::Recovering));
        assert!(!known.is_overdue(9, Seen::Recovering));
        assert!(!known.is_overdue(9, Seen::NotThisRedis));
    }
}
