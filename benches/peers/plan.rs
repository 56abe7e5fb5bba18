//! What is measured, in which order, and what is written about it?

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use flashlock::bench::environment;
use flashlock::clock::{rfc3339, wall_ms};
use flashlock::lab::{Lab, LabPlan};

use crate::cell::{self, NoRun, Run, Stage};
use crate::library::{self, Ground, Library, Whose};
use crate::outcome::Outcome;
use crate::rows::{self, Row};
use crate::scenario::Scenario;
use crate::server::Servers;
use crate::table::{self, Extent, Machine, number};
use crate::target::{self, FASTER};

/// Figures of other libraries' locks and ours, side by side.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Only these, with commas; then nothing is written.
    #[arg(long, value_delimiter = ',')]
    libraries: Vec<Library>,
    /// Only these, with commas; then nothing is written.
    #[arg(long, value_delimiter = ',')]
    scenarios: Vec<Scenario>,
    /// Rounds of what a ratio is drawn from; the others are measured once.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Counted time of each measurement.
    #[arg(long, default_value_t = 1_000)]
    run_ms: u64,
}

type Cell = (Library, Scenario);

/// Everything measured so far.
#[derive(Default)]
struct Found {
    runs: BTreeMap<Cell, Vec<Run>>,
    /// A library that cannot be started, or broke, is not tried again in that scenario.
    trouble: BTreeMap<Cell, NoRun>,
    /// Ours and the peer's per second, by round, for each of `FASTER`.
    rounds: Vec<Vec<(f64, f64)>>,
}

/// Runs everything and writes it down. An error says what was not as it must be.
pub(crate) async fn run(args: &RunArgs) -> Result<(), String> {
    let plan = LabPlan {
        redis: true,
        redlock: true,
        zookeeper_nodes: 1,
        ..LabPlan::nothing()
    };
    let lab = Lab::start(&plan).await.map_err(|error| error.to_string())?;
    let measured = measure(args, &lab).await;
    let machine = machine(args, &lab).await;
    lab.stop().await.map_err(|error| error.to_string())?;
    let (found, cells) = measured?;

    let outcomes: Vec<Outcome> = cells
        .iter()
        .map(|cell| {
            let runs = found.runs.get(cell).map_or(&[][..], Vec::as_slice);
            Outcome::of(cell.0, cell.1, runs, found.trouble.get(cell))
        })
        .collect();
    let rows = found.rows();
    let text = table::render(&machine, &outcomes, &rows, Extent::Full);
    println!("{text}");
    if args.libraries.is_empty() && args.scenarios.is_empty() {
        store(&machine, &outcomes, &rows, &text).map_err(|error| error.to_string())?;
    }
    judge(&outcomes)
}

/// The tables of the last full run that the README has.
pub(crate) fn stored() -> Result<String, String> {
    let say = |file: &Path, error: String| {
        format!("{}: {error}; `make bench-peers` writes it", file.display())
    };
    let read = |file: PathBuf| std::fs::read(&file).map_err(|e| say(&file, e.to_string()));
    let outcomes: Vec<Outcome> = serde_json::from_slice(&read(outcomes_file())?)
        .map_err(|e| say(&outcomes_file(), e.to_string()))?;
    let machine: Machine = serde_json::from_slice(&read(machine_file())?)
        .map_err(|e| say(&machine_file(), e.to_string()))?;
    let rows: Vec<Row> = serde_json::from_slice(&read(rows::file())?)
        .map_err(|e| say(&rows::file(), e.to_string()))?;
    let ours: Vec<Row> = rows
        .into_iter()
        .filter(|row| target::names().contains(&row.name))
        .collect();
    Ok(table::render(&machine, &outcomes, &ours, Extent::Readme))
}

fn outcomes_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target/peers.json")
}

fn machine_file() -> PathBuf {
    library::fetched().join("machine.json")
}

fn store(machine: &Machine, outcomes: &[Outcome], rows: &[Row], text: &str) -> std::io::Result<()> {
    rows::write(&outcomes_file(), &outcomes)?;
    rows::write(&machine_file(), machine)?;
    rows::merge(&rows::file(), rows)?;
    std::fs::write(outcomes_file().with_extension("md"), text)
}

/// A lock that does not exclude is an error, and so is a check that does not see it.
fn judge(outcomes: &[Outcome]) -> Result<(), String> {
    let control = Library::NoLock.name();
    for outcome in outcomes {
        let what = format!("{}, {}", outcome.library, outcome.scenario);
        if outcome.library == control {
            if outcome.overlaps == 0 && outcome.scenario == Scenario::ThirtyTwo.title() {
                return Err(format!("{what}: no overlap was seen: the check is blind"));
            }
        } else if outcome.overlaps > 0 {
            return Err(format!(
                "{what}: two clients held the lock at once, {} times",
                outcome.overlaps
            ));
        }
    }
    Ok(())
}

async fn machine(args: &RunArgs, lab: &Lab) -> Machine {
    let settings = lab.settings().await;
    let servers = settings.iter().map(|(name, settings)| {
        let what: Vec<String> = settings
            .iter()
            .filter(|(_, value)| !value.is_empty())
            .map(|(setting, value)| format!("{setting} {value}"))
            .collect();
        (name.clone(), what.join(", "))
    });
    let servers = servers.collect();
    let environment = environment::describe(lab.directory(), settings);
    Machine {
        at: rfc3339(wall_ms()),
        commit: commit().unwrap_or_else(|| "unknown".to_owned()),
        cpu: environment.cpu,
        cores: environment.cores,
        kernel: environment.kernel,
        servers,
        run_ms: args.run_ms,
        rounds: args.rounds,
    }
}

