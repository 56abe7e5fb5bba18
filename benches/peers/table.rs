//! How is a run shown? As Markdown that can be pasted, drawn from the stored rows alone.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::library::{Ground, Library, Whose};
use crate::outcome::Outcome;
use crate::rows::Row;
use crate::scenario::Scenario;

/// On what it was measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) at: String,
    pub(crate) commit: String,
    pub(crate) cpu: String,
    pub(crate) cores: u64,
    pub(crate) kernel: String,
    /// By server: version and durability.
    pub(crate) servers: Vec<(String, String)>,
    pub(crate) run_ms: u64,
    pub(crate) rounds: usize,
}

/// How much of a run is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    Full,
    /// What the README has of it.
    Readme,
}

pub(crate) fn render(
    machine: &Machine,
    outcomes: &[Outcome],
    rows: &[Row],
    extent: Extent,
) -> String {
    let mut text = String::new();
    let servers: Vec<String> = machine
        .servers
        .iter()
        .map(|(name, what)| format!("{name} ({what})"))
        .collect();
    put(
        &mut text,
        format_args!(
            "{} cores of {}, {}, commit {}, {}. {}. Each figure is of {} ms after a warm-up; those of the ratios are \
             medians of {} alternating rounds.\n",
            machine.cores,
            machine.cpu,
            machine.kernel,
            machine.commit,
            machine.at,
            servers.join("; "),
            machine.run_ms,
            machine.rounds,
        ),
    );
    ratios(&mut text, rows);
    speeds(&mut text, outcomes);
    match extent {
        Extent::Full => contended(&mut text, outcomes, Scenario::ThirtyTwo),
        Extent::Readme => {}
    }
    contended(&mut text, outcomes, Scenario::ThirtyTwoOverFour);
    put(
        &mut text,
        format_args!(
            "*raw*: the two calls of a lock through a bare connection; the hand-offs of one key follow one another, so a lock \
             with two calls each does not exceed *raw* with 1 client. Hand-off: from the release call of one client to the return of the next client's acquire, by \
             CLOCK_MONOTONIC, which the processes of one machine share; grants to the client that has just released are \
             left out, and are the share *to itself*. Commands: Redis' `total_commands_processed` (those inside scripts \
             count) over all nodes, or ZooKeeper's packets received, per grant. CPU: µs per grant of all client \
             processes and of the servers. 0/s: no progress; –: not measured, or fewer than 100 samples beyond the \
             quantile.\n"
        ),
    );
    match extent {
        Extent::Full => notes(&mut text, outcomes),
        Extent::Readme => put(&mut text, format_args!("{}", versions(outcomes))),
    }
    text
}

fn ratios(text: &mut String, rows: &[Row]) {
    if rows.is_empty() {
        return;
    }
    put(
        text,
        format_args!(
            "| | ours | reference | ratio | spread | target | |\n|---|---|---|---|---|---|---|"
        ),
    );
    for row in rows {
        let spread = match (row.more.get("ratio_min"), row.more.get("ratio_max")) {
            (Some(low), Some(high)) => format!(
                "{:.2}–{:.2}",
                low.as_f64().unwrap_or(0.0),
                high.as_f64().unwrap_or(0.0)
            ),
            (None, _) | (_, None) => "–".to_owned(),
        };
        let reached = if row.ratio >= row.target {
            "reached"
        } else {
            "**missed**"
        };
        put(
            text,
            format_args!(
                "| {} | {} | {} | {:.2} | {spread} | {} | {reached} |",
                row.name,
                number(Some(row.ours)),
                number(Some(row.reference)),
                row.ratio,
                row.target,
            ),
        );
    }
    put(text, format_args!(""));
}

/// Acquire + release per second, a column per scenario.
fn speeds(text: &mut String, outcomes: &[Outcome]) {
    let titles: Vec<&str> = Scenario::ALL.iter().map(|s| s.title()).collect();
    put(
        text,
        format_args!(
            "| acquire + release per s | on | {} |\n|---|---|{}",
            titles.join(" | "),
            "---|".repeat(titles.len())
        ),
    );
    for library in libraries(outcomes) {
        let on = match (library.whose(), library.ground()) {
            (Whose::Control, _) => continue,
            (_, Ground::OneRedis) => "1 Redis",
            (_, Ground::FiveRedis) => "5 Redis",
            (_, Ground::Zookeeper) => "ZooKeeper",
        };
        let cells: Vec<String> = Scenario::ALL
            .iter()
            .map(|scenario| match find(outcomes, library, *scenario) {
                Some(outcome) if outcome.overlaps > 0 => {
                    format!("does not exclude ({})", outcome.overlaps)
                }
                Some(outcome) => number(outcome.per_s),
                None => String::new(),
            })
            .collect();
        put(
            text,
            format_args!("| {} | {on} | {} |", titled(library), cells.join(" | ")),
        );
    }
    put(text, format_args!(""));
}

