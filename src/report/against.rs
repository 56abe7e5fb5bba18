//! This run beside another one: ratios of goodput and latency, and verdicts that changed.

use super::rows::{self, Kind, NO_FIGURE};
use super::table::{Side, new_table, wrap};
use crate::run::{Cell, Run, Verdict};

/// A comparison as text, and the gravest verdict that is new.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Against {
    pub text: String,
    /// `Ok` unless a strategy that counts has a graver verdict in this run than in the other one.
    pub worsened: Verdict,
}

/// Compares `this` with `other`, strategy by strategy under the same settings.
pub fn against(this: &Run, other: &Run) -> Against {
    let mut table = new_table(&[
        ("strategy", Side::Left),
        ("guard", Side::Left),
        ("goodput/s", Side::Right),
        ("other", Side::Right),
        ("ratio", Side::Right),
        ("p50 ratio", Side::Right),
        ("p90 ratio", Side::Right),
        ("p99 ratio", Side::Right),
        ("verdict", Side::Left),
    ]);
    let mut worsened = Verdict::Ok;
    let mut alone = Vec::new();
    let cells = rows::sorted(this).into_iter();
    for cell in cells.filter(|c| rows::kind(c) != Kind::Skipped) {
        let Some(before) = counterpart(cell, other) else {
            alone.push(format!("only in this run: {}", rows::name(this, cell)));
            continue;
        };
        let (now_ms, then_ms) = (&cell.latency_ms, &before.latency_ms);
        table.add_row([
            rows::name(this, cell),
            cell.guard.clone(),
            rows::figure_or_dash(cell.goodput_per_s),
            rows::figure_or_dash(before.goodput_per_s),
            ratio(cell.goodput_per_s, before.goodput_per_s),
            ratio(now_ms.p50, then_ms.p50),
            ratio(now_ms.p90, then_ms.p90),
            ratio(now_ms.p99, then_ms.p99),
            change(cell.safety.verdict, before.safety.verdict),
        ]);
        let graver = before.safety.verdict.worse(cell.safety.verdict) != before.safety.verdict;
        if graver && !cell.control {
            worsened = worsened.worse(cell.safety.verdict);
        }
    }
    for cell in rows::sorted(other) {
        if rows::kind(cell) != Kind::Skipped && counterpart(cell, this).is_none() {
            alone.push(format!(
                "only in the other run: {}",
                rows::name(other, cell)
            ));
        }
    }
    let mut text = format!("this run {}, other run {}\n\n", this.run.id, other.run.id);
    if table.is_empty() {
        text.push_str("The runs have no strategy in common under the same settings.\n");
    } else {
        text.push_str(&table.trim_fmt());
        text.push_str("\n\nA ratio is this run divided by the other. One run each: the spread is not known.\n");
    }
    for line in alone.into_iter().chain(differences(this, other)) {
        text.push_str(&wrap(&line));
        text.push('\n');
    }
    Against { text, worsened }
}

/// The same strategy under the same settings in another run, when it ran there; on the same database
/// if there is one, else on the only one there is, which `differences` then names.
fn counterpart<'a>(cell: &Cell, run: &'a Run) -> Option<&'a Cell> {
    let same = run.results.iter().filter(|c| {
        c.skipped.is_none()
            && c.strategy == cell.strategy
            && c.guard == cell.guard
            && c.batch_max == cell.batch_max
            && c.instances == cell.instances
    });
    let same: Vec<&Cell> = same.collect();
    match same.as_slice() {
        [only] => Some(only),
        several => several
            .iter()
            .find(|c| c.database == cell.database)
            .copied(),
    }
}

fn ratio(now: Option<f64>, then: Option<f64>) -> String {
    match (now, then) {
        (Some(now), Some(then)) if then > 0.0 => format!("{:.2}", now / then),
        (Some(_) | None, Some(_) | None) => NO_FIGURE.to_string(),
    }
}

