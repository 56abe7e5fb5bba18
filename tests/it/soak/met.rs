//! Was everything injected, and was every boundary met? A soak in which nothing happened shows nothing.

use std::time::Duration;

use flashlock::sale::Booking;

use super::Soak;
use super::counts::Counts;

/// What must have been injected, and sold in between, in a run of ten seconds and from a minute on.
const INJECTED: [(&str, u64, u64); 13] = [
    ("redis killed", 5, 30),
    ("lives of redis in which something was sold (sync)", 3, 20),
    ("lives of redis in which something was sold (async)", 3, 20),
    ("redis killed and its history cut", 1, 5),
    ("redis killed and emptied", 1, 5),
    ("api killed", 5, 5),
    ("worker killed", 5, 5),
    ("relay paused past its lease", 1, 5),
    ("booking slowed beyond the sweeper's grace", 1, 5),
    ("connection cut before COMMIT was read", 1, 5),
    ("connection cut after COMMIT was done", 1, 5),
    ("answer of redis", 1, 5),
    ("request to redis late", 1, 5),
];

/// Boundaries that leave rows behind, in each of the sales.
const ROWS: [(&str, &str); 4] = [
    (
        "2 unknown outcomes compensated",
        "SELECT COUNT(*) FROM compensation WHERE activity_id = $1 AND state = 'DONE'",
    ),
    (
        "3 gates rebuilt (epochs)",
        "SELECT gate_epoch - 1 FROM activity WHERE id = $1",
    ),
    (
        "6 late payments: REFUND_DUE",
        "SELECT COUNT(*) FROM payment p JOIN orders o ON o.id = p.order_id \
         WHERE o.activity_id = $1 AND p.outcome = 'REFUND_DUE' AND o.state = 'CLOSED'",
    ),
    (
        "7 restocks",
        "SELECT COUNT(*) FROM stock_ledger WHERE activity_id = $1 AND kind = 'RELEASE'",
    ),
];

/// What the resolver of unknown outcomes gives up has a row of its own. An accepted hold is not
/// given up but booked.
const SWEPT: &str = "SELECT COUNT(*) FROM orders o WHERE o.activity_id = $1 AND o.state = 'ABANDONED' \
     AND NOT EXISTS (SELECT 1 FROM compensation c WHERE c.rid = o.id)";

impl Soak {
    /// How often each boundary was met, as the services, the database and the buyers tell.
    pub(super) async fn boundaries(&self) -> Counts {
        let boundaries = Counts::default();
        let counted = self.crew.counted().await;
        for sale in &self.sales {
            let booking = sale.crowd.booking;
            let told = |what: &str, n: u64| boundaries.add(&format!("{what} ({booking})"), n);
            let mut rows = ROWS.to_vec();
            match booking {
                Booking::Sync => {
                    rows.push(("1 holds swept and given up by a tombstone", SWEPT));
                    told("  sold", sale.crowd.answers.of("buy: 201"));
                }
                Booking::Async => {
                    told("  accepted", sale.crowd.answers.of("buy: 202"));
                    told(
                        "  booked",
                        sale.crowd.answers.of("order: 200 PENDING_PAYMENT"),
                    );
                }
            }
            for (what, sql) in rows {
                let n = sale.ground.number(sql).await;
                told(what, u64::try_from(n).expect("a count"));
            }
            let answers = &sale.crowd.answers;
            told(
                "9 second orders refused by the marker",
                answers.of("buy: 409 already-purchased"),
            );
            told("  replays", answers.of("buy: 200"));
        }
        let told = |what: &str, n: u64| boundaries.add(what, n);
        told(
            "1 accepted ones that a worker left, booked by another or by the sweeper",
            counted.of("flashlock_booking_reclaimed_total")
                + counted.of("flashlock_booking_swept_total"),
        );
        told(
            "5 duplicates dropped by the inbox",
            counted.of("flashlock_inbox_duplicates_total"),
        );
        told("8 reconciled while it sold", self.injected.of("reconciled"));
        boundaries
    }

    /// What was not injected often enough, and the boundaries that were not met.
    pub(super) async fn not_met(&self, length: Duration) -> Vec<String> {
        let mut missing = Vec::new();
        for (what, ten_seconds, a_minute) in INJECTED {
            let at_least = match length.as_secs() < 60 {
                true => ten_seconds,
                false => a_minute,
            };
            let n = self.injected.of(what);
            if n < at_least {
                missing.push(format!("{what}: {n} of {at_least}"));
            }
        }
        let boundaries = self.boundaries().await.each();
        let never = boundaries.into_iter().filter(|(_, n)| *n == 0);
        missing.extend(never.map(|(what, _)| format!("{what}: never")));
        missing
    }
}
