//! What came of all measurements of one library in one scenario: a row of `target/peers.json`.

use serde::{Deserialize, Serialize};

use crate::cell::{NoRun, Run};
use crate::holds::{median, quantile};
use crate::library::Library;
use crate::scenario::Scenario;

/// One row. A figure that was not measured, or is none here, is null.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) library: String,
    pub(crate) scenario: String,
    /// Acquires and releases per second; the median of the runs. 0: no progress.
    pub(crate) per_s: Option<f64>,
    pub(crate) per_s_min: Option<f64>,
    pub(crate) per_s_max: Option<f64>,
    pub(crate) runs: usize,
    /// From the release call of a holder to the return of another client's acquire. A quantile has
    /// at least 100 samples beyond it.
    pub(crate) handoff_us_p50: Option<f64>,
    pub(crate) handoff_us_p90: Option<f64>,
    pub(crate) handoff_us_p99: Option<f64>,
    /// Share of grants that went to the client which had just released.
    pub(crate) to_itself: Option<f64>,
    /// Redis: commands executed, those inside scripts included, all nodes together; ZooKeeper:
    /// packets received.
    pub(crate) commands_per_handoff: Option<f64>,
    /// Jain's index over the clients.
    pub(crate) jain: Option<f64>,
    /// CPU time per grant, of the clients' processes and of the servers'.
    pub(crate) cpu_us_client: Option<f64>,
    pub(crate) cpu_us_server: Option<f64>,
    /// Pairs of holds that overlapped: above 0 the lock does not exclude.
    pub(crate) overlaps: usize,
    pub(crate) failed: u64,
    pub(crate) failure: Option<String>,
    pub(crate) version: Option<String>,
    pub(crate) settings: String,
    /// Why there is no figure.
    pub(crate) skipped: Option<String>,
}

impl Outcome {
    pub(crate) fn of(
        library: Library,
        scenario: Scenario,
        runs: &[Run],
        trouble: Option<&NoRun>,
    ) -> Self {
        let middle = |of: &dyn Fn(&Run) -> Option<f64>| {
            median(runs.iter().filter_map(of).collect::<Vec<f64>>())
        };
        let per_s = || runs.iter().map(|run| run.per_s);
        let mut gaps: Vec<i64> = runs
            .iter()
            .flat_map(|run| run.hand_offs.gaps_ns.iter().copied())
            .collect();
        gaps.sort_unstable();
        let gap = |q: f64| quantile(&gaps, q).map(us);
        let to_itself: usize = runs.iter().map(|run| run.hand_offs.to_itself).sum();
        Self {
            library: library.name(),
            scenario: scenario.title().to_owned(),
            per_s: middle(&|run| Some(run.per_s)),
            per_s_min: per_s().min_by(f64::total_cmp),
            per_s_max: per_s().max_by(f64::total_cmp),
            runs: runs.len(),
            handoff_us_p50: gap(0.5),
            handoff_us_p90: gap(0.9),
            handoff_us_p99: gap(0.99),
            to_itself: share(to_itself, to_itself + gaps.len()),
            commands_per_handoff: middle(&|run| run.requests_per_grant),
            jain: middle(&|run| run.jain).filter(|_| scenario.clients() > 1),
            cpu_us_client: middle(&|run| run.client_us_per_grant),
            cpu_us_server: middle(&|run| run.server_us_per_grant),
            overlaps: runs.iter().map(|run| run.overlaps).sum(),
            failed: runs.iter().map(|run| run.failed).sum(),
            failure: runs.iter().find_map(|run| run.failure.clone()),
            version: runs.first().map(|run| run.version.clone()),
            settings: library.settings().to_owned(),
            skipped: trouble.map(NoRun::to_string),
        }
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a hand-off takes less than 2^52 nanoseconds"
)]
fn us(ns: i64) -> f64 {
    ns as f64 / 1000.0
}

#[expect(
    clippy::cast_precision_loss,
    reason = "grants of a few seconds are far below 2^52"
)]
fn share(part: usize, of: usize) -> Option<f64> {
    (of > 0).then(|| part as f64 / of as f64)
}
