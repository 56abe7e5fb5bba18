//! Puts what queues up meanwhile into one critical section, transaction or script call.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio_util::task::TaskTracker;

use crate::deduct::{Contention, Deduct, DeductError, Ending};
use crate::order::NewOrder;
use crate::sale::{Activity, ActivityId};

/// Most purchases that wait for one activity in one process; past that buyers are told to come
/// again.
const QUEUE_MAX: usize = 10_000;
/// A combiner without work for this long ends; the next purchase starts another.
const IDLE: Duration = Duration::from_secs(10);

type Outcome = Result<Ending, DeductError>;

/// A purchase that waits, and where its buyer waits.
#[derive(Debug)]
struct Waiting {
    strategy: Arc<dyn Deduct>,
    activity: Arc<Activity>,
    order: NewOrder,
    answer: oneshot::Sender<Outcome>,
}

/// One queue per activity with `batch_max` above one; the others pass by.
#[derive(Debug, Default)]
pub(super) struct Combiner {
    queues: Mutex<HashMap<ActivityId, mpsc::Sender<Waiting>>>,
}

// === impl Combiner ===

impl Combiner {
    /// Sells one order, alone or together with others of its activity.
    pub(super) async fn deduct(
        &self,
        tasks: &TaskTracker,
        strategy: Arc<dyn Deduct>,
        activity: &Arc<Activity>,
        order: NewOrder,
    ) -> Outcome {
        if activity.batch_max <= 1 {
            let mut endings = strategy
                .deduct(activity, std::slice::from_ref(&order))
                .await;
            return endings.pop().unwrap_or_else(unanswered);
        }
        let (answer, ending) = oneshot::channel();
        let waiting = Waiting {
            strategy,
            activity: Arc::clone(activity),
            order,
            answer,
        };
        match self.enqueue(tasks, waiting) {
            Ok(()) => ending.await.unwrap_or_else(|_gone| unanswered()),
            Err(QueueFull) => Ok(Ending::Busy(Contention::Database)),
        }
    }

    /// Lets every combiner end once its queue is empty, instead of when it has been idle.
    pub(super) fn finish(&self) {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.clear();
    }

    fn enqueue(&self, tasks: &TaskTracker, waiting: Waiting) -> Result<(), QueueFull> {
        let id = waiting.activity.id.clone();
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let mut waiting = waiting;
        if let Some(queue) = queues.get(&id) {
            waiting = match queue.try_send(waiting) {
                Ok(()) => return Ok(()),
                Err(mpsc::error::TrySendError::Full(_)) => return Err(QueueFull),
                // Its combiner had nothing to do for a while and has ended.
                Err(mpsc::error::TrySendError::Closed(back)) => back,
            };
        }
        let (queue, rest) = mpsc::channel(QUEUE_MAX);
        queues.retain(|_, queue| !queue.is_closed());
        queues.insert(id, queue);
        tasks.spawn(combine(waiting, rest));
        Ok(())
    }
}

/// The queue is at its length; nothing was sold.
struct QueueFull;

/// Sells what is there, then what came meanwhile, until nothing comes for a while.
async fn combine(first: Waiting, mut rest: mpsc::Receiver<Waiting>) {
    let mut next = Some(first);
    loop {
        let first = match next.take() {
            Some(first) => first,
            None => match tokio::time::timeout(IDLE, rest.recv()).await {
                Ok(Some(first)) => first,
                Ok(None) => return,
                Err(_idle) => {
                    rest.close();
                    match rest.recv().await {
                        Some(last) => last,
                        None => return,
                    }
                }
            },
        };
        let batch_max = usize::try_from(first.activity.batch_max).unwrap_or(1);
        let mut batch = vec![first];
        while batch.len() < batch_max {
            let Ok(waiting) = rest.try_recv() else { break };
            // Another generation is another strategy: it waits for the next batch.
            if waiting.activity.fence_generation != batch[0].activity.fence_generation {
                next = Some(waiting);
                break;
            }
            batch.push(waiting);
        }
        sell(batch).await;
    }
}

async fn sell(batch: Vec<Waiting>) {
    let strategy = Arc::clone(&batch[0].strategy);
    let activity = Arc::clone(&batch[0].activity);
    let (orders, answers): (Vec<NewOrder>, Vec<_>) =
        batch.into_iter().map(|w| (w.order, w.answer)).unzip();
    let mut endings = strategy.deduct(&activity, &orders).await.into_iter();
    for answer in answers {
        // A buyer that has left does not need the answer; the order stands all the same.
        let _gone = answer.send(endings.next().unwrap_or_else(unanswered));
    }
}

fn unanswered() -> Outcome {
    Err(DeductError::Unknown {
        server: "service",
        reason: "the strategy gave no ending".to_string(),
    })
}
