//! Ends what purchases left behind: old holds, and reservations of which nobody knows whether they
//! were made. The role `sweeper`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::{Flow, FlowError};
use crate::app::Opened;
use crate::ledger::reconciled::Settled;
use crate::sale::{ActivityId, Rid};
use crate::store::{Compensation, StoreError, Tombstone};

/// Between two passes: what is left behind keeps its user waiting.
const PAUSE: Duration = Duration::from_secs(1);
/// Reservations resolved in one pass.
const BATCH_MAX: i64 = 200;
/// After the first failure; each further one doubles it.
const BACKOFF_MIN: Duration = Duration::from_secs(1);
/// A server that was away for long is asked once a minute.
const BACKOFF_MAX: Duration = Duration::from_secs(60);
/// About a day of minutes; then an operator has to look.
const ATTEMPTS_MAX: i64 = 1_500;

impl Flow {
    /// Sweeps until `stop`. Two sweepers at once do no harm.
    pub async fn sweeper(self: Arc<Self>, stop: CancellationToken) {
        while !stop.is_cancelled() {
            if let Err(error) = self.sweep_all().await {
                tracing::warn!(%error, "cannot sweep; trying again");
            }
            if let Err(error) = self.resolve_due().await {
                tracing::warn!(%error, "cannot resolve unknown reservations; trying again");
            }
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }

    async fn sweep_all(&self) -> Result<(), FlowError> {
        for (id, strategy) in self.app.store.running().await? {
            let Opened::Here(strategy) = self.app.strategy(&strategy) else {
                continue;
            };
            // One activity whose server is away must not keep the others waiting.
            match strategy.sweep(&id).await {
                Ok(settled) => self.swept(&id, &settled),
                Err(error) => tracing::warn!(activity = %id, %error, "cannot sweep; trying again"),
            }
        }
        Ok(())
    }

    fn swept(&self, id: &ActivityId, settled: &Settled) {
        let (committed, released) = (settled.committed.len(), settled.released.len());
        if released > 0 {
            self.sold_out.forget(id);
        }
        if committed + released > 0 {
            let swept = |outcome| metrics::counter!("flashlock_swept_total", "outcome" => outcome);
            swept("committed").increment(committed as u64);
            swept("released").increment(released as u64);
            tracing::info!(activity = %id, committed, released, "old holds have ended");
        }
    }

    async fn resolve_due(&self) -> Result<(), FlowError> {
        let mut due: BTreeMap<ActivityId, Vec<Compensation>> = BTreeMap::new();
        for one in self.app.store.due_compensations(BATCH_MAX).await? {
            due.entry(one.activity.clone()).or_default().push(one);
        }
        for (id, due) in due {
            let reservations: Vec<Tombstone> =
                due.iter().map(|one| one.reservation.clone()).collect();
            let (settled, why) = match self.resolve(&id, &reservations).await {
                Ok(settled) => (settled, "the stores have not decided it".to_string()),
                Err(error) => (Settled::default(), error.to_string()),
            };
            let released = settled.released.len();
            if released > 0 {
                self.sold_out.forget(&id);
            }
            let done: Vec<Rid> = [settled.committed, settled.released].concat();
            for one in due {
                self.resolved(&one, done.contains(&one.reservation.rid), &why)
                    .await?;
            }
        }
        Ok(())
    }

    async fn resolve(
        &self,
        id: &ActivityId,
        reservations: &[Tombstone],
    ) -> Result<Settled, FlowError> {
        let activity = self.app.store.activity(id).await?;
        let activity = activity.ok_or_else(|| FlowError::NoSuchActivity(id.clone()))?;
        Ok(self.strategy(&activity)?.resolve(id, reservations).await?)
    }

    async fn resolved(&self, one: &Compensation, done: bool, why: &str) -> Result<(), StoreError> {
        let rid = one.reservation.rid;
        if done {
            self.app.store.compensated(rid).await?;
            metrics::counter!("flashlock_compensated_total").increment(1);
            return Ok(());
        }
        let wait = backoff(one.attempts);
        if wait.is_none() {
            tracing::error!(activity = %one.activity, %rid, why, "an unknown reservation is given up on");
        }
        self.app.store.postpone_compensation(rid, wait, why).await
    }

    /// Reservations that were to be resolved, for operators.
    pub async fn compensations(&self) -> Result<Vec<Compensation>, FlowError> {
        Ok(self.app.store.compensations().await?)
    }
}

/// How long to wait after the try that follows `attempts` others; `None`: no more.
fn backoff(attempts: i64) -> Option<Duration> {
    if attempts + 1 >= ATTEMPTS_MAX {
        return None;
    }
    let doublings = u32::try_from(attempts.clamp(0, 16)).unwrap_or(16);
    Some((BACKOFF_MIN * 2_u32.pow(doublings)).min(BACKOFF_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_minute_and_end() {
        assert_eq!(backoff(0), Some(Duration::from_secs(1)));
        assert_eq!(backoff(3), Some(Duration::from_secs(8)));
        assert_eq!(backoff(1_000), Some(BACKOFF_MAX));
        assert_eq!(backoff(ATTEMPTS_MAX), None);
    }
}
