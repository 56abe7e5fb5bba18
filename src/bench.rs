//! One comparison: real servers, every strategy under the same burst, and what the stores say.

pub mod answer;
pub mod buyer;
pub mod cell;
pub mod check;
pub mod client;
pub mod command;
pub mod cpu;
pub mod environment;
mod ground;
pub mod history;
pub mod limits;
pub mod load;
pub mod plan;
pub mod progress;
pub mod read;
pub mod row;
pub mod service;
pub mod stats;

use crate::clock;
use crate::lab::{LabError, LabOptions};
use crate::run::{Cell, Run, RunInfo, SCHEMA, Verdict};

use ground::Ground;
use plan::Plan;
use progress::Progress;

/// What this program was built from, where the build could tell.
const COMMIT: Option<&str> = option_env!("BUILD_COMMIT");

/// Why there is no run.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error("the lab did not start: {0}")]
    Lab(#[from] LabError),
    #[error("{what}: {source}")]
    Directory {
        what: String,
        #[source]
        source: std::io::Error,
    },
    #[error("the database {0} is not there: {1}")]
    NoDatabase(&'static str, String),
}

/// Runs the comparison with the servers that are installed here. `Ok` whatever the verdicts are.
///
/// # Cancel safety
/// Dropped, every process that it started is ended.
pub async fn run(plan: &Plan, progress: &Progress) -> Result<Run, BenchError> {
    run_with(plan, &LabOptions::default(), progress).await
}

/// The same, on a lab of these options.
pub async fn run_with(
    plan: &Plan,
    lab: &LabOptions,
    progress: &Progress,
) -> Result<Run, BenchError> {
    let started_at = clock::rfc3339(clock::wall_ms());
    std::fs::create_dir_all(&plan.out).map_err(|source| BenchError::Directory {
        what: format!("cannot create {}", plan.out.display()),
        source,
    })?;
    let step = progress.step("servers");
    step.now("starting");
    let ground = Ground::prepare(plan, lab).await?;
    step.now("measuring what they can do");
    let limits = ground.limits(plan).await;
    step.done(&format!("ready, {} limits measured", limits.len()));

    let mut results = Vec::with_capacity(plan.strategies.len());
    let mut disturbances = Vec::new();
    for strategy in &plan.strategies {
        let (cell, disturbed) = ground.cell(plan, *strategy, progress).await;
        results.push(cell);
        disturbances.extend(disturbed);
    }
    disturbances.extend(invalid(&results));
    let environment = ground.environment();
    ground.stop().await;
    Ok(Run {
        schema: SCHEMA,
        run: RunInfo {
            id: uuid::Uuid::now_v7().to_string(),
            seed: plan.seed,
            profile: plan.profile.as_str().to_string(),
            started_at,
            ended_at: clock::rfc3339(clock::wall_ms()),
            commit: COMMIT.unwrap_or("unknown").to_string(),
            command: plan.command.clone(),
            plan: plan.info(),
            disturbances,
        },
        environment,
        limits,
        results,
    })
}

/// Why a run proves nothing; empty when it does.
pub fn invalid(results: &[Cell]) -> Vec<String> {
    let mut why = Vec::new();
    if results.iter().all(|cell| cell.skipped.is_some()) {
        why.push("every strategy was skipped".to_string());
    }
    for control in results.iter().filter(|c| c.control && c.skipped.is_none()) {
        if control.safety.oversold == 0 {
            why.push(format!(
                "the control {} was not seen to oversell, so a lock that does nothing would not have been seen either",
                control.strategy
            ));
        }
    }
    why
}

/// How the program ends: 0 all held, 1 a property was violated, 3 a verdict is unknown, 5 the run was
/// not valid. What the control violates does not count.
pub fn exit_code(run: &Run) -> u8 {
    match run.verdict() {
        Verdict::Violated => 1,
        Verdict::Ok | Verdict::Unknown if !invalid(&run.results).is_empty() => 5,
        Verdict::Unknown => 3,
        Verdict::Ok => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::environment::Settings;
    use crate::bench::plan::tests::plan;
    use crate::strategy::Strategy;

    fn cell(strategy: Strategy, verdict: Verdict, oversold: i64) -> Cell {
        let mut cell = row::blank(&plan(), "fsync", strategy);
        cell.safety.verdict = verdict;
        cell.safety.oversold = oversold;
        cell
    }

    fn code(results: Vec<Cell>) -> u8 {
        let plan = plan();
        exit_code(&Run {
            schema: SCHEMA,
            run: RunInfo {
                id: String::new(),
                seed: 7,
                profile: String::new(),
                started_at: String::new(),
                ended_at: String::new(),
                commit: String::new(),
                command: String::new(),
                plan: plan.info(),
                disturbances: Vec::new(),
            },
            environment: environment::describe(std::path::Path::new("."), Settings::new()),
            limits: Vec::new(),
            results,
        })
    }

    #[test]
    fn the_exit_code_tells_the_gravest_that_happened() {
        let held = || cell(Strategy::RedisLua, Verdict::Ok, 0);
        let control = || cell(Strategy::NoLock, Verdict::Violated, 3);
        assert_eq!(code(vec![held(), control()]), 0);
        assert_eq!(
            code(vec![
                cell(Strategy::Redlock, Verdict::Violated, 1),
                control()
            ]),
            1
        );
        assert_eq!(
            code(vec![
                cell(Strategy::Redlock, Verdict::Unknown, 0),
                control()
            ]),
            3
        );
        // Without an oversold control, and with nothing run, a run proves nothing.
        assert_eq!(
            code(vec![held(), cell(Strategy::NoLock, Verdict::Ok, 0)]),
            5
        );
        let (skipped, _) = ground::skipped(held(), "no server".to_string());
        assert_eq!(code(vec![skipped.clone()]), 5);
        assert_eq!(code(vec![skipped, held(), control()]), 0);
        assert_eq!(code(vec![held()]), 0, "the control was not asked for");
    }
}
