//! The way of a purchase: look up, admit, limit, deduct, answer.

pub mod activity;
mod alarm;
pub mod close;
mod combine;
mod dedupe;
pub mod life;
mod limit;
pub mod mirror;
pub mod outbox;
pub mod payment;
mod reconcile;
mod sold_out;
mod sweep;

use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::TaskTracker;

use crate::app::{App, Opened};
use crate::clock;
use crate::deduct::{Deduct, DeductError, Ending};
use crate::limit::Refusal;
use crate::sale::{Activity, ActivityId, Purchase, Sku, StrategyName};
use crate::store::{Contended, StoreError};

use combine::Combiner;
use limit::Told;
use sold_out::SoldOutMemory;

/// The flow of one process: the opened servers, and what it remembers between requests.
#[derive(Debug)]
pub struct Flow {
    pub app: App,
    activities: activity::Cache,
    told: Told,
    sold_out: SoldOutMemory,
    combiner: Combiner,
    /// Purchases that must finish though their buyer may have left.
    tasks: TaskTracker,
}

/// How a request to buy ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    Ended(Ending),
    /// Too many requests: try again after this long.
    Limited(Refusal),
}

/// Why a request could not be carried out.
#[derive(Debug, thiserror::Error)]
pub enum FlowError {
    #[error("there is no activity {0}")]
    NoSuchActivity(ActivityId),
    #[error("activity {activity} does not sell {sku}; it sells {sold}")]
    UnknownSku {
        activity: ActivityId,
        sku: Sku,
        sold: String,
    },
    #[error("{wanted} units are more than the {allowed} that one user may buy")]
    TooMany { wanted: i64, allowed: i64 },
    #[error("strategy {strategy} is not available here: {why}")]
    StrategyMissing { strategy: StrategyName, why: String },
    /// Contention, not an outage: nothing was written.
    #[error("too many at once: {0}; nothing was done, try again after Retry-After")]
    Busy(Contended),
    #[error(transparent)]
    Deduct(#[from] DeductError),
}

impl From<StoreError> for FlowError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Retry(why) => Self::Busy(why),
            error @ (StoreError::Conflict(_)
            | StoreError::Unavailable(_)
            | StoreError::Unknown(_)
            | StoreError::Refused(_)) => Self::Deduct(error.into()),
        }
    }
}

// === impl Flow ===

impl Flow {
    pub fn new(app: App) -> Arc<Self> {
        limit::describe();
        Arc::new(Self {
            app,
            activities: activity::Cache::default(),
            told: Told::default(),
            sold_out: SoldOutMemory::default(),
            combiner: Combiner::default(),
            tasks: TaskTracker::new(),
        })
    }

    /// Buys, or says why not. The same purchase may be asked for again at any time, and is sold
    /// once.
    ///
    /// # Cancel safety
    /// Dropped, the purchase goes on to its end: the deduction runs in a task of its own, since a
    /// drop during COMMIT would let go of the lock while the commit is on its way.
    pub async fn purchase(self: &Arc<Self>, purchase: Purchase) -> Result<Answer, FlowError> {
        let begun = clock::now();
        let (activity, known) = self.dedupe(&purchase).await?;
        let order = match known {
            dedupe::Known::New(order) => order,
            dedupe::Known::Ended(ending) => return Ok(Answer::Ended(ending)),
        };
        if let Err(refusal) = self.limit(&activity, &order).await {
            return Ok(Answer::Limited(refusal));
        }
        let strategy = self.strategy(&activity)?;
        if let Some(ending) = self.sold_out.recall(&activity.id, &order.lines, begun) {
            // A hold that is not booked yet is not sold out to its own buyer: the strategy answers
            // what it comes to. So it does where it cannot be asked.
            if let Ok(false) = strategy.may_hold(&activity.id, &order).await {
                return Ok(Answer::Ended(ending));
            }
        }
        let flow = Arc::clone(self);
        let task = self.tasks.spawn(async move {
            let restocks = flow.sold_out.restocks();
            let lines = order.lines.clone();
            let ending = flow
                .combiner
                .deduct(&flow.tasks, strategy, &activity, order)
                .await;
            match &ending {
                Ok(Ending::SoldOut { sku, left }) => {
                    flow.sold_out.remember(&activity.id, sku, *left, restocks);
                }
                Ok(Ending::Booked { .. } | Ending::Accepted(_)) => {
                    flow.sold_out.sold(&activity.id, &lines);
                }
                // What was held for it may have been given back.
                Ok(Ending::AlreadyPurchased(_) | Ending::Abandoned) => {
                    flow.sold_out.forget(&activity.id);
                }
                Ok(
                    Ending::Replayed(_)
                    | Ending::KeyReused
                    | Ending::NotOpen { .. }
                    | Ending::Paused
                    | Ending::Ended { .. }
                    | Ending::UnknownSku(_)
                    | Ending::Busy(_)
                    | Ending::Recovering,
                )
                | Err(_) => {}
            }
            ending
        });
        match task.await {
            Ok(Ok(sold_out @ Ending::SoldOut { .. })) => {
                let known = self.known_by_now(&purchase).await?;
                Ok(Answer::Ended(known.unwrap_or(sold_out)))
            }
            Ok(ending) => Ok(Answer::Ended(ending?)),
            Err(panicked) => Err(FlowError::Deduct(DeductError::Unknown {
                server: "service",
                reason: panicked.to_string(),
            })),
        }
    }

    /// The activity's strategy, opened.
    fn strategy(&self, activity: &Activity) -> Result<Arc<dyn Deduct>, FlowError> {
        match self.app.strategy(&activity.strategy) {
            Opened::Here(strategy) => Ok(strategy),
            Opened::Missing(why) => Err(FlowError::StrategyMissing {
                strategy: activity.strategy.clone(),
                why,
            }),
        }
    }

    /// Waits for what is in flight, at most `wait`. `false`: something was still at work.
    pub async fn drain(&self, wait: Duration) -> bool {
        self.tasks.close();
        self.combiner.finish();
        tokio::time::timeout(wait, self.tasks.wait()).await.is_ok()
    }
}