fn change(now: Verdict, then: Verdict) -> String {
    if now == then {
        rows::verdict(now).to_string()
    } else {
        format!("{} → {}", rows::verdict(then), rows::verdict(now))
    }
}

/// What else is different between the runs, so that a ratio may come from it.
fn differences(this: &Run, other: &Run) -> Vec<String> {
    let facts = |run: &Run| {
        let (plan, env) = (&run.run.plan, &run.environment);
        [
            ("commit", run.run.commit.clone()),
            ("seed", run.run.seed.to_string()),
            ("profile", run.run.profile.clone()),
            ("database", plan.database.clone()),
            ("users", plan.users.to_string()),
            ("stock", plan.stock.to_string()),
            ("concurrency", plan.concurrency.to_string()),
            ("limits_on", plan.limits_on.to_string()),
            ("cpu", env.cpu.clone()),
            ("cores", env.cores.to_string()),
            ("kernel", env.kernel.clone()),
            ("file system", env.file_system.clone()),
            ("servers", format!("{:?}", env.servers)),
        ]
    };
    let pairs = facts(this).into_iter().zip(facts(other));
    let mut lines: Vec<String> = pairs
        .filter(|((_, now), (_, then))| now != then)
        .map(|((what, now), (_, then))| match what {
            "servers" => "differs: versions or settings of the servers".to_string(),
            what => format!("differs: {what} {then} → {now}"),
        })
        .collect();
    for (which, run) in [("this", this), ("the other", other)] {
        let why = run.run.disturbances.iter();
        lines.extend(why.map(|w| format!("{which} run was disturbed, do not compare: {w}")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    fn row(text: &str, name: &str) -> String {
        let line = text.lines().find(|l| l.trim_start().starts_with(name));
        line.unwrap_or_else(|| panic!("no row of {name} in:\n{text}"))
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn ratios_are_this_run_divided_by_the_other() {
        let other = sample::run();
        let mut this = sample::run();
        this.results[0].goodput_per_s = Some(336.0);
        this.results[0].latency_ms.p99 = Some(461.0);
        let text = against(&this, &other).text;
        let expected = "redis-set-nx fence 336 168 2.00 1.00 1.00 0.50 ok";
        assert_eq!(row(&text, "redis-set-nx"), expected);
        assert!(row(&text, "zookeeper").contains("1.00 1.00 1.00 – ok"));
        assert!(!text.contains("redlock"), "it was skipped in both");
    }

    #[test]
    fn a_graver_verdict_is_seen_and_the_control_does_not_count() {
        let good = sample::run();
        let mut bad = sample::run();
        bad.results[0].safety.verdict = Verdict::Violated;
        let worse = against(&bad, &good);
        assert!(worse.text.contains("ok → violated"), "{}", worse.text);
        assert_eq!(worse.worsened, Verdict::Violated);
        assert_eq!(against(&good, &bad).worsened, Verdict::Ok);

        let mut held = sample::run();
        held.results[6].safety.verdict = Verdict::Ok;
        assert_eq!(against(&good, &held).worsened, Verdict::Ok);
    }

    #[test]
    fn runs_on_two_databases_compare_and_say_so() {
        let mut other = sample::run();
        other.run.plan.database = "mysql".to_string();
        for cell in &mut other.results {
            cell.database = "mysql".to_string();
        }
        let text = against(&sample::run(), &other).text;
        assert!(row(&text, "redis-set-nx").contains("1.00 1.00"), "{text}");
        assert!(
            text.contains("differs: database mysql → postgres"),
            "{text}"
        );
    }

    #[test]
    fn what_else_differs_is_listed() {
        let other = sample::run();
        let mut this = sample::run();
        this.run.commit = "fffffff".to_string();
        this.results[0].guard = "lease".to_string();
        let text = against(&this, &other).text;
        assert!(text.contains("differs: commit 96c5581 → fffffff"), "{text}");
        assert!(text.contains("only in this run: redis-set-nx"), "{text}");
        assert!(
            text.contains("only in the other run: redis-set-nx"),
            "{text}"
        );
    }
}
