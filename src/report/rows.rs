//! One strategy's results as the words of a table row, the same in every format.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::run::{Cell, Finding, Run, Verdict};

/// Stands where there is no figure; every report explains it.
pub(super) const NO_FIGURE: &str = "–";

/// What a row is in the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    /// Its verdict counts.
    Judged,
    /// There to be seen failing; its verdict does not count.
    Control,
    /// Did not run.
    Skipped,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Row<'a> {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) guard: String,
    pub(super) durability: &'a str,
    /// Booked of stock, such as `200/200`.
    pub(super) booked: String,
    pub(super) attempts: String,
    pub(super) sold_out: String,
    pub(super) already_purchased: String,
    pub(super) limited: String,
    pub(super) busy: String,
    pub(super) unknown: String,
    pub(super) unexpected: String,
    pub(super) goodput: String,
    pub(super) p50: String,
    pub(super) p90: String,
    pub(super) p99: String,
    pub(super) max: String,
    pub(super) cpu_service: String,
    /// Redis and ZooKeeper together: a strategy uses one of them at most.
    pub(super) cpu_server: String,
    pub(super) cpu_database: String,
    /// `ok`, `violated`, `unknown` or `skipped`.
    pub(super) verdict: &'static str,
    /// What must not be overlooked: why it failed, that it is the control, why it was skipped.
    pub(super) remark: String,
    pub(super) findings: &'a [Finding],
    pub(super) answers: &'a BTreeMap<String, u64>,
}

/// One row per strategy: by durability class, since figures compare only within one, in the order
/// in which the classes come up; then the control, then what was skipped.
pub(super) fn rows(run: &Run) -> Vec<Row<'_>> {
    sorted(run).into_iter().map(|c| Row::of(run, c)).collect()
}

/// The cells in the order of `rows`.
pub(super) fn sorted(run: &Run) -> Vec<&Cell> {
    let mut classes: Vec<&str> = Vec::new();
    for cell in &run.results {
        if !classes.contains(&cell.durability.as_str()) {
            classes.push(&cell.durability);
        }
    }
    let class = |c: &Cell| classes.iter().position(|d| *d == c.durability);
    let mut cells: Vec<&Cell> = run.results.iter().collect();
    cells.sort_by_key(|c| match kind(c) {
        Kind::Judged => (0, class(c)),
        Kind::Control => (1, None),
        Kind::Skipped => (2, None),
    });
    cells
}

pub(super) fn kind(cell: &Cell) -> Kind {
    match (&cell.skipped, cell.control) {
        (Some(_), _) => Kind::Skipped,
        (None, true) => Kind::Control,
        (None, false) => Kind::Judged,
    }
}

/// The strategy, with the database where the run has more than one.
pub(super) fn name(run: &Run, cell: &Cell) -> String {
    let one_database = run.results.iter().all(|c| c.database == cell.database);
    if one_database {
        cell.strategy.clone()
    } else {
        format!("{} on {}", cell.strategy, cell.database)
    }
}

pub(super) fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Ok => "ok",
        Verdict::Violated => "violated",
        Verdict::Unknown => "unknown",
    }
}

