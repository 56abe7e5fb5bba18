//! A request to create an activity, checked once.

use std::str::FromStr;

use serde::{Deserialize, Deserializer};

use crate::clock;
use crate::http::error::Problem;
use crate::sale::{
    Activity, ActivityId, ActivityState, Allocation, Booking, Bucket, GuardMode, InvalidBucket,
    InvalidId, Limits, LockSettings, STOCK_MAX, Sku, Watchdog,
};
use crate::strategy::{Kind, Strategy};

/// A sale lasts a day unless it is said.
const SALE_MS: i64 = 24 * 3600 * 1000;
/// A buyer has a quarter of an hour to pay unless it is said.
const PAY_WINDOW_S: i64 = 15 * 60;
const PAY_WINDOW_S_MAX: i64 = 30 * 24 * 3600;
/// Units one user may buy unless it is said.
const UNITS_PER_USER: i64 = 10;
/// Long enough for a stalled disk, short enough that a dead holder keeps nobody for long.
const LOCK_TTL_MS: i64 = 10_000;
/// Below what a buyer's client waits.
const LOCK_WAIT_MS: i64 = 5_000;
/// SKUs of one activity: an audit and a warm-up stay one short call.
const SKUS_MAX: usize = 100;
/// The end of the year 9998, in Unix milliseconds: the last pay window is then over in 9999, the
/// last year that RFC 3339 can write.
const TIME_MS_MAX: i64 = 253_370_764_799_999;
/// Purchases in one critical section.
const BATCH_MAX: i64 = 256;

