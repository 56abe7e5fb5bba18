//! Books orders that were accepted for later. The role `booker`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{Flow, FlowError};
use crate::app::Opened;
use crate::deduct::{Batch, Booker};
use crate::sale::ActivityId;

/// How often it looks for activities that have begun or ended.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Workers of one activity: while one waits for its commit, the other inserts. More would only wait
/// for the same stock row.
const WORKERS: usize = 2;
/// Before the next try when a server is away; each further one doubles it.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest: so much later than its server goes on at most.
const PAUSE_MAX: Duration = Duration::from_secs(1);

impl Flow {
    /// Books for every activity with `booking = async` that sells or still settles, until `stop`.
    /// Any number of bookers at once do no harm.
    pub async fn booker(self: Arc<Self>, stop: CancellationToken) {
        let mut at_work: HashMap<ActivityId, CancellationToken> = HashMap::new();
        let mut workers = JoinSet::new();
        while !stop.is_cancelled() {
            match self.look_for_work(&mut at_work, &mut workers, &stop).await {
                Ok(()) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot look for orders to book; trying again")
                }
            }
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            while let Some(ended) = workers.try_join_next() {
                if let Err(panicked) = ended {
                    tracing::error!(%panicked, "a booking worker has ended; all are started again");
                    at_work.drain().for_each(|(_, over)| over.cancel());
                }
            }
        }
        // Each ends with the batch it is at.
        while workers.join_next().await.is_some() {}
    }

    /// Starts workers where they are needed, and lets those end that are not.
    async fn look_for_work(
        self: &Arc<Self>,
        at_work: &mut HashMap<ActivityId, CancellationToken>,
        workers: &mut JoinSet<()>,
        stop: &CancellationToken,
    ) -> Result<(), FlowError> {
        let running = self.app.store.running_async().await?;
        at_work.retain(|id, over| {
            let stays = running.iter().any(|(running, _)| running == id);
            if !stays {
                over.cancel();
            }
            stays
        });
        for (id, strategy) in running {
            if at_work.contains_key(&id) {
                continue;
            }
            let Opened::Here(strategy) = self.app.strategy(&strategy) else {
                continue;
            };
            let over = stop.child_token();
            for _ in 0..WORKERS {
                let Some(booker) = strategy.booker(&id)? else {
                    break;
                };
                let flow = Arc::clone(self);
                workers.spawn(flow.book(id.clone(), booker, over.clone()));
            }
            at_work.insert(id, over);
        }
        Ok(())
    }

    /// One worker, until its activity is over.
    async fn book(
        self: Arc<Self>,
        id: ActivityId,
        mut booker: Box<dyn Booker>,
        over: CancellationToken,
    ) {
        let mut pause = PAUSE_MIN;
        while !over.is_cancelled() {
            match booker.next().await {
                Ok(batch) => {
                    pause = PAUSE_MIN;
                    self.booked(&id, &batch);
                }
                Err(error) => {
                    tracing::warn!(activity = %id, %error, "accepted orders wait for their booking");
                    tokio::select! {
                        () = over.cancelled() => {}
                        () = tokio::time::sleep(pause) => {}
                    }
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
    }

    fn booked(&self, id: &ActivityId, batch: &Batch) {
        if let Some(backlog) = batch.backlog {
            metrics::gauge!("flashlock_booking_backlog", "activity" => id.to_string())
                .set(backlog as f64);
        }
        if batch.reclaimed > 0 {
            metrics::counter!("flashlock_booking_reclaimed_total")
                .increment(batch.reclaimed as u64);
        }
        let (booked, refused) = (batch.settled.committed.len(), batch.settled.released.len());
        if booked + refused > 0 {
            metrics::counter!("flashlock_booking_batches_total").increment(1);
            metrics::counter!("flashlock_booking_booked_total").increment(booked as u64);
            metrics::counter!("flashlock_booking_refused_total").increment(refused as u64);
        }
        if refused > 0 {
            self.sold_out.forget(id);
        }
    }
}
