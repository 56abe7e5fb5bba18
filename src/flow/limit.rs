//! The step that limits: who may go on, and whether anybody was kept out while there was stock.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use super::Flow;
use crate::limit::{Refusal, Scope};
use crate::order::NewOrder;
use crate::sale::{Activity, ActivityId};

/// Activities of which it is remembered that the log has told it.
const TOLD_MAX: usize = 1_000;

/// Activities whose own bucket kept buyers out while there was stock, as the log has told.
#[derive(Debug, Default)]
pub(super) struct Told(Mutex<HashSet<ActivityId>>);

/// What `/metrics` says of the counters below.
pub(super) fn describe() {
    metrics::describe_counter!(
        "flashlock_limited_total",
        "Purchases refused by a token bucket, by bucket (user, activity)."
    );
    metrics::describe_counter!(
        "flashlock_limited_while_stock_left_total",
        "Purchases refused by a token bucket, by bucket (user, activity), though the store had not \
         said that what they ask for is sold out: its last word to this process, since the last \
         restock or sale that this process took part in."
    );
    metrics::describe_counter!(
        "flashlock_limiter_fallback_total",
        "Purchases that the buckets of this process decided on because those in Redis were out of \
         reach."
    );
}

impl Flow {
    /// Lets the purchase on, or says when to come again.
    pub(super) async fn limit(&self, activity: &Activity, order: &NewOrder) -> Result<(), Refusal> {
        let checked = self.app.limiter.check(activity, &order.user).await;
        if let Err(refusal) = &checked {
            let bucket = refusal.scope.as_str();
            metrics::counter!("flashlock_limited_total", "bucket" => bucket).increment(1);
            if !self.sold_out.was_told(&activity.id, &order.lines) {
                metrics::counter!("flashlock_limited_while_stock_left_total", "bucket" => bucket)
                    .increment(1);
                self.tell_operator(activity, refusal);
            }
        }
        checked
    }

    /// Says once per activity that its own bucket keeps buyers out while there is stock. A user's
    /// bucket is there to do that.
    fn tell_operator(&self, activity: &Activity, refusal: &Refusal) {
        match refusal.scope {
            Scope::User => return,
            Scope::Activity => {}
        }
        let mut told = self.told.0.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() >= TOLD_MAX {
            told.clear();
        }
        if told.insert(activity.id.clone()) {
            tracing::info!(
                activity = %activity.id,
                capacity = refusal.bucket.capacity,
                per_s = refusal.bucket.per_s,
                "limits.activity keeps buyers out while there is stock; \
                 see flashlock_limited_while_stock_left_total"
            );
        }
    }
}
