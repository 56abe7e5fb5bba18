//! Buckets of this process alone, counted by the crate `governor` on the monotonic clock.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use governor::clock::{Clock, DefaultClock};
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::keyed::ShrinkableKeyedStateStore;
use governor::state::{InMemoryState, NotKeyed, StateStore};
use governor::{Quota, RateLimiter};

use super::{Refusal, Scope};
use crate::sale::{Activity, ActivityId, Bucket, Limits, UserId};

/// Activities whose buckets are kept; past that the one asked for longest ago goes, and would be
/// full again.
const ACTIVITIES_MAX: usize = 1_000;
/// Users of one activity whose bucket is not full. Past twice that, who came is forgotten, some
/// 100 MB, and all buckets are full again.
const USERS_MAX: usize = 500_000;
/// Users after which those whose bucket is full again are dropped, for the first time.
const USERS_SWEPT: usize = 10_000;
/// Longest time from empty to full, in nanoseconds: what is counted from the process's start must
/// fit into 64 bits. Creation refuses what is longer.
const FILL_NS_MAX: u64 = 1 << 62;

/// The buckets of every activity that was asked for.
#[derive(Debug)]
pub(super) struct LocalBuckets<C: Clock = DefaultClock> {
    clock: C,
    kept: Mutex<Kept<C>>,
}

#[derive(Debug)]
struct Kept<C: Clock> {
    activities: HashMap<ActivityId, Entry<C>>,
    /// Counts what is asked for, so that the one asked for longest ago is known.
    asked: u64,
}

#[derive(Debug)]
struct Entry<C: Clock> {
    buckets: Arc<Buckets<C>>,
    asked: u64,
}

/// One bucket, or one for each key.
type Limit<K, S, C> = RateLimiter<K, S, C, NoOpMiddleware<<C as Clock>::Instant>>;

/// The buckets of one activity.
#[derive(Debug)]
struct Buckets<C: Clock> {
    per_user: Option<PerUser<C>>,
    activity: Option<(Bucket, Limit<NotKeyed, InMemoryState, C>)>,
}

#[derive(Debug)]
struct PerUser<C: Clock> {
    bucket: Bucket,
    /// How long a token takes to come back.
    token: Nanos,
    limit: Limit<UserId, Users, C>,
    /// The state of `limit`, for what governor cannot do with it: giving a token back.
    users: Users,
}

/// When each user's bucket is full again, since the start. Clones share it.
#[derive(Debug, Clone)]
struct Users(Arc<Mutex<Seen>>);

#[derive(Debug)]
struct Seen {
    full_at: HashMap<UserId, Nanos>,
    /// How many are swept: twice as many as were left by the last sweep.
    sweep_at: usize,
}

// === impl LocalBuckets ===

impl Default for LocalBuckets {
    fn default() -> Self {
        Self::new(DefaultClock::default())
    }
}

impl<C: Clock + Clone> LocalBuckets<C> {
    fn new(clock: C) -> Self {
        Self {
            clock,
            kept: Mutex::new(Kept {
                activities: HashMap::new(),
                asked: 0,
            }),
        }
    }

    /// Takes a token of the user's bucket and one of the activity's, or none.
    pub(super) fn check(&self, activity: &Activity, user: &UserId) -> Result<(), Refusal> {
        self.buckets(&activity.id, &activity.limits)
            .check(&self.clock, user)
    }

    fn buckets(&self, id: &ActivityId, limits: &Limits) -> Arc<Buckets<C>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.asked += 1;
        let asked = kept.asked;
        if let Some(entry) = kept.activities.get_mut(id) {
            entry.asked = asked;
            return Arc::clone(&entry.buckets);
        }
        if kept.activities.len() >= ACTIVITIES_MAX {
            let oldest = kept.activities.iter().min_by_key(|(_, e)| e.asked);
            if let Some(oldest) = oldest.map(|(id, _)| id.clone()) {
                kept.activities.remove(&oldest);
            }
        }
        let buckets = Arc::new(Buckets::new(limits, &self.clock));
        let entry = Entry {
            buckets: Arc::clone(&buckets),
            asked,
        };
        kept.activities.insert(id.clone(), entry);
        buckets
    }
}

// === impl Buckets ===

impl<C: Clock + Clone> Buckets<C> {
    fn new(limits: &Limits, clock: &C) -> Self {
        Self {
            per_user: limits.per_user.map(|bucket| PerUser::new(bucket, clock)),
            activity: limits.activity.map(|bucket| {
                let state = InMemoryState::default();
                (bucket, Limit::new(quota(bucket), state, clock.clone()))
            }),
        }
    }

    fn check(&self, clock: &C, user: &UserId) -> Result<(), Refusal> {
        if let Some(per_user) = &self.per_user {
            per_user.take(clock, user)?;
        }
        let Some((bucket, limit)) = &self.activity else {
            return Ok(());
        };
        limit.check().map_err(|until| {
            if let Some(per_user) = &self.per_user {
                per_user.give_back(user);
            }
            Refusal {
                scope: Scope::Activity,
                bucket: *bucket,
                retry_after: until.wait_time_from(clock.now()),
            }
        })
    }
}

