//! What do the holds of one key tell: did two overlap, and how long did a hand-off take?

/// One certain hold: the lock was the client's from when its acquire had returned until its release
/// was called. In nanoseconds of CLOCK_MONOTONIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hold {
    pub(crate) client: usize,
    pub(crate) acquired_ns: i64,
    pub(crate) released_ns: i64,
}

/// Two clients that held one key at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Overlap {
    pub(crate) first: Hold,
    pub(crate) second: Hold,
}

/// Hand-offs from one client to another.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct HandOffs {
    /// From the release call of the holder to the return of the next holder's acquire; sorted.
    pub(crate) gaps_ns: Vec<i64>,
    /// Grants to the client that had just released: they are no hand-off.
    pub(crate) to_itself: usize,
}

/// Sorts by time.
pub(crate) fn in_order(mut holds: Vec<Hold>) -> Vec<Hold> {
    holds.sort_by_key(|hold| (hold.acquired_ns, hold.released_ns));
    holds
}

/// Every hold that begins before an earlier one has ended. `holds` are in order.
pub(crate) fn overlaps(holds: &[Hold]) -> Vec<Overlap> {
    let mut found = Vec::new();
    let mut longest: Option<Hold> = None;
    for hold in holds {
        if let Some(first) = longest
            && hold.acquired_ns < first.released_ns
        {
            found.push(Overlap {
                first,
                second: *hold,
            });
        }
        if longest.is_none_or(|l| hold.released_ns > l.released_ns) {
            longest = Some(*hold);
        }
    }
    found
}

/// The hand-offs whose grant lies in `from_ns..to_ns`. `holds` are in order and do not overlap.
pub(crate) fn hand_offs(holds: &[Hold], from_ns: i64, to_ns: i64) -> HandOffs {
    let mut found = HandOffs::default();
    for pair in holds.windows(2) {
        let (before, after) = (pair[0], pair[1]);
        if after.acquired_ns < from_ns || after.acquired_ns >= to_ns {
            continue;
        }
        if before.client == after.client {
            found.to_itself += 1;
        } else {
            found.gaps_ns.push(after.acquired_ns - before.released_ns);
        }
    }
    found.gaps_ns.sort_unstable();
    found
}

/// Jain's index (Jain, Chiu, Hawe 1984) over what each client got: 1 when all got the same, 1/n when
/// one got everything; `None` when nobody got anything.
#[expect(
    clippy::cast_precision_loss,
    reason = "grants of a few seconds are far below 2^52"
)]
pub(crate) fn jain(grants: &[u64]) -> Option<f64> {
    let sum: f64 = grants.iter().map(|n| *n as f64).sum();
    let squares: f64 = grants.iter().map(|n| (*n as f64).powi(2)).sum();
    (squares > 0.0).then(|| sum * sum / (grants.len() as f64 * squares))
}

/// The middle of an odd number of values, or between the middle two; `None` of none.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        n if n.is_multiple_of(2) => Some(f64::midpoint(values[middle - 1], values[middle])),
        _ => Some(values[middle]),
    }
}

/// A quantile of sorted values; `None` with fewer than 100 samples beyond it.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of a number of samples is at least 0 and far below 2^52"
)]
pub(crate) fn quantile(sorted: &[i64], q: f64) -> Option<i64> {
    let count = sorted.len() as f64;
    // The small allowance is for 1 - 0.9, which is not exactly 0.1.
    if count * (1.0 - q) + 1e-6 < 100.0 {
        return None;
    }
    sorted.get((count * q) as usize).copied()
}
