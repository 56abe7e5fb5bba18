//! The way of a purchase: look up, admit, limit, deduct, answer.

mod accept;
pub mod activity;
mod alarm;
mod booking;
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
use crate::clock::{self, Instant};
use crate::deduct::{Contention, Deduct, DeductError, Ending};
use crate::limit::Refusal;
use crate::lock::Terms;
use crate::order::NewOrder;
use crate::sale::{Activity, ActivityId, Purchase, Sku, StrategyName};
use crate::store::{Contended, StoreError};

use combine::Combiner;
use limit::Told;
use sold_out::SoldOutMemory;

/// Longest look-up of a purchase before anything is done for it: the pool and every statement have
/// shorter bounds of their own, so this is for a database that hangs half way.
pub const LOOK_UP_MAX: Duration = Duration::from_secs(10);
/// Longest sale of a purchase, beyond its wait for the lock: every call has a shorter bound of its
/// own, and a handful of them follow each other. A buyer's client waits some 30 s.
pub const DEDUCT_MAX: Duration = Duration::from_secs(10);

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
        metrics::describe_counter!(
            "flashlock_purchase_overtime_total",
            "Purchases that took so long that their buyer was told that the outcome is unknown."
        );
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
    /// once. Answers within [`LOOK_UP_MAX`], the activity's `lock.wait_ms` and [`DEDUCT_MAX`], twice the last
    /// where the gate is asked first.
    ///
    /// # Errors
    /// `Deduct(Unknown)` when the time is over: it goes on to its end, and the same key finds out.
    ///
    /// # Cancel safety
    /// Dropped, the purchase goes on to its end: the deduction runs in a task of its own, since a
    /// drop during COMMIT would let go of the lock while the commit is on its way.
    pub async fn purchase(self: &Arc<Self>, purchase: Purchase) -> Result<Answer, FlowError> {
        if let Some(answer) = in_time(DEDUCT_MAX, self.accept(&purchase)).await? {
            return Ok(answer);
        }
        let begun = clock::now();
        let looked_up = tokio::time::timeout(LOOK_UP_MAX, self.dedupe(&purchase)).await;
        let (activity, known) = looked_up.map_err(|_elapsed| {
            FlowError::Deduct(DeductError::Unavailable {
                server: "database",
                reason: format!("no answer within {} s", LOOK_UP_MAX.as_secs()),
            })
        })??;
        let order = match known {
            dedupe::Known::New(order) => order,
            dedupe::Known::Ended(ending) => return Ok(Answer::Ended(ending)),
        };
        let overtime = Terms::of(&activity).wait + DEDUCT_MAX;
        in_time(overtime, self.sell(&purchase, begun, activity, order)).await
    }

    /// Sells what dedupe found to be new.
    async fn sell(
        self: &Arc<Self>,
        purchase: &Purchase,
        begun: Instant,
        activity: Arc<Activity>,
        order: NewOrder,
    ) -> Result<Answer, FlowError> {
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
        match self.deduct(strategy, activity, order).await? {
            sold_out @ Ending::SoldOut { .. } => {
                let known = self.known_by_now(purchase).await?;
                Ok(Answer::Ended(known.unwrap_or(sold_out)))
            }
            // The gate names a hold, which may yet come to nothing: only the database has orders.
            Ending::AlreadyPurchased(_) => {
                let known = self.known_by_now(purchase).await?;
                let under_way = Ending::Busy(Contention::OtherPurchase);
                Ok(Answer::Ended(known.unwrap_or(under_way)))
            }
            ending => Ok(Answer::Ended(ending)),
        }
    }

    /// Deducts, alone or together with others, and remembers what it tells of the stock. It goes on
    /// to its end though the caller leaves.
    async fn deduct(
        self: &Arc<Self>,
        strategy: Arc<dyn Deduct>,
        activity: Arc<Activity>,
        order: NewOrder,
    ) -> Result<Ending, FlowError> {
        let flow = Arc::clone(self);
        let task = self.tasks.spawn(async move {
            let lines = order.lines.clone();
            let asked = flow.sold_out.restocks();
            let ending = flow
                .combiner
                .deduct(&flow.tasks, strategy, &activity, order)
                .await;
            if let Ok(ending) = &ending {
                flow.sold_out.hear(&activity.id, &lines, ending, asked);
            }
            ending
        });
        match task.await {
            Ok(ending) => Ok(ending?),
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

/// What comes of a purchase within `overtime`; after that its outcome is unknown.
async fn in_time<T>(
    overtime: Duration,
    purchase: impl Future<Output = Result<T, FlowError>>,
) -> Result<T, FlowError> {
    match tokio::time::timeout(overtime, purchase).await {
        Ok(answer) => answer,
        Err(_elapsed) => {
            metrics::counter!("flashlock_purchase_overtime_total").increment(1);
            Err(FlowError::Deduct(DeductError::Unknown {
                server: "service",
                reason: format!("it takes longer than {} s", overtime.as_secs()),
            }))
        }
    }
}