/// What happens where clients meet.
fn contended(text: &mut String, outcomes: &[Outcome], scenario: Scenario) {
    let here: Vec<(Library, &Outcome)> = libraries(outcomes)
        .into_iter()
        .filter(|library| library.whose() != Whose::Control)
        .filter_map(|library| Some((library, find(outcomes, library, scenario)?)))
        .filter(|(_, outcome)| outcome.skipped.is_none())
        .collect();
    if here.is_empty() {
        return;
    }
    put(
        text,
        format_args!(
            "| {} | per s | hand-off p50 µs | p90 | p99 | to itself | commands | Jain | CPU client | CPU server |\n\
             |---|---|---|---|---|---|---|---|---|---|",
            scenario.title()
        ),
    );
    for (library, o) in here {
        let itself = o.to_itself.map(|share| format!("{:.0} %", share * 100.0));
        put(
            text,
            format_args!(
                "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                titled(library),
                number(o.per_s),
                number(o.handoff_us_p50),
                number(o.handoff_us_p90),
                number(o.handoff_us_p99),
                itself.unwrap_or_else(|| "–".to_owned()),
                number(o.commands_per_handoff),
                o.jain.map_or("–".to_owned(), |jain| format!("{jain:.3}")),
                number(o.cpu_us_client),
                number(o.cpu_us_server),
            ),
        );
    }
    put(text, format_args!(""));
}

/// What was compared, on a line.
fn versions(outcomes: &[Outcome]) -> String {
    let mut named: Vec<String> = Vec::new();
    for library in libraries(outcomes) {
        let of = outcomes.iter().filter(|o| o.library == library.name());
        let version = of.filter_map(|o| o.version.as_deref()).next();
        if library.whose() == Whose::Theirs {
            let version = version.unwrap_or("skipped");
            named.push(format!("{} {version}", library.name()));
        }
    }
    format!("Versions: {}.", named.join(", "))
}

/// What was compared, with which settings, and what went wrong.
fn notes(text: &mut String, outcomes: &[Outcome]) {
    for library in libraries(outcomes) {
        let name = library.name();
        let of: Vec<&Outcome> = outcomes.iter().filter(|o| o.library == name).collect();
        let version = match library.whose() {
            Whose::Theirs => of.iter().find_map(|o| o.version.as_deref()),
            Whose::Ours | Whose::Limit | Whose::Control => Some(""),
        };
        let Some(version) = version else {
            let why = of.iter().find_map(|o| o.skipped.as_deref());
            put(
                text,
                format_args!("- {name}: skipped: {}", why.unwrap_or("not measured")),
            );
            continue;
        };
        let title = format!("{name} {version}");
        put(
            text,
            format_args!("- {}: {}", title.trim(), library.settings()),
        );
        for o in of {
            if let Some(why) = &o.skipped {
                put(text, format_args!("  - {}: broke: {why}", o.scenario));
            }
            if let Some(why) = &o.failure {
                put(
                    text,
                    format_args!("  - {}: {} acquires failed: {why}", o.scenario, o.failed),
                );
            }
        }
    }
}

/// Those that have a row, in the order of the enum.
fn libraries(outcomes: &[Outcome]) -> Vec<Library> {
    let all = <Library as clap::ValueEnum>::value_variants()
        .iter()
        .copied();
    all.filter(|library| outcomes.iter().any(|o| o.library == library.name()))
        .collect()
}

fn find(outcomes: &[Outcome], library: Library, scenario: Scenario) -> Option<&Outcome> {
    outcomes
        .iter()
        .find(|o| o.library == library.name() && o.scenario == scenario.title())
}

fn titled(library: Library) -> String {
    match library.whose() {
        Whose::Ours => format!("**{}**", library.name()),
        Whose::Limit => format!("*{}*", library.name()),
        Whose::Theirs | Whose::Control => library.name(),
    }
}

/// Three digits or more; thousands with commas.
pub(crate) fn number(value: Option<f64>) -> String {
    let Some(value) = value else {
        return "–".to_owned();
    };
    if value == 0.0 {
        return "0".to_owned();
    }
    if value < 10.0 {
        return format!("{value:.2}");
    }
    if value < 100.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let mut grouped = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

fn put(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _infallible = writeln!(text, "{line}");
}
