//! What a report says beside its figures: the outcome, the load, and how to read the tables.

use super::rows::{self, Kind, Row};
use crate::run::{Run, Verdict};

/// The properties that are checked after each strategy, from the final state of every store.
pub(super) const PROPERTIES: [(&str, &str); 5] = [
    (
        "S1",
        "no oversell: units in live orders never exceed the stock",
    ),
    (
        "S2",
        "conservation: available + held + sold = total, in every store and across them",
    ),
    ("S3", "one live order per user"),
    ("S4", "no order that a buyer was told is booked is lost"),
    ("S5", "no order that nobody asked for"),
];

/// Explains the dash.
pub(super) const DASH: &str = "– no figure: for a quantile, fewer than 100 samples lie beyond it; for goodput, no order was \
     booked; for CPU time, the strategy does not use that server, or its processes could not be \
     read.";

/// How the tables are to be read, one sentence each.
pub(super) const HOW_TO_READ: [&str; 7] = [
    "Goodput is orders booked per second, from the first click until the last buyer had a final \
     answer. Refusals and repeated attempts are not counted as throughput.",
    "Latency is counted from the buyer's intended click to the final answer, retries included.",
    "CPU is processor time per booked order in microseconds: of the service's processes, of the \
     lock's own server (Redis or ZooKeeper), and of the database.",
    "Durability is what an answered order survives, read back from the servers: memory (nothing), \
     second (at most the last second is lost), fsync (a crash of the machine), replicated (the \
     loss of a machine). Figures compare only within one durability class.",
    "The verdict is read from the final state of every store, not from counters of the bench: ok, \
     violated, or unknown where something could not be read or decided.",
    "The control protects the stock by nothing. It is there to fail: when it oversells, the load \
     was enough to need a lock. Its verdict does not count, and its goodput counts oversold orders \
     too.",
    "One run gives one figure per strategy and no spread; a difference between two strategies \
     needs repeated runs.",
];

/// The run's outcome: the gravest verdict that counts, and a sentence that names who.
pub(super) fn outcome(run: &Run) -> (Verdict, String) {
    let rows = rows::rows(run);
    let judged: Vec<&Row<'_>> = rows.iter().filter(|r| r.kind == Kind::Judged).collect();
    let with = |verdict: Verdict| {
        let word = rows::verdict(verdict);
        let names = judged.iter().filter(|r| r.verdict == word);
        names
            .map(|r| r.name.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    };
    let skipped = rows.iter().filter(|r| r.kind == Kind::Skipped).count();
    let mut says = match run.verdict() {
        // Nothing was judged, so nothing is ok.
        Verdict::Ok if judged.is_empty() => {
            return (Verdict::Unknown, "No strategy was judged.".to_string());
        }
        Verdict::Ok => format!("Held: {}.", with(Verdict::Ok)),
        Verdict::Violated => format!("Did not hold: {}.", with(Verdict::Violated)),
        Verdict::Unknown => format!("Not decided: {}.", with(Verdict::Unknown)),
    };
    if skipped > 0 {
        says.push_str(&format!(" Skipped: {skipped} of {}.", rows.len()));
    }
    (run.verdict(), says)
}

/// The load that every strategy got, in one sentence.
pub(super) fn load(run: &Run) -> String {
    let plan = &run.run.plan;
    format!(
        "{} buyers for {} units, {} at once, over HTTP to {} service {} on {}; {}\u{a0}% click twice \
         with the same key, {}\u{a0}% with another key; rate limits {}.",
        plan.users,
        plan.stock,
        plan.concurrency,
        plan.instances,
        if plan.instances == 1 {
            "process"
        } else {
            "processes"
        },
        plan.database,
        percent(plan.same_key_share),
        percent(plan.other_key_share),
        if plan.limits_on { "on" } else { "off" },
    )
}

/// A share, 0-1, in percent to one decimal.
fn percent(share: f64) -> f64 {
    (share * 1000.0).round() / 10.0
}

/// Where and when, in one line: profile, seed, commit, start.
pub(super) fn origin(run: &Run) -> String {
    let info = &run.run;
    format!(
        "run {} · profile {} · seed {} · commit {} · {} to {}",
        info.id, info.profile, info.seed, info.commit, info.started_at, info.ended_at
    )
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn the_outcome_is_the_gravest_verdict_and_leaves_the_control_out() {
        let mut run = sample::run();
        assert_eq!(
            outcome(&run),
            (
                Verdict::Unknown,
                "Not decided: db-unique-insert. Skipped: 1 of 7.".to_string()
            )
        );
        run.results[0].safety.verdict = Verdict::Violated;
        assert_eq!(
            outcome(&run).1,
            "Did not hold: redis-set-nx. Skipped: 1 of 7."
        );
        run.results.retain(|c| c.control);
        assert_eq!(
            outcome(&run).0,
            Verdict::Unknown,
            "nothing judged is not ok"
        );
    }

    #[test]
    fn the_load_is_one_sentence() {
        assert_eq!(
            load(&sample::run()),
            "2000 buyers for 200 units, 64 at once, over HTTP to 2 service processes on postgres; \
             10\u{a0}% click twice with the same key, 5\u{a0}% with another key; rate limits off."
        );
    }
}
