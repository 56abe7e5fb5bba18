//! Delivering the outbox: the relay, and what an operator may ask of its dead letters.

mod lost;

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use tokio_util::sync::CancellationToken;

use super::mirror::GateMirror;
use super::{Flow, FlowError};
use crate::broker::{Broker, Consumer, Failure, InProcess, RedisStreams};
use crate::clock::{self, Instant};
use crate::keys;
use crate::store::{
    Before, ClaimedEvent, DeadEvent, Event, NextTry, Replayed, StoreError, Undelivered,
};

pub use lost::LOST_AFTER;

/// How long a claim may take to publish its rows: several times the longest publication.
pub const LEASE: Duration = Duration::from_secs(8);
/// Longest publication of one batch; what has not come by then is tried again.
const PUBLISH_MAX: Duration = Duration::from_secs(4);
/// Rows of one claim: short enough for its lease, long enough to keep up with a burst.
const BATCH_MAX: i64 = 100;
/// How often the relay looks when nothing was due.
const PAUSE: Duration = Duration::from_millis(250);
/// Before the next look when the database is away.
const PAUSE_AWAY: Duration = Duration::from_secs(1);
/// How often the rows are counted for `/metrics`, and lost events are looked for.
const COUNT_EVERY: Duration = Duration::from_secs(5);
/// Deliveries of an event that is refused, before it is a dead letter: some five minutes.
pub const ATTEMPTS_MAX: i64 = 10;
/// The pause after the first failure; each further one doubles it.
const BACKOFF_MIN: Duration = Duration::from_millis(500);
/// The longest pause.
const BACKOFF_MAX: Duration = Duration::from_secs(60);
/// Before the next try of what an outage keeps waiting: it costs at most this much after its end.
const BACKOFF_AWAY: Duration = Duration::from_secs(2);

/// What became of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Relayed {
    pub published: u64,
    pub retried: u64,
    /// Rows that wait for a server that is away.
    pub waiting: u64,
    pub dead: u64,
    /// Rows whose lease had ended and which are another relay's now.
    pub lost: u64,
}

impl Flow {
    /// Delivers the outbox until `stop`; the role `relay`. Several at once do no harm.
    pub async fn relay(self: Arc<Self>, stop: CancellationToken) {
        let mirror: Arc<dyn Consumer> = Arc::new(GateMirror::new(Arc::clone(&self)));
        let Some(deployment) = self.deployment(&stop).await else {
            return;
        };
        let streams = self.app.config.redis_url.as_deref().map(|url| {
            let stream = keys::event_stream(&deployment);
            RedisStreams::new(url, stream, vec![Arc::clone(&mirror)])
        });
        let broker: Arc<dyn Broker> = match streams {
            None => Arc::new(InProcess::new(vec![mirror])),
            Some(Ok(streams)) => Arc::new(streams),
            Some(Err(error)) => {
                tracing::error!(%error, "redis_url is not a Redis URL: events are delivered in this process");
                Arc::new(InProcess::new(vec![mirror]))
            }
        };
        self.relay_through(broker, stop).await;
    }

    /// Whose events these are; waits for the database. `None`: it was stopped meanwhile.
    async fn deployment(&self, stop: &CancellationToken) -> Option<String> {
        loop {
            match self.app.store.deployment().await {
                Ok(deployment) => return Some(deployment),
                Err(error) => {
                    tracing::warn!(%error, "cannot deliver the outbox yet; trying again");
                }
            }
            tokio::select! {
                () = stop.cancelled() => return None,
                () = tokio::time::sleep(PAUSE_AWAY) => {}
            }
        }
    }

    /// The same through a broker of one's own.
    pub async fn relay_through(self: Arc<Self>, broker: Arc<dyn Broker>, stop: CancellationToken) {
        tokio::join!(
            self.publish_due(&*broker, &stop),
            broker.deliver(stop.clone())
        );
    }

