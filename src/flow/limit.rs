//! Token buckets per user and per activity, local to the process.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use governor::clock::{Clock, DefaultClock};
use governor::{DefaultDirectRateLimiter, DefaultKeyedRateLimiter, Quota, RateLimiter};

use crate::sale::{Activity, ActivityId, Bucket, UserId};

/// Users remembered before those whose bucket is full again are dropped.
const USERS_MAX: usize = 100_000;

/// Why a request was refused, and when to come again.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    /// `user` or `activity`.
    pub bucket: &'static str,
    pub quota: Bucket,
    /// Until the bucket has a token again.
    pub retry_after: Duration,
}

/// The buckets of this process.
#[derive(Debug, Default)]
pub(super) struct Limiter {
    activities: Mutex<HashMap<ActivityId, Arc<Buckets>>>,
}

#[derive(Debug)]
struct Buckets {
    per_user: Option<(Bucket, DefaultKeyedRateLimiter<UserId>)>,
    activity: Option<(Bucket, DefaultDirectRateLimiter)>,
}

// === impl Limiter ===

impl Limiter {
    /// Takes a token of the user's bucket, then one of the activity's.
    pub(super) fn check(&self, activity: &Activity, user: &UserId) -> Result<(), Refusal> {
        if activity.limits.per_user.is_none() && activity.limits.activity.is_none() {
            return Ok(());
        }
        let buckets = self.buckets(activity);
        if let Some((quota, users)) = &buckets.per_user {
            if users.len() > USERS_MAX {
                users.retain_recent();
            }
            users.check_key(user).map_err(|until| Refusal {
                bucket: "user",
                quota: *quota,
                retry_after: until.wait_time_from(DefaultClock::default().now()),
            })?;
        }
        if let Some((quota, all)) = &buckets.activity {
            all.check().map_err(|until| Refusal {
                bucket: "activity",
                quota: *quota,
                retry_after: until.wait_time_from(DefaultClock::default().now()),
            })?;
        }
        Ok(())
    }

    fn buckets(&self, activity: &Activity) -> Arc<Buckets> {
        let mut all = self
            .activities
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let buckets = all.entry(activity.id.clone()).or_insert_with(|| {
            Arc::new(Buckets {
                per_user: activity
                    .limits
                    .per_user
                    .and_then(|bucket| Some((bucket, RateLimiter::keyed(quota(bucket)?)))),
                activity: activity
                    .limits
                    .activity
                    .and_then(|bucket| Some((bucket, RateLimiter::direct(quota(bucket)?)))),
            })
        });
        Arc::clone(buckets)
    }
}

/// `None` for a bucket that creation would have refused.
fn quota(bucket: Bucket) -> Option<Quota> {
    let period = Duration::try_from_secs_f64(1.0 / bucket.per_s).ok()?;
    // A period below the clock's grain would be no limit; one nanosecond is a thousand million a second.
    let period = period.max(Duration::from_nanos(1));
    Some(Quota::with_period(period)?.allow_burst(NonZeroU32::new(bucket.capacity)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_and_fast_buckets_have_a_quota_and_an_empty_one_has_none() {
        let bucket = |capacity, per_s| Bucket { capacity, per_s };
        assert!(quota(bucket(1, 1.0 / 86_400.0)).is_some());
        assert!(quota(bucket(1, 1_000_000.0)).is_some());
        assert!(quota(bucket(0, 1.0)).is_none());
        assert!(quota(bucket(1, 0.0)).is_none());
    }
}
