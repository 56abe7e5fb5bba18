//! The alarm before an opening: which sales are about to open and are not warmed up.

use std::collections::HashMap;
use std::time::Duration;

use super::{Flow, FlowError};
use crate::clock::{self, Instant};
use crate::sale::ActivityId;
use crate::store::Late;

/// How long an activity is late before it is told of: whoever creates a sale that opens at once, or
/// changes its strategy, warms it up next.
const NOTICE: Duration = Duration::from_secs(3);
/// Until it is told of again.
const AGAIN: Duration = Duration::from_secs(60);

/// What has been told of late activities, each with when it is to be told of next.
#[derive(Debug, Default)]
pub(super) struct Told {
    next: HashMap<ActivityId, Instant>,
}

impl Flow {
    /// Activities that open soon, or should have, and are not warmed up.
    pub async fn late(&self) -> Result<Vec<Late>, FlowError> {
        let ahead_s = self.app.config.alarm_before_open_s;
        let ahead_ms = i64::try_from(ahead_s.saturating_mul(1000)).unwrap_or(i64::MAX);
        Ok(self.app.store.late_activities(ahead_ms).await?)
    }

    /// Tells of them in the log and by a metric.
    pub(super) async fn tell_late(&self, told: &mut Told) -> Result<(), FlowError> {
        let late = self.late().await?;
        metrics::gauge!("flashlock_activities_late").set(late.len() as f64);
        let now = clock::now();
        let mut next = HashMap::new();
        for one in late {
            let due = told.next.get(&one.id).copied().unwrap_or(now + NOTICE);
            if due <= now {
                let opens_at = clock::rfc3339(one.opens_at_ms);
                tracing::error!(activity = %one.id, state = %one.state, opens_at,
                    "the sale is about to open and is not warmed up");
            }
            next.insert(one.id, if due <= now { now + AGAIN } else { due });
        }
        told.next = next;
        Ok(())
    }
}