// === impl PerUser ===

impl<C: Clock + Clone> PerUser<C> {
    fn new(bucket: Bucket, clock: &C) -> Self {
        let quota = quota(bucket);
        let users = Users(Arc::new(Mutex::new(Seen {
            full_at: HashMap::new(),
            sweep_at: USERS_SWEPT,
        })));
        Self {
            bucket,
            token: quota.replenish_interval().into(),
            limit: Limit::new(quota, users.clone(), clock.clone()),
            users,
        }
    }

    fn take(&self, clock: &C, user: &UserId) -> Result<(), Refusal> {
        if self.users.is_to_be_swept() {
            self.limit.retain_recent();
            self.users.swept();
        }
        self.limit.check_key(user).map_err(|until| Refusal {
            scope: Scope::User,
            bucket: self.bucket,
            retry_after: until.wait_time_from(clock.now()),
        })
    }

    /// What the activity's bucket refused costs its user nothing.
    fn give_back(&self, user: &UserId) {
        if let Some(full_at) = self.users.lock().full_at.get_mut(user) {
            *full_at = full_at.saturating_sub(self.token);
        }
    }
}

// === impl Users ===

impl Users {
    fn is_to_be_swept(&self) -> bool {
        let seen = self.lock();
        seen.full_at.len() >= seen.sweep_at
    }