/// Three significant digits, and no fewer than the whole part: more would be noise.
pub(super) fn figure(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 99.95 || v == 0.0 => 0,
        v if v >= 9.995 => 1,
        v if v >= 0.995 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

pub(super) fn figure_or_dash(value: Option<f64>) -> String {
    value.map_or_else(|| NO_FIGURE.to_string(), figure)
}

/// CPU time of the lock's own server, Redis or ZooKeeper, in microseconds per order.
pub(super) fn cpu_server(cell: &Cell) -> Option<f64> {
    let cpu = &cell.cpu_us_per_order;
    match (cpu.redis, cpu.zookeeper) {
        (None, None) => None,
        (redis, zookeeper) => Some(redis.unwrap_or(0.0) + zookeeper.unwrap_or(0.0)),
    }
}

// === impl Row ===

impl<'a> Row<'a> {
    fn of(run: &Run, cell: &'a Cell) -> Self {
        let kind = kind(cell);
        let ran = |text: String| match kind {
            Kind::Skipped => String::new(),
            Kind::Judged | Kind::Control => text,
        };
        let count = |n: u64| ran(n.to_string());
        let optional = |value: Option<f64>| ran(figure_or_dash(value));
        Self {
            name: name(run, cell),
            kind,
            guard: ran(guard(cell)),
            durability: match kind {
                Kind::Skipped => "",
                Kind::Judged | Kind::Control => &cell.durability,
            },
            booked: ran(format!("{}/{}", cell.booked, cell.stock)),
            attempts: count(cell.attempts),
            sold_out: count(cell.sold_out),
            already_purchased: count(cell.already_purchased),
            limited: count(cell.limited),
            busy: count(cell.busy),
            unknown: count(cell.unknown),
            unexpected: count(cell.unexpected),
            goodput: optional(cell.goodput_per_s),
            p50: optional(cell.latency_ms.p50),
            p90: optional(cell.latency_ms.p90),
            p99: optional(cell.latency_ms.p99),
            max: optional(cell.latency_ms.max),
            cpu_service: optional(cell.cpu_us_per_order.service),
            cpu_server: optional(cpu_server(cell)),
            cpu_database: optional(cell.cpu_us_per_order.database),
            verdict: match kind {
                Kind::Skipped => "skipped",
                Kind::Judged | Kind::Control => verdict(cell.safety.verdict),
            },
            remark: remark(cell),
            findings: &cell.safety.findings,
            answers: &cell.answers,
        }
    }

    /// Whether a figure is absent, so that the report must explain the dash.
    pub(super) fn has_dash(&self) -> bool {
        let figures = [
            &self.goodput,
            &self.p50,
            &self.p90,
            &self.p99,
            &self.max,
            &self.cpu_service,
            &self.cpu_server,
            &self.cpu_database,
        ];
        figures.into_iter().any(|f| f == NO_FIGURE)
    }
}

fn guard(cell: &Cell) -> String {
    match cell.batch_max {
        0 | 1 => cell.guard.clone(),
        batch => format!("{}, batch {batch}", cell.guard),
    }
}

fn remark(cell: &Cell) -> String {
    let safety = &cell.safety;
    let mut counts = Vec::new();
    let mut add = |what: &str, n: i64| {
        if n != 0 {
            counts.push(format!("{what} {n}"));
        }
    };
    add("oversold", safety.oversold);
    add("duplicate orders", safety.duplicate_orders);
    add("lost orders", safety.lost_orders);
    add("phantom orders", safety.phantom_orders);
    add(
        "unexpected answers",
        i64::try_from(cell.unexpected).unwrap_or(i64::MAX),
    );
    match kind(cell) {
        Kind::Skipped => cell.skipped.clone().unwrap_or_default(),
        Kind::Control if safety.oversold > 0 => {
            format!(
                "{}: it is the control, and is there to fail",
                counts.join(", ")
            )
        }
        Kind::Control => {
            counts.insert(0, "oversold 0".to_string());
            format!(
                "{}: it is the control and did not oversell, so this run does not show that a lock was needed",
                counts.join(", ")
            )
        }
        Kind::Judged => {
            if counts.is_empty() && safety.verdict != Verdict::Ok {
                let failed = safety.findings.iter().filter(|f| f.verdict != Verdict::Ok);
                counts.extend(failed.map(|f| format!("{}: {}", f.property, f.says)));
            }
            counts.join(", ")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    fn row<'a>(rows: &'a [Row<'_>], name: &str) -> &'a Row<'a> {
        rows.iter().find(|r| r.name == name).expect("a row")
    }

    #[test]
    fn rows_stand_by_durability_then_the_control_then_what_was_skipped() {
        let run = sample::run();
        let rows = rows(&run);
        let order: Vec<&str> = rows.iter().map(|r| r.name.as_str()).collect();
        let expected = [
            "redis-set-nx",
            "zookeeper",
            "db-unique-insert",
            "db-conditional-update",
            "redis-lua",
            "no-lock",
            "redlock",
        ];
        assert_eq!(order, expected);
    }

    #[test]
    fn a_remark_says_what_must_not_be_overlooked() {
        let mut run = sample::run();
        run.results[0].safety.verdict = Verdict::Violated;
        run.results[0].safety.oversold = 2;
        run.results[0].safety.lost_orders = 1;
        let rows = rows(&run);
        assert_eq!(
            row(&rows, "redis-set-nx").remark,
            "oversold 2, lost orders 1"
        );
        assert_eq!(
            row(&rows, "no-lock").remark,
            "oversold 37: it is the control, and is there to fail"
        );
        assert_eq!(
            row(&rows, "redlock").remark,
            "redis-server is not installed: apt-get install redis-server"
        );
        assert!(
            row(&rows, "db-unique-insert")
                .remark
                .starts_with("S2: 3 outcomes are open")
        );
        assert_eq!(row(&rows, "redis-lua").remark, "");
    }

    #[test]
    fn a_control_that_held_is_not_praised() {
        let mut run = sample::run();
        run.results[6].safety.oversold = 0;
        run.results[6].safety.verdict = Verdict::Ok;
        let rows = rows(&run);
        let remark = &row(&rows, "no-lock").remark;
        assert!(
            remark.contains("does not show that a lock was needed"),
            "{remark}"
        );
    }

    #[test]
    fn what_was_skipped_has_no_figures_and_no_verdict() {
        let run = sample::run();
        let rows = rows(&run);
        let skipped = row(&rows, "redlock");
        assert_eq!((skipped.verdict, skipped.booked.as_str()), ("skipped", ""));
        assert_eq!((skipped.p50.as_str(), skipped.busy.as_str()), ("", ""));
    }

    #[test]
    fn a_quantile_without_samples_is_a_dash() {
        let run = sample::run();
        let rows = rows(&run);
        assert_eq!(row(&rows, "zookeeper").p99, NO_FIGURE);
        assert!(row(&rows, "zookeeper").has_dash());
        assert!(!row(&rows, "redis-set-nx").has_dash());
    }

    #[test]
    fn figures_have_three_significant_digits() {
        let texts = [0.0, 0.0042, 0.5, 1.234, 9.999, 12.34, 99.96, 123.4, 12345.6].map(figure);
        let expected = [
            "0", "0.004", "0.500", "1.23", "10.0", "12.3", "100", "123", "12346",
        ];
        assert_eq!(texts, expected);
    }

    #[test]
    fn the_database_is_named_where_there_are_several() {
        let mut run = sample::run();
        run.results[0].database = "mysql".to_string();
        assert_eq!(name(&run, &run.results[0]), "redis-set-nx on mysql");
    }
}
