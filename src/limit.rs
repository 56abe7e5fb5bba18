//! May this request go on? Token buckets per user and per activity.
//!
//! In the process itself, or in Redis, where several processes share them. Redis out of reach, the
//! process's own buckets decide: the stock is protected behind them, and a crowd that is let
//! through by several processes at once is still a bounded one.

mod local;
mod shared;

use std::time::Duration;

use crate::sale::{Activity, Bucket, UserId};
use local::LocalBuckets;
use shared::SharedBuckets;

/// Which bucket refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    User,
    Activity,
}

/// Why a request was refused, and when to come again.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Refusal {
    pub scope: Scope,
    /// The bucket that is empty.
    pub bucket: Bucket,
    /// Until it has a token again.
    pub retry_after: Duration,
}

/// The buckets of all activities, as this process asks them.
#[derive(Debug)]
pub struct Limiter {
    local: LocalBuckets,
    shared: Option<SharedBuckets>,
}

// === impl Limiter ===

impl Limiter {
    /// Buckets of this process alone.
    pub fn local() -> Self {
        Self {
            local: LocalBuckets::default(),
            shared: None,
        }
    }

    /// Buckets in the Redis at `url`, shared by all processes that name it. It need not answer
    /// yet.
    ///
    /// # Errors
    /// When `url` is not a Redis URL.
    pub fn shared(url: &str) -> Result<Self, redis::RedisError> {
        Ok(Self {
            local: LocalBuckets::default(),
            shared: Some(SharedBuckets::new(url)?),
        })
    }

    /// Takes a token from the user's bucket and one from the activity's, or from neither. Takes at
    /// most 300 ms, and no time once the shared buckets are known to be out of reach.
    ///
    /// # Cancel safety
    /// Dropped, it may have taken the tokens.
    pub async fn check(&self, activity: &Activity, user: &UserId) -> Result<(), Refusal> {
        let limits = &activity.limits;
        if limits.per_user.is_none() && limits.activity.is_none() {
            return Ok(());
        }
        if let Some(shared) = &self.shared {
            if let Some(decision) = shared.check(activity, user).await {
                return decision;
            }
            metrics::counter!("flashlock_limiter_fallback_total").increment(1);
        }
        self.local.check(activity, user)
    }
}

// === impl Scope ===

impl Scope {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Activity => "activity",
        }
    }
}