    async fn publish_due(&self, broker: &dyn Broker, stop: &CancellationToken) {
        let mut counted_at: Option<Instant> = None;
        while !stop.is_cancelled() {
            if counted_at.is_none_or(|at| at.elapsed() >= COUNT_EVERY) {
                counted_at = Some(clock::now());
                self.count_outbox().await;
                if let Err(error) = self.return_lost(broker, LOST_AFTER).await {
                    tracing::warn!(%error, "cannot look for lost events; trying again");
                }
            }
            // Not dropped at a stop: what is published is settled, so that it is not sent again.
            let pause = match self.relay_once(broker).await {
                Ok(Some(relayed)) if relayed.published == 0 && relayed.waiting > 0 => PAUSE_AWAY,
                Ok(Some(_)) => continue,
                Ok(None) => PAUSE,
                Err(StoreError::Retry(_)) => PAUSE,
                Err(error) => {
                    tracing::warn!(%error, "cannot deliver the outbox; trying again");
                    PAUSE_AWAY
                }
            };
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Claims one batch, publishes it and settles it. `None`: nothing was due.
    pub async fn relay_once(&self, broker: &dyn Broker) -> Result<Option<Relayed>, StoreError> {
        let store = &self.app.store;
        let claimed = store.claim_events(BATCH_MAX, LEASE).await?;
        if claimed.rows.is_empty() {
            return Ok(None);
        }
        let readable: Vec<Event> = claimed
            .rows
            .iter()
            .filter_map(|row| deliverable(row).ok())
            .collect();
        let published = tokio::time::timeout(PUBLISH_MAX, broker.publish(&readable)).await;
        let mut published = published
            .unwrap_or_else(|_elapsed| {
                let why = Failure::Away(format!("no answer in {} s", PUBLISH_MAX.as_secs()));
                vec![Err(why); readable.len()]
            })
            .into_iter();
        let mut done = Vec::new();
        let mut failed = Vec::new();
        let mut relayed = Relayed::default();
        for row in &claimed.rows {
            let outcome = match deliverable(row) {
                Ok(_) => published.next().unwrap_or_else(unanswered),
                Err(why) => Err(why),
            };
            match outcome {
                Ok(()) => done.push(row.row),
                Err(why) => {
                    let undelivered = undelivered(row.attempts, &why);
                    match undelivered.next {
                        NextTry::After(_) => relayed.retried += 1,
                        NextTry::Waits(_) => relayed.waiting += 1,
                        NextTry::Never => relayed.dead += 1,
                    }
                    failed.push((row.row, undelivered));
                }
            }
        }
        relayed.published = store.settle_published(claimed.token, &done).await?;
        let settled = store.settle_undelivered(claimed.token, &failed).await?;
        relayed.lost = (claimed.rows.len() as u64).saturating_sub(relayed.published + settled);
        relayed.tell(failed.first().map(|(_, undelivered)| undelivered));
        Ok(Some(relayed))
    }

    async fn count_outbox(&self) {
        match self.app.store.count_outbox().await {
            Ok(counts) => {
                metrics::gauge!("flashlock_outbox_due").set(counts.due as f64);
                metrics::gauge!("flashlock_outbox_dead").set(counts.dead as f64);
            }
            Err(error) => tracing::debug!(%error, "the outbox could not be counted"),
        }
    }

    /// Dead letters behind the row `after`, at most `limit`.
    pub async fn dead_events(&self, after: i64, limit: i64) -> Result<Vec<DeadEvent>, FlowError> {
        Ok(self.app.store.dead_events(after, limit).await?)
    }

    /// Makes a dead letter due again. A repeat answers `NotDead`.
    pub async fn replay_event(&self, event_id: &str) -> Result<Replayed, FlowError> {
        Ok(self.app.store.replay_event(event_id).await?)
    }
}

/// What comes after a failed delivery of an event that had failed `attempts` times before.
pub(super) fn undelivered(attempts: i64, why: &Failure) -> Undelivered {
    let next = match why {
        Failure::Poison(_) => NextTry::Never,
        Failure::Refused(_) if attempts + 1 >= ATTEMPTS_MAX => NextTry::Never,
        Failure::Refused(_) => NextTry::After(backoff(attempts)),
        Failure::Away(_) => NextTry::Waits(spread(BACKOFF_AWAY)),
    };
    Undelivered {
        why: why.to_string(),
        next,
    }
}

/// The event of a row, or why it is not even tried.
fn deliverable(row: &ClaimedEvent) -> Result<Event, Failure> {
    if row.before == Before::Lapsed && row.attempts >= ATTEMPTS_MAX {
        return Err(Failure::Poison(format!(
            "the lease of its last delivery lapsed, after {} attempts",
            row.attempts
        )));
    }
    row.event.clone().map_err(Failure::Refused)
}

/// Doubles with each failure, up to a bound.
fn backoff(attempts: i64) -> Duration {
    let doublings = u32::try_from(attempts.clamp(0, 16)).unwrap_or(0);
    spread((BACKOFF_MIN * 2u32.pow(doublings)).min(BACKOFF_MAX))
}

/// By a quarter, so that what failed together does not come back together.
fn spread(pause: Duration) -> Duration {
    pause.mul_f64(rand::rng().random_range(0.75..=1.0))
}

fn unanswered() -> Result<(), Failure> {
    Err(Failure::Away("the broker gave no answer".to_string()))
}

// === impl Relayed ===

impl Relayed {
    fn tell(&self, first_failure: Option<&Undelivered>) {
        metrics::counter!("flashlock_outbox_published_total").increment(self.published);
        metrics::counter!("flashlock_outbox_retried_total").increment(self.retried);
        metrics::counter!("flashlock_outbox_waiting_total").increment(self.waiting);
        metrics::counter!("flashlock_outbox_dead_total").increment(self.dead);
        metrics::counter!("flashlock_outbox_lease_lost_total").increment(self.lost);
        if self.lost > 0 {
            tracing::warn!(
                rows = self.lost,
                "the lease of these outbox rows had ended; another relay settles them"
            );
        }
        if let Some(failure) = first_failure {
            let (retried, waiting, dead) = (self.retried, self.waiting, self.dead);
            tracing::warn!(
                retried,
                waiting,
                dead,
                why = failure.why,
                "events were not delivered"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_doubles_up_to_its_bound() {
        for attempts in 0..6 {
            let (this, next) = (backoff(attempts), backoff(attempts + 1));
            assert!(this < next, "{attempts}: {this:?}, then {next:?}");
        }
        assert!(backoff(i64::MAX) <= BACKOFF_MAX);
        assert!(backoff(i64::MAX) >= BACKOFF_MAX.mul_f64(0.75));
    }

    #[test]
    fn only_what_is_refused_dies() {
        let refused = Failure::Refused("no".into());
        let away = Failure::Away("not there".into());
        let poison = Failure::Poison("it killed us".into());
        assert_eq!(undelivered(ATTEMPTS_MAX - 1, &refused).next, NextTry::Never);
        assert_eq!(undelivered(0, &poison).next, NextTry::Never);
        let again = undelivered(ATTEMPTS_MAX - 2, &refused).next;
        assert!(matches!(again, NextTry::After(_)), "{again:?}");
        let waits = undelivered(ATTEMPTS_MAX * 10, &away).next;
        assert!(matches!(waits, NextTry::Waits(_)), "{waits:?}");
    }
}