fn commit() -> Option<String> {
    let git = std::process::Command::new("git")
        .args(["rev-parse", "--short=12", "HEAD"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .ok()?;
    let said = String::from_utf8(git.stdout).ok()?;
    (git.status.success() && !said.trim().is_empty()).then(|| said.trim().to_owned())
}

/// Round by round: every ratio's pair, ours and the peer in changing order, then a part of the rest,
/// so that a slow minute of the machine meets all alike.
async fn measure(args: &RunArgs, lab: &Lab) -> Result<(Found, Vec<Cell>), String> {
    let cells = cells(args);
    let mut grounds = Vec::new();
    for ground in [Ground::OneRedis, Ground::FiveRedis, Ground::Zookeeper] {
        if cells.iter().any(|(library, _)| library.ground() == ground) {
            grounds.push((ground, Servers::of(lab, ground).await));
        }
    }
    let pairs: Vec<usize> = (0..FASTER.len())
        .filter(|n| FASTER[*n].cells().iter().all(|cell| cells.contains(cell)))
        .collect();
    let in_pairs: Vec<Cell> = pairs.iter().flat_map(|n| FASTER[*n].cells()).collect();
    let alone: Vec<Cell> = cells
        .iter()
        .filter(|cell| !in_pairs.contains(cell))
        .copied()
        .collect();
    let rounds = args.rounds.max(1);
    let mut found = Found {
        rounds: vec![Vec::new(); FASTER.len()],
        ..Found::default()
    };
    let mut stand = Stand {
        lab,
        grounds: &grounds,
        run_ms: args.run_ms,
        count: 0,
    };
    for round in 0..rounds {
        for pair in &pairs {
            let [ours, peer] = FASTER[*pair].cells();
            let (first, second) = match round.is_multiple_of(2) {
                true => (ours, peer),
                false => (peer, ours),
            };
            let first = stand.take(first, &mut found).await;
            let second = stand.take(second, &mut found).await;
            if let (Some(first), Some(second)) = (first, second) {
                found.rounds[*pair].push(match round.is_multiple_of(2) {
                    true => (first, second),
                    false => (second, first),
                });
            }
        }
        for cell in alone.iter().skip(round).step_by(rounds) {
            // Fairness is a target too, so it is measured in every round below.
            stand.take(*cell, &mut found).await;
        }
        for library in target::FAIR {
            let cell = (library, target::FAIR_IN);
            let seen = found.runs.get(&cell).map_or(0, Vec::len);
            if alone.contains(&cell) && seen <= round {
                stand.take(cell, &mut found).await;
            }
        }
    }
    Ok((found, cells))
}

/// Where cells are measured.
struct Stand<'a> {
    lab: &'a Lab,
    grounds: &'a [(Ground, Result<Servers, String>)],
    run_ms: u64,
    count: usize,
}

// === impl Stand ===

impl Stand<'_> {
    /// Measures a cell once more and tells its acquires and releases per second.
    async fn take(&mut self, cell: Cell, found: &mut Found) -> Option<f64> {
        if found.trouble.contains_key(&cell) {
            return None;
        }
        self.count += 1;
        let (library, scenario) = cell;
        let mut troubles = found.trouble.iter();
        let skipped = troubles.find(|((l, _), why)| *l == library && why.is_skip());
        if let Some((_, why)) = skipped {
            found.trouble.insert(cell, why.clone());
            return None;
        }
        let ground = self.grounds.iter().find(|(g, _)| *g == library.ground());
        let measured = match ground {
            Some((_, Ok(servers))) => {
                let stage = Stage {
                    lab: self.lab,
                    servers,
                    key: format!("peers-{}", self.count),
                    run_ms: self.run_ms,
                };
                cell::measure(library, scenario, &stage).await
            }
            Some((_, Err(why))) => Err(NoRun::Skipped(why.clone())),
            None => Err(NoRun::Skipped("it has no servers".to_owned())),
        };
        let name = library.name();
        match measured {
            Ok(run) => {
                let per_s = run.per_s;
                eprintln!(
                    "{name:>16}, {:<30} {:>9}/s",
                    scenario.title(),
                    number(Some(per_s))
                );
                found.runs.entry(cell).or_default().push(run);
                Some(per_s)
            }
            Err(why) => {
                eprintln!("{name:>16}, {:<30} {why}", scenario.title());
                found.trouble.insert(cell, why);
                None
            }
        }
    }
}

// === impl Found ===

impl Found {
    fn rows(&self) -> Vec<Row> {
        let faster = FASTER.iter().zip(&self.rounds);
        let faster = faster.filter_map(|(faster, rounds)| faster.row(rounds));
        let fair = target::FAIR.iter().filter_map(|library| {
            let runs = self.runs.get(&(*library, target::FAIR_IN))?;
            let jain: Vec<f64> = runs.iter().filter_map(|run| run.jain).collect();
            target::fairness(*library, &jain)
        });
        faster.chain(fair).collect()
    }
}

/// What was asked for, in the order of the tables.
fn cells(args: &RunArgs) -> Vec<Cell> {
    let mut cells = Vec::new();
    for library in Library::value_variants() {
        if !args.libraries.is_empty() && !args.libraries.contains(library) {
            continue;
        }
        for scenario in Scenario::ALL {
            if !args.scenarios.is_empty() && !args.scenarios.contains(scenario) {
                continue;
            }
            let has_it = match library.whose() {
                Whose::Ours | Whose::Theirs => true,
                Whose::Limit => matches!(scenario, Scenario::One | Scenario::EightOwn),
                Whose::Control => *scenario == Scenario::ThirtyTwo,
            };
            if has_it {
                cells.push((*library, *scenario));
            }
        }
    }
    cells
}
