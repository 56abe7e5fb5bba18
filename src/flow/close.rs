//! Closing orders that are not paid: by the buyer, or because the pay window is over.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::{Flow, FlowError};
use crate::clock;
use crate::deduct::{Closed, DeductError};
use crate::order::{CloseReason, Order, OrderState};
use crate::sale::{ActivityId, OrderId};

/// Orders closed in one critical section or transaction, at first.
const BATCH_FIRST: i64 = 500;
/// Bounds of a batch: below, its round trips and its commit cost more than its rows, so that a slow
/// machine would only become slower; above, nothing is gained any more.
const BATCH_MIN: i64 = 250;
const BATCH_MAX: i64 = 1000;
/// How long a batch may take: long enough to keep up with a backlog, short enough not to keep
/// buyers waiting who want the same lock or stock row.
const BATCH_TIME: Duration = Duration::from_millis(250);
/// How often the closer looks when nothing was due.
const PAUSE: Duration = Duration::from_secs(1);

/// What a cancellation came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cancelled {
    /// It is closed, by this call or an earlier one.
    Closed(Order),
    /// It is in a state that cannot be cancelled.
    NotPending(Order),
    NoSuchOrder,
}

impl Flow {
    /// Closes an order for its buyer and gives its units back. A repeat answers the same.
    ///
    /// # Cancel safety
    /// Dropped, the closing goes on to its end in a task of its own.
    pub async fn cancel(self: &Arc<Self>, id: &OrderId) -> Result<Cancelled, FlowError> {
        let mut endings = self
            .close_orders(vec![id.clone()], CloseReason::User)
            .await?;
        match endings.pop() {
            Some(Ok(Closed::NotPending(order))) if order.state != OrderState::Closed => {
                Ok(Cancelled::NotPending(order))
            }
            Some(Ok(Closed::Closed | Closed::NotPending(_))) => match self.order(id).await? {
                Some(order) => Ok(Cancelled::Closed(order)),
                None => Ok(Cancelled::NoSuchOrder),
            },
            Some(Ok(Closed::NotFound)) | None => Ok(Cancelled::NoSuchOrder),
            Some(Err(error)) => Err(error.into()),
        }
    }

    /// Closes orders of one activity through its strategy, in a task that finishes though the
    /// caller may leave.
    async fn close_orders(
        self: &Arc<Self>,
        orders: Vec<OrderId>,
        why: CloseReason,
    ) -> Result<Vec<Result<Closed, DeductError>>, FlowError> {
        let Some(first) = orders.first() else {
            return Ok(Vec::new());
        };
        let activity = match self.read(&first.activity).await {
            Ok(activity) => activity,
            // An order of an activity that is not there is not there either.
            Err(FlowError::NoSuchActivity(_)) => return Ok(vec![Ok(Closed::NotFound)]),
            Err(error) => return Err(error),
        };
        let strategy = self.strategy(&activity)?;
        let flow = Arc::clone(self);
        let task = self.tasks.spawn(async move {
            let closed = strategy.close(&activity, &orders, why).await;
            flow.sold_out.forget(&activity.id);
            closed
        });
        task.await.map_err(|panicked| {
            FlowError::Deduct(DeductError::Unknown {
                server: "service",
                reason: panicked.to_string(),
            })
        })
    }

    /// Closes overdue orders until `stop`; the role `closer`. Two closers at once do no harm.
    pub async fn closer(self: Arc<Self>, stop: CancellationToken) {
        let mut batch = Batch::default();
        while !stop.is_cancelled() {
            let worked = match self.close_due(&mut batch).await {
                Ok(worked) => worked,
                Err(error) => {
                    tracing::warn!(%error, "cannot close overdue orders; trying again");
                    false
                }
            };
            if !worked {
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = tokio::time::sleep(PAUSE) => {}
                }
            }
        }
    }

    /// One batch, by activity. Whether anything was closed.
    async fn close_due(self: &Arc<Self>, batch: &mut Batch) -> Result<bool, FlowError> {
        let mut due: BTreeMap<ActivityId, Vec<OrderId>> = BTreeMap::new();
        for order in self.app.store.due_orders(batch.size).await? {
            due.entry(order.activity.clone()).or_default().push(order);
        }
        let mut worked = false;
        for (activity, orders) in due {
            let (n, begun) = (orders.len(), clock::now());
            // One activity whose server is away must not keep the others waiting.
            match self.close_orders(orders, CloseReason::Timeout).await {
                Ok(endings) => {
                    batch.took(n, begun.elapsed());
                    let closed = endings
                        .iter()
                        .filter(|e| matches!(e, Ok(Closed::Closed)))
                        .count();
                    worked |= closed > 0;
                    if let Some(Err(error)) = endings.iter().find(|e| e.is_err()) {
                        tracing::warn!(%activity, %error, "cannot close overdue orders; trying again");
                    }
                }
                Err(error) => {
                    tracing::warn!(%activity, %error, "cannot close overdue orders; trying again");
                }
            }
        }
        Ok(worked)
    }
}

/// How many orders the next batch has. It doubles and halves, so that batches come in few sizes:
/// each is another statement for the database to prepare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Batch {
    size: i64,
}

// === impl Batch ===

impl Default for Batch {
    fn default() -> Self {
        Self { size: BATCH_FIRST }
    }
}

impl Batch {
    /// Learns from `n` orders that were closed in `time`. Few and fast say nothing about more.
    fn took(&mut self, n: usize, time: Duration) {
        let full = i64::try_from(n).is_ok_and(|n| n >= self.size);
        if time > BATCH_TIME {
            self.size = (self.size / 2).max(BATCH_MIN);
        } else if full && time < BATCH_TIME / 2 {
            self.size = (self.size * 2).min(BATCH_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_grow_while_they_are_fast_and_shrink_when_they_are_slow() {
        let mut batch = Batch::default();
        for _ in 0..5 {
            batch.took(batch.size as usize, BATCH_TIME / 3);
        }
        assert_eq!(batch.size, BATCH_MAX);
        batch.took(BATCH_MAX as usize, BATCH_TIME * 2 / 3);
        assert_eq!(batch.size, BATCH_MAX);
        for _ in 0..5 {
            batch.took(batch.size as usize, BATCH_TIME * 2);
        }
        assert_eq!(batch.size, BATCH_MIN);
    }

    #[test]
    fn a_few_orders_say_nothing_about_a_full_batch() {
        let mut batch = Batch::default();
        batch.took(1, BATCH_TIME / 100);
        assert_eq!(batch.size, BATCH_FIRST);
    }
}
