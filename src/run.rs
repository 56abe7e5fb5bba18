//! One comparison run as plain data: `report.json` is this, and every report is drawn from it.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Raised when a field changes its meaning or goes away.
pub const SCHEMA: u32 = 1;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    pub schema: u32,
    pub run: RunInfo,
    pub environment: Environment,
    /// What the raw servers do on the same machine in the same run.
    pub limits: Vec<Limit>,
    pub results: Vec<Cell>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunInfo {
    pub id: String,
    pub seed: u64,
    pub profile: String,
    /// RFC 3339.
    pub started_at: String,
    pub ended_at: String,
    pub commit: String,
    pub command: String,
    pub plan: PlanInfo,
    /// Why figures of this run should not be compared, empty when they may be.
    pub disturbances: Vec<String>,
}

/// The load that every strategy got.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanInfo {
    pub database: String,
    pub users: u64,
    pub stock: u64,
    pub concurrency: u64,
    pub instances: u64,
    /// Share of buyers, 0-1, that click twice with the same key.
    pub same_key_share: f64,
    /// Share of buyers, 0-1, that click twice with another key.
    pub other_key_share: f64,
    pub limits_on: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    pub cpu: String,
    pub cores: u64,
    pub kernel: String,
    pub file_system: String,
    /// By server: version and the settings that decide durability, read back from the server.
    pub servers: BTreeMap<String, BTreeMap<String, String>>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    pub name: String,
    pub per_s: f64,
}

/// One strategy under the run's load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    pub strategy: String,
    pub database: String,
    pub guard: String,
    pub batch_max: i64,
    pub instances: u64,
    /// What an acknowledged order survives: `memory`, `second`, `fsync` or `replicated`.
    pub durability: String,
    /// True for the strategy that is there to be seen failing.
    pub control: bool,
    pub stock: u64,
    pub attempts: u64,
    pub booked: u64,
    pub sold_out: u64,
    pub already_purchased: u64,
    pub limited: u64,
    pub busy: u64,
    pub unknown: u64,
    /// Answers outside the contract (4xx or 5xx that a valid buyer must not get).
    pub unexpected: u64,
    /// First answers by status and problem type, such as `503 lock-timeout`.
    pub answers: BTreeMap<String, u64>,
    /// Seconds from the first click until the last buyer had a final answer.
    pub elapsed_s: f64,
    /// Orders booked per second of `elapsed_s`.
    pub goodput_per_s: Option<f64>,
    pub latency_ms: Quantiles,
    /// From the sending of one request to its answer, as the service's own speed: without the wait
    /// for a free place in flight.
    #[serde(default)]
    pub service_ms: Quantiles,
    pub cpu_us_per_order: CpuPerOrder,
    pub safety: Safety,
    /// Why there is no result, and what to install or start.
    pub skipped: Option<String>,
}

/// Latency from the buyer's intended click to the final answer, retries included. A quantile
/// without 100 samples beyond it is `None`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Quantiles {
    pub p50: Option<f64>,
    pub p90: Option<f64>,
    pub p99: Option<f64>,
    pub max: Option<f64>,
}

/// CPU time per booked order in microseconds, by process; `None` where it could not be read.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct CpuPerOrder {
    pub service: Option<f64>,
    pub redis: Option<f64>,
    pub zookeeper: Option<f64>,
    pub database: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Ok,
    Violated,
    /// Something could not be read or decided. Never printed as ok.
    Unknown,
}

/// What the final state of every store says, read after the run had come to rest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Safety {
    pub verdict: Verdict,
    /// Units in live orders above the total.
    pub oversold: i64,
    /// Live orders beyond the first of the same user.
    pub duplicate_orders: i64,
    /// Orders that a buyer was told are booked and that no store has.
    pub lost_orders: i64,
    /// Live orders that nobody asked for.
    pub phantom_orders: i64,
    /// One sentence per property (S1-S5): what was compared and how it came out.
    pub findings: Vec<Finding>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// `S1` … `S5`, as in the README.
    pub property: String,
    pub verdict: Verdict,
    pub says: String,
}

// === impl Run ===

impl Run {
    /// The gravest verdict over all strategies but the control: violated > unknown > ok.
    pub fn verdict(&self) -> Verdict {
        let judged = self
            .results
            .iter()
            .filter(|c| !c.control && c.skipped.is_none())
            .map(|c| c.safety.verdict);
        judged.fold(Verdict::Ok, Verdict::worse)
    }
}

// === impl Verdict ===

impl Verdict {
    pub fn worse(self, other: Self) -> Self {
        match (self, other) {
            (Self::Violated, _) | (_, Self::Violated) => Self::Violated,
            (Self::Unknown, _) | (_, Self::Unknown) => Self::Unknown,
            (Self::Ok, Self::Ok) => Self::Ok,
        }
    }
}
