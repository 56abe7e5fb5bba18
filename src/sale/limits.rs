//! How many requests to buy a sale lets in: the token buckets of an activity, and the sizes they
//! have unless an operator says otherwise.

use serde::{Deserialize, Serialize};

use super::Allocation;

/// Most tokens of one bucket. More at once than this no service answers.
pub const CAPACITY_MAX: u32 = 1_000_000_000;
/// Most tokens a second.
pub const PER_S_MAX: f64 = 1e6;
/// Longest time a bucket may take to fill: a hundred years. Beyond that, nanoseconds since a start
/// do not fit into 64 bits, and a mistake is likelier than an intention.
const FILL_S_MAX: f64 = 100.0 * 365.0 * 24.0 * 3600.0;

/// The default of an activity's bucket: tokens at once, per unit of stock.
const CAPACITY_PER_UNIT: u32 = 2;
/// The default of an activity's bucket: tokens over the whole sale, per unit of stock.
const TOKENS_PER_UNIT: f64 = 1.2;
/// The floor of that default: an empty bucket is full again after five minutes. A sale of a day
/// would otherwise keep the crowd of its first second out for most of that day.
const REFILL_S_MAX: f64 = 300.0;
/// The other floor, for a sale of few units: one request a second.
const PER_S_MIN: f64 = 1.0;
/// The default of a user's bucket: an impatient buyer's clicks, and one a second after that, which
/// is how soon any refusal asks a client to come again.
const PER_USER: Bucket = Bucket {
    capacity: 10,
    per_s: 1.0,
};

/// A token bucket: how many at once, and how many a second after that.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bucket {
    pub capacity: u32,
    pub per_s: f64,
}

/// The rate limits of an activity; `None` means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    #[serde(default)]
    pub per_user: Option<Bucket>,
    #[serde(default)]
    pub activity: Option<Bucket>,
}

/// A bucket that would not limit, never let anybody in, or could not be counted.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum InvalidBucket {
    #[error("capacity is {0}; it must be 1 to {CAPACITY_MAX}")]
    Capacity(i64),
    #[error("per_s is {0}; it must be above 0 and at most {PER_S_MAX}")]
    PerS(f64),
    #[error(
        "takes more than a hundred years to fill with {capacity} at {per_s} a second; \
         lower capacity, or raise per_s"
    )]
    FillsTooSlowly { capacity: i64, per_s: f64 },
}

// === impl Bucket ===

impl Bucket {
    pub fn new(capacity: i64, per_s: f64) -> Result<Self, InvalidBucket> {
        let tokens = u32::try_from(capacity)
            .ok()
            .filter(|tokens| (1..=CAPACITY_MAX).contains(tokens))
            .ok_or(InvalidBucket::Capacity(capacity))?;
        if !(per_s.is_finite() && per_s > 0.0 && per_s <= PER_S_MAX) {
            return Err(InvalidBucket::PerS(per_s));
        }
        let bucket = Self {
            capacity: tokens,
            per_s,
        };
        if bucket.fill_s() > FILL_S_MAX {
            return Err(InvalidBucket::FillsTooSlowly { capacity, per_s });
        }
        Ok(bucket)
    }

    /// The default of every user's bucket.
    pub fn per_user() -> Self {
        PER_USER
    }

    /// The default for a sale of these units and this length: `2 × stock` at once, and
    /// `1.2 × stock` over the sale, but full again after five minutes and at least one a second.
    pub fn for_activity(skus: &[Allocation], sale_ms: i64) -> Self {
        let stock: f64 = skus.iter().map(|a| a.total as f64).sum();
        let capacity = (stock * f64::from(CAPACITY_PER_UNIT)).clamp(1.0, f64::from(CAPACITY_MAX));
        // A sale of no length has no rate; one of a millisecond is the shortest there is.
        let sale_s = (sale_ms as f64 / 1000.0).max(0.001);
        let per_s = (stock * TOKENS_PER_UNIT / sale_s)
            .max(capacity / REFILL_S_MAX)
            .clamp(PER_S_MIN, PER_S_MAX);
        Self {
            // A whole number within the range of u32 since the clamp.
            capacity: capacity as u32,
            per_s,
        }
    }

    /// Seconds from empty to full.
    pub fn fill_s(self) -> f64 {
        f64::from(self.capacity) / self.per_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1000;
    const DAY: i64 = 24 * 3600 * SECOND;

    fn stock(totals: &[i64]) -> Vec<Allocation> {
        let skus = totals.iter().enumerate();
        skus.map(|(i, total)| Allocation {
            sku: format!("sku-{i}").parse().expect("a SKU"),
            total: *total,
        })
        .collect()
    }

    #[test]
    fn a_short_sale_gets_twice_its_stock_and_then_a_fifth_more_than_it() {
        let bucket = Bucket::for_activity(&stock(&[60, 40]), 10 * SECOND);
        assert_eq!((bucket.capacity, bucket.per_s), (200, 12.0));
        // An hour of a large sale is still above the floors.
        let bucket = Bucket::for_activity(&stock(&[300]), 3 * 60 * SECOND);
        assert_eq!((bucket.capacity, bucket.per_s), (600, 2.0));
    }

    #[test]
    fn a_slow_sale_does_not_lock_buyers_out_for_hours() {
        for total in [1, 2, 100, 300, 1_000_000] {
            for sale_ms in [DAY, 365 * DAY, i64::MAX] {
                let bucket = Bucket::for_activity(&stock(&[total]), sale_ms);
                assert!(bucket.per_s >= 1.0, "{total} in {sale_ms} ms: {bucket:?}");
                assert!(
                    bucket.fill_s() <= REFILL_S_MAX,
                    "{total} in {sale_ms} ms: {bucket:?}"
                );
            }
        }
    }

    #[test]
    fn every_default_is_a_bucket_that_an_operator_may_ask_for() {
        for totals in [&[1][..], &[1_000_000_000], &[1_000_000_000; 100], &[0], &[]] {
            for sale_ms in [i64::MIN, 0, 1, SECOND, DAY, i64::MAX] {
                let bucket = Bucket::for_activity(&stock(totals), sale_ms);
                let asked = Bucket::new(i64::from(bucket.capacity), bucket.per_s);
                assert_eq!(asked, Ok(bucket), "{totals:?} in {sale_ms} ms");
            }
        }
        assert_eq!(
            Bucket::new(i64::from(PER_USER.capacity), PER_USER.per_s),
            Ok(PER_USER)
        );
    }

    #[test]
    fn what_cannot_limit_or_never_lets_in_is_refused() {
        for capacity in [0, -1, 1_000_000_001, (1 << 53) - 1, i64::MAX, i64::MIN] {
            let refused = Bucket::new(capacity, 1.0);
            assert_eq!(refused, Err(InvalidBucket::Capacity(capacity)));
        }
        for per_s in [0.0, -1.0, 1e6 + 1.0, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(Bucket::new(1, per_s), Err(InvalidBucket::PerS(per_s)));
        }
        let nan = Bucket::new(1, f64::NAN);
        assert!(matches!(nan, Err(InvalidBucket::PerS(per_s)) if per_s.is_nan()));
        let slow = Bucket::new(1_000_000_000, 1.0 / 86_400.0);
        assert!(matches!(slow, Err(InvalidBucket::FillsTooSlowly { .. })));
        for (capacity, per_s) in [(1, 1.0 / 86_400.0), (1_000_000_000, 1e6), (1, 1e6)] {
            assert!(Bucket::new(capacity, per_s).is_ok(), "{capacity} {per_s}");
        }
    }
}
