//! How long answers took: HDR histograms, merged and never averaged.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::run::Quantiles;

/// A quantile with fewer samples beyond it is one lucky or unlucky buyer.
pub const SAMPLES_BEYOND_MIN: f64 = 100.0;
/// Longest time that is told apart, in microseconds: an hour.
const US_MAX: u64 = 3_600_000_000;
/// Digits: a quantile is right to 0.1 %.
const DIGITS: u8 = 3;

/// Times of one kind.
#[derive(Debug, Clone)]
pub struct Times(Histogram<u64>);

impl Times {
    pub fn of(times: impl IntoIterator<Item = Duration>) -> Self {
        let mut histogram =
            Histogram::new_with_bounds(1, US_MAX, DIGITS).expect("bounds that hdrhistogram takes");
        for time in times {
            let us = u64::try_from(time.as_micros()).unwrap_or(US_MAX);
            histogram.saturating_record(us.max(1));
        }
        Self(histogram)
    }

    /// Adds the samples of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.0
            .add(&other.0)
            .expect("both have the same bounds, made in `of` alone");
    }

    /// Quantiles in milliseconds; one without enough samples beyond it is `None`.
    pub fn quantiles(&self) -> Quantiles {
        Quantiles {
            p50: self.quantile(0.50),
            p90: self.quantile(0.90),
            p99: self.quantile(0.99),
            max: (!self.0.is_empty()).then(|| ms(self.0.max())),
        }
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "counts of samples are far below 2^52"
    )]
    fn quantile(&self, q: f64) -> Option<f64> {
        // The small allowance is for 1 - 0.9, which is not exactly 0.1.
        let beyond = self.0.len() as f64 * (1.0 - q) + 1e-6;
        (beyond >= SAMPLES_BEYOND_MIN).then(|| ms(self.0.value_at_quantile(q)))
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "an hour in microseconds is far below 2^52"
)]
fn ms(us: u64) -> f64 {
    us as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn up_to(n: u64) -> Times {
        Times::of((1..=n).map(Duration::from_millis))
    }

    #[test]
    fn a_quantile_without_100_samples_beyond_it_is_not_told() {
        let few = up_to(199).quantiles();
        assert_eq!((few.p50, few.p90, few.p99), (None, None, None));
        let some = up_to(1000).quantiles();
        assert!(some.p50.is_some() && some.p90.is_some() && some.p99.is_none());
        assert!(up_to(10_000).quantiles().p99.is_some());
    }

    #[test]
    fn the_maximum_is_always_told() {
        let max = up_to(3).quantiles().max.expect("three samples");
        assert!((max - 3.0).abs() < 0.01, "{max}");
        assert_eq!(up_to(0).quantiles(), Quantiles::default());
    }

    #[test]
    fn a_stall_shows_in_the_merged_quantiles() {
        let mut times = Times::of((0..1000).map(|_| Duration::from_millis(2)));
        times.merge(&Times::of((0..200).map(|_| Duration::from_secs(1))));
        let p90 = times.quantiles().p90.expect("1200 samples");
        assert!(p90 > 990.0, "{p90}");
    }
}
