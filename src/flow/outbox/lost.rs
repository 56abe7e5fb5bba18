//! What was published and then lost with the broker, before it had its effect: found, and published again.
//!
//! A broker says at most what waits with it. So whatever was published long ago, does not wait there
//! and is not in the consumer's inbox was lost, in whichever way: a flush, a history cut off, a
//! replica that was behind. The database remembers up to when everything has been found to have had
//! its effect, so each event is looked at once.

use std::time::Duration;

use crate::broker::{Broker, Waiting};
use crate::flow::Flow;
use crate::flow::mirror::GATE_MIRROR;
use crate::store::StoreError;

/// How old a published event is when it is looked at. Longer than its row may take to be committed
/// behind the clock that it was stamped with (a transaction may stand still for 15 s and its COMMIT
/// take 10 s), and longer than an event that was left by a process that ended waits for another.
pub const LOST_AFTER: Duration = Duration::from_secs(30);
/// Between two looks, over all relays.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Pages of one look: 100,000 events. What is behind is looked at by the next.
const PAGES_MAX: usize = 20;

impl Flow {
    /// Looks at what was published at least `lost_after` ago, and makes due again what the broker
    /// lost; how many events that were. Nothing while the broker has kept an event for as long as
    /// that: its consumers are behind, or away. Safe to repeat, and in several processes at once.
    ///
    /// # Cancel safety
    /// Dropped half way, the next look finds the rest.
    pub async fn return_lost(
        &self,
        broker: &dyn Broker,
        lost_after: Duration,
    ) -> Result<u64, StoreError> {
        let (store, strategies) = (&self.app.store, self.app.mirrored());
        if strategies.is_empty() || !broker.keeps_events() {
            return Ok(0);
        }
        let every = LOOK_EVERY.min(lost_after);
        let Some(mut look) = store.begin_look(GATE_MIRROR, every, lost_after).await? else {
            return Ok(0);
        };
        // After the moment of the look: what was published before it waits by now, or never will.
        match broker.waiting(GATE_MIRROR).await {
            Ok(Waiting::Nothing) => {}
            Ok(Waiting::Since(age)) if age < lost_after => {}
            Ok(Waiting::Since(age)) => {
                tracing::debug!(?age, "consumers are behind; not looking for lost events");
                return Ok(0);
            }
            Err(error) => {
                tracing::debug!(%error, "not looking for lost events");
                return Ok(0);
            }
        }
        let mut lost = 0;
        for _ in 0..PAGES_MAX {
            let looked = store.return_lost(GATE_MIRROR, &strategies, look).await?;
            lost += looked.lost;
            match looked.rest {
                Some(rest) => look = rest,
                None => break,
            }
        }
        if lost > 0 {
            metrics::counter!("flashlock_outbox_republished_total").increment(lost);
            tracing::warn!(
                events = lost,
                "these were published and lost with the broker; they are published again"
            );
        }
        Ok(lost)
    }
}