/// A sale to be.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct CreateActivity {
    /// A name of `GET /v1/strategies`.
    #[schema(example = "db-conditional-update")]
    strategy: String,
    skus: Vec<CreateSku>,
    /// RFC 3339; now if it is left out.
    opens_at: Option<String>,
    /// RFC 3339; 24 hours after `opens_at` if it is left out.
    closes_at: Option<String>,
    /// Seconds a buyer may take to pay: 1 to 2,592,000, 900 if it is left out.
    pay_window_s: Option<i64>,
    /// Most units one user may buy: 10 if it is left out.
    units_per_user_max: Option<i64>,
    /// `none`, `lease` or `fence` (the default); for lock strategies only.
    guard: Option<String>,
    /// Purchases that may share one critical section: 1 (the default) to 256.
    batch_max: Option<i64>,
    /// `sync` (the default): booked before the answer. `async`: answered 202 once it is held, and
    /// booked after; for `redis-lua` only.
    booking: Option<String>,
    lock: Option<CreateLock>,
    /// Token buckets. Those that are left out have the sizes of the README; null is no limit.
    #[serde(default)]
    #[schema(value_type = Option<CreateLimits>)]
    limits: Setting<CreateLimits>,
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct CreateSku {
    sku: String,
    /// Units for sale: 1 to 1,000,000,000.
    stock: i64,
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct CreateLock {
    /// Length of a lease in milliseconds: 100 to 300,000, 10,000 if it is left out.
    ttl_ms: Option<i64>,
    /// Longest wait in milliseconds: 1 to 60,000, 5,000 if it is left out.
    wait_ms: Option<i64>,
    /// `on` (the default): the lease is renewed while its holder works.
    watchdog: Option<String>,
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct CreateLimits {
    /// 10 at once and one a second if it is left out; null is no limit.
    #[serde(default)]
    #[schema(value_type = Option<CreateBucket>)]
    per_user: Setting<CreateBucket>,
    /// 2 x stock at once and 1.2 x stock over the sale if it is left out, but full again after 300
    /// seconds and at least one a second; null is no limit.
    #[serde(default)]
    #[schema(value_type = Option<CreateBucket>)]
    activity: Setting<CreateBucket>,
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct CreateBucket {
    /// Requests at once: 1 to 1,000,000,000.
    capacity: i64,
    /// Requests a second after that: above 0, at most 1,000,000.
    per_s: f64,
}

/// A field that says more by null than by its absence.
#[derive(Debug, Default)]
enum Setting<T> {
    /// It is left out.
    #[default]
    Default,
    /// It is null.
    Off,
    Given(T),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Setting<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let given = Option::<T>::deserialize(deserializer)?;
        Ok(given.map_or(Self::Off, Self::Given))
    }
}

// === impl CreateActivity ===

impl CreateActivity {
    pub(super) fn into_activity(
        self,
        now_ms: i64,
        allow_control: bool,
    ) -> Result<Activity, Problem> {
        let strategy = Strategy::parse(&self.strategy)?;
        let guard = guard(strategy, self.guard.as_deref(), allow_control)?;
        let booking = booking(strategy, self.booking.as_deref())?;
        let opens_at_ms = time("opens_at", self.opens_at.as_deref(), now_ms)?;
        let closes_at_ms = time(
            "closes_at",
            self.closes_at.as_deref(),
            opens_at_ms.saturating_add(SALE_MS),
        )?;
        if closes_at_ms <= opens_at_ms {
            return Err(Problem::invalid(format!(
                "closes_at must be after opens_at, which is {}",
                clock::rfc3339(opens_at_ms)
            )));
        }
        if opens_at_ms < 0 || closes_at_ms > TIME_MS_MAX {
            return Err(Problem::invalid(
                "a sale is between the years 1970 and 9998; give other opens_at and closes_at",
            ));
        }
        let skus = skus(self.skus)?;
        let lock = lock_settings(self.lock)?;
        long_enough(strategy, &lock)?;
        Ok(Activity {
            id: ActivityId::generate(),
            state: ActivityState::Draft,
            strategy: strategy.name(),
            guard,
            batch_max: batch_max(self.batch_max)?,
            booking,
            lock,
            limits: limits(self.limits, &skus, closes_at_ms - opens_at_ms)?,
            opens_at_ms,
            closes_at_ms,
            pay_window_s: within(
                "pay_window_s",
                self.pay_window_s,
                PAY_WINDOW_S,
                1,
                PAY_WINDOW_S_MAX,
            )?,
            units_per_user_max: within(
                "units_per_user_max",
                self.units_per_user_max,
                UNITS_PER_USER,
                1,
                STOCK_MAX,
            )?,
            fence_generation: 0,
            gate_epoch: 0,
            gate_run_id: String::new(),
            skus,
        })
    }
}

pub(super) fn batch_max(given: Option<i64>) -> Result<i64, Problem> {
    within("batch_max", given, 1, 1, BATCH_MAX)
}

/// The guard of a lock; the others have none, and the control has nothing that could be checked.
pub(super) fn guard(
    strategy: Strategy,
    given: Option<&str>,
    allow_control: bool,
) -> Result<GuardMode, Problem> {
    let given = given.map(|text| named("guard", text)).transpose()?;
    match strategy.entry().kind {
        Kind::Control if !allow_control => Err(Problem::invalid(
            "no-lock oversells on purpose; it is refused unless the service was started with --allow-control",
        )),
        Kind::Lock => match given.unwrap_or(GuardMode::Fence) {
            GuardMode::None if !allow_control => Err(Problem::invalid(
                "guard none trusts a lock that may have lapsed; it is refused unless the service was started with --allow-control",
            )),
            guard @ (GuardMode::None | GuardMode::Lease | GuardMode::Fence) => Ok(guard),
        },
        Kind::Control => match given {
            None | Some(GuardMode::None) => Ok(GuardMode::None),
            Some(GuardMode::Lease | GuardMode::Fence) => Err(Problem::invalid(
                "no-lock has no lease and no token: its guard is none",
            )),
        },
        Kind::Transaction | Kind::Gate => match given {
            None => Ok(GuardMode::None),
            Some(_) => Err(Problem::invalid(format!(
                "{} takes no lock, so there is nothing to guard; leave guard out",
                strategy.name()
            ))),
        },
    }
}

/// Only a gate can promise before the database knows.
pub(super) fn booking(strategy: Strategy, given: Option<&str>) -> Result<Booking, Problem> {
    let booking = match given {
        None => Booking::Sync,
        Some(text) => named("booking", text)?,
    };
    match (booking, strategy.entry().kind) {
        (Booking::Sync, _) | (Booking::Async, Kind::Gate) => Ok(booking),
        (Booking::Async, Kind::Lock | Kind::Transaction | Kind::Control) => {
            Err(Problem::invalid(format!(
                "booking async is for redis-lua only: {} sells in the database, so there is nothing to accept before it is booked; use sync",
                strategy.name()
            )))
        }
    }
}

fn skus(given: Vec<CreateSku>) -> Result<Vec<Allocation>, Problem> {
    if given.is_empty() || given.len() > SKUS_MAX {
        return Err(Problem::invalid(format!(
            "skus must name 1 to {SKUS_MAX} SKUs; it names {}",
            given.len()
        )));
    }
    let mut skus: Vec<Allocation> = Vec::with_capacity(given.len());
    for CreateSku { sku, stock } in given {
        let sku: Sku = sku.parse()?;
        if !(1..=STOCK_MAX).contains(&stock) {
            return Err(Problem::invalid(format!(
                "stock of {sku} is {stock}; it must be 1 to {STOCK_MAX}"
            )));
        }
        if skus.iter().any(|a| a.sku == sku) {
            return Err(Problem::invalid(format!(
                "skus names {sku} twice; give each SKU once"
            )));
        }
        skus.push(Allocation { sku, total: stock });
    }
    skus.sort_by(|a, b| a.sku.cmp(&b.sku));
    Ok(skus)
}

fn lock_settings(given: Option<CreateLock>) -> Result<LockSettings, Problem> {
    let given = given.unwrap_or(CreateLock {
        ttl_ms: None,
        wait_ms: None,
        watchdog: None,
    });
    Ok(LockSettings {
        ttl_ms: within("lock.ttl_ms", given.ttl_ms, LOCK_TTL_MS, 100, 300_000)?,
        wait_ms: within("lock.wait_ms", given.wait_ms, LOCK_WAIT_MS, 1, 60_000)?,
        watchdog: match given.watchdog.as_deref() {
            None => Watchdog::On,
            Some(text) => named("lock.watchdog", text)?,
        },
    })
}

/// Refuses a lease that the strategy's lock cannot keep.
pub(super) fn long_enough(strategy: Strategy, lock: &LockSettings) -> Result<(), Problem> {
    let min = strategy.lease_ms_min();
    if lock.ttl_ms >= min {
        return Ok(());
    }
    Err(Problem::invalid(format!(
        "lock.ttl_ms is {}; for {} it must be at least {min}: three times what one node may take to answer",
        lock.ttl_ms,
        strategy.name()
    )))
}

/// Where the sizes are left out, they follow from what is sold and for how long.
fn limits(
    given: Setting<CreateLimits>,
    skus: &[Allocation],
    sale_ms: i64,
) -> Result<Limits, Problem> {
    let given = match given {
        Setting::Off => return Ok(Limits::default()),
        Setting::Given(given) => given,
        Setting::Default => CreateLimits {
            per_user: Setting::Default,
            activity: Setting::Default,
        },
    };
    let for_activity = || Bucket::for_activity(skus, sale_ms);
    Ok(Limits {
        per_user: bucket("per_user", given.per_user, Bucket::per_user)?,
        activity: bucket("activity", given.activity, for_activity)?,
    })
}

fn bucket(
    name: &str,
    given: Setting<CreateBucket>,
    default: impl FnOnce() -> Bucket,
) -> Result<Option<Bucket>, Problem> {
    match given {
        Setting::Default => Ok(Some(default())),
        Setting::Off => Ok(None),
        Setting::Given(CreateBucket { capacity, per_s }) => match Bucket::new(capacity, per_s) {
            Ok(bucket) => Ok(Some(bucket)),
            Err(why @ (InvalidBucket::Capacity(_) | InvalidBucket::PerS(_))) => {
                Err(Problem::invalid(format!("limits.{name}.{why}")))
            }
            Err(why @ InvalidBucket::FillsTooSlowly { .. }) => {
                Err(Problem::invalid(format!("limits.{name} {why}")))
            }
        },
    }
}

fn named<T: FromStr<Err = InvalidId>>(name: &str, text: &str) -> Result<T, Problem> {
    text.parse()
        .map_err(|error: InvalidId| Problem::invalid(format!("{name} {}", error.problem)))
}

fn time(name: &str, given: Option<&str>, default: i64) -> Result<i64, Problem> {
    match given {
        None => Ok(default),
        Some(text) => {
            clock::parse_rfc3339(text).map_err(|why| Problem::invalid(format!("{name}: {why}")))
        }
    }
}

fn within(
    name: &str,
    given: Option<i64>,
    default: i64,
    min: i64,
    max: i64,
) -> Result<i64, Problem> {
    let value = given.unwrap_or(default);
    if (min..=max).contains(&value) {
        Ok(value)
    } else {
        Err(Problem::invalid(format!(
            "{name} is {value}; it must be {min} to {max}"
        )))
    }
}