    /// Those whose bucket is full have been dropped.
    fn swept(&self) {
        let mut seen = self.lock();
        if seen.full_at.len() > USERS_MAX {
            tracing::warn!("more than {USERS_MAX} users buy at once: their rate limits begin anew");
            seen.full_at.clear();
        }
        seen.sweep_at = (seen.full_at.len() * 2).max(USERS_SWEPT);
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StateStore for Users {
    type Key = UserId;

    fn measure_and_replace<T, F, E>(&self, user: &UserId, measure: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        let mut seen = self.lock();
        let (outcome, full_at) = measure(seen.full_at.get(user).copied())?;
        seen.full_at.insert(user.clone(), full_at);
        Ok(outcome)
    }
}

impl ShrinkableKeyedStateStore<UserId> for Users {
    fn retain_recent(&self, drop_below: Nanos) {
        self.lock()
            .full_at
            .retain(|_, full_at| *full_at > drop_below);
    }

    fn len(&self) -> usize {
        self.lock().full_at.len()
    }

    fn is_empty(&self) -> bool {
        self.lock().full_at.is_empty()
    }
}

/// As governor counts it: the time one token takes, and how many there are.
fn quota(bucket: Bucket) -> Quota {
    let capacity = NonZeroU32::new(bucket.capacity).unwrap_or(NonZeroU32::MIN);
    // Saturates, and what is no number is 0.
    let period = (1e9 / bucket.per_s) as u64;
    let period = period.clamp(1, FILL_NS_MAX / u64::from(capacity.get()));
    Quota::with_period(Duration::from_nanos(period))
        // Only a period of 0 has none.
        .unwrap_or_else(|| Quota::per_second(capacity))
        .allow_burst(capacity)
}

#[cfg(test)]
mod tests {
    use governor::clock::FakeRelativeClock;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const DAY: Duration = Duration::from_secs(86_400);

    /// Buckets of these sizes, on a clock that only the test moves.
    fn buckets(
        per_user: Option<(i64, f64)>,
        activity: Option<(i64, f64)>,
    ) -> (Buckets<FakeRelativeClock>, FakeRelativeClock) {
        let clock = FakeRelativeClock::default();
        let bucket = |(capacity, per_s)| Bucket::new(capacity, per_s).expect("a bucket");
        let limits = Limits {
            per_user: per_user.map(bucket),
            activity: activity.map(bucket),
        };
        (Buckets::new(&limits, &clock), clock)
    }

    fn user(n: u32) -> UserId {
        format!("user-{n}").parse().expect("a user")
    }

    /// How many of `n` requests of one user are let in now.
    fn let_in(buckets: &Buckets<FakeRelativeClock>, clock: &FakeRelativeClock, n: u32) -> u32 {
        let let_in = (0..n).filter(|_| buckets.check(clock, &user(1)).is_ok());
        u32::try_from(let_in.count()).expect("not more than n")
    }

    #[test]
    fn what_the_activity_refuses_costs_the_user_nothing() {
        let (buckets, clock) = buckets(Some((2, 0.001)), Some((1, 1.0)));
        assert!(buckets.check(&clock, &user(9)).is_ok());
        for _ in 0..10 {
            let refused = buckets.check(&clock, &user(1)).expect_err("it is empty");
            assert_eq!(refused.scope, Scope::Activity);
            assert_eq!(refused.retry_after, SECOND);
        }
        for _ in 0..2 {
            clock.advance(SECOND);
            assert_eq!(buckets.check(&clock, &user(1)), Ok(()));
        }
        clock.advance(SECOND);
        let refused = buckets.check(&clock, &user(1)).expect_err("both were used");
        assert_eq!(refused.scope, Scope::User);
        // The user's bucket is asked first, so the activity's has its token still.
        assert_eq!(buckets.check(&clock, &user(2)), Ok(()));
    }

    #[test]
    fn one_a_day_lets_in_one_a_day() {
        let (buckets, clock) = buckets(None, Some((1, 1.0 / 86_400.0)));
        for _ in 0..3 {
            assert_eq!(let_in(&buckets, &clock, 1_000), 1);
            clock.advance(DAY - SECOND);
            let refused = buckets.check(&clock, &user(1)).expect_err("a second early");
            assert!(refused.retry_after <= SECOND, "{refused:?}");
            clock.advance(SECOND);
        }
        clock.advance(DAY * 365);
        assert_eq!(let_in(&buckets, &clock, 1_000), 1, "no more than it holds");
    }

    #[test]
    fn a_million_a_second_lets_in_a_million_a_second() {
        let (buckets, clock) = buckets(None, Some((1, 1e6)));
        assert_eq!(let_in(&buckets, &clock, 10), 1);
        let mut total = 0;
        for _ in 0..1_000 {
            clock.advance(Duration::from_micros(1));
            total += let_in(&buckets, &clock, 3);
        }
        assert_eq!(total, 1_000);
    }

    #[test]
    fn the_largest_and_the_slowest_bucket_there_is_can_be_counted() {
        for (capacity, per_s) in [
            (1_000_000_000, 1e6),
            (1_000_000_000, 0.4),
            (1, 1.0 / (99.0 * 365.0 * 86_400.0)),
            (100_000, 0.000_04),
        ] {
            let (buckets, clock) = buckets(Some((capacity, per_s)), Some((capacity, per_s)));
            let n = u32::try_from(capacity).expect("it fits").min(1_000);
            for _ in 0..3 {
                assert!(let_in(&buckets, &clock, n) > 0, "{capacity} {per_s}");
                clock.advance(DAY * 365 * 100);
            }
        }
        // A row of an earlier version may have a rate that is not allowed any more.
        for per_s in [f64::MIN_POSITIVE, 1e-300, f64::MAX] {
            let row = Bucket {
                capacity: 1_000_000,
                per_s,
            };
            let limits = Limits {
                per_user: Some(row),
                activity: Some(row),
            };
            let clock = FakeRelativeClock::default();
            let buckets = Buckets::new(&limits, &clock);
            assert_eq!(let_in(&buckets, &clock, 10), 10, "{per_s}");
        }
    }

    #[test]
    fn users_whose_bucket_is_full_again_are_forgotten_and_the_others_are_not() {
        let (buckets, clock) = buckets(Some((1, 1.0)), None);
        let swept = u32::try_from(USERS_SWEPT).expect("it fits");
        for n in 0..swept {
            assert_eq!(buckets.check(&clock, &user(n)), Ok(()));
        }
        clock.advance(SECOND * 2);
        assert_eq!(buckets.check(&clock, &user(swept)), Ok(()));
        let per_user = buckets.per_user.as_ref().expect("there is one");
        assert_eq!(per_user.users.len(), 1);
        assert!(buckets.check(&clock, &user(swept)).is_err());
        for n in 0..swept {
            assert_eq!(buckets.check(&clock, &user(n)), Ok(()));
        }
        assert_eq!(buckets.check(&clock, &user(swept + 1)), Ok(()));
        assert!(buckets.check(&clock, &user(7)).is_err(), "it is not full");
    }

    #[test]
    fn the_activities_kept_are_not_more_than_there_is_room_for() {
        let clock = FakeRelativeClock::default();
        let local = LocalBuckets::new(clock.clone());
        let limits = Limits {
            per_user: None,
            activity: Some(Bucket::new(1, 1.0).expect("a bucket")),
        };
        let first = ActivityId::generate();
        let second = ActivityId::generate();
        assert_eq!(
            local.buckets(&first, &limits).check(&clock, &user(1)),
            Ok(())
        );
        assert_eq!(
            local.buckets(&second, &limits).check(&clock, &user(1)),
            Ok(())
        );
        for _ in 2..ACTIVITIES_MAX {
            local.buckets(&ActivityId::generate(), &limits);
        }
        assert!(
            local
                .buckets(&first, &limits)
                .check(&clock, &user(1))
                .is_err()
        );
        local.buckets(&ActivityId::generate(), &limits);
        assert_eq!(
            local.kept.lock().expect("no panic").activities.len(),
            ACTIVITIES_MAX
        );
        // The second was asked for longest ago.
        assert!(
            local
                .buckets(&first, &limits)
                .check(&clock, &user(1))
                .is_err()
        );
        assert_eq!(
            local.buckets(&second, &limits).check(&clock, &user(1)),
            Ok(())
        );
    }
}
