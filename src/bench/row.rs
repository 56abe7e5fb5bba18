//! What a trial came to, as a row of the report.

use std::collections::BTreeMap;

use super::check;
use super::cpu::{self, CpuReading};
use super::load::{Burst, ClickEnd};
use super::plan::Plan;
use crate::run::{Cell, CpuPerOrder, Quantiles, Safety};
use crate::strategy::Strategy;

/// A load generator that uses more of one core measures itself.
const GENERATOR_CORE_MAX: f64 = 0.85;

/// The processes whose CPU time is read.
#[derive(Debug)]
pub struct Cpu {
    pub generator: Option<CpuReading>,
    pub service: Option<CpuReading>,
    pub redis: Option<CpuReading>,
    pub zookeeper: Option<CpuReading>,
    pub database: Option<CpuReading>,
}

/// A burst and what the stores said after it.
#[derive(Debug)]
pub struct Trial {
    /// As the service set it.
    pub guard: String,
    pub burst: Burst,
    pub safety: Safety,
    /// Before the burst and after it.
    pub cpu: (Cpu, Cpu),
    /// CPU time of this process during the burst, in microseconds.
    pub generator_us: u64,
}

/// The row of a strategy that ran; the control may have needed several bursts.
pub fn cell(plan: &Plan, durability: &str, strategy: Strategy, trial: Trial, bursts: u32) -> Cell {
    let Trial {
        guard,
        burst,
        mut safety,
        cpu,
        generator_us: _,
    } = trial;
    let booked = u64::try_from(burst.booked.len()).unwrap_or(u64::MAX);
    if strategy.is_control()
        && let Some(s1) = safety.findings.first_mut()
    {
        // That it does is what it is there for.
        s1.says += &match (safety.oversold > 0, bursts) {
            (true, 1) => "; seen in the first burst".to_string(),
            (true, n) => format!("; seen in burst {n}, not in those before"),
            (false, n) => format!("; not seen in {n} bursts"),
        };
    }
    Cell {
        guard,
        attempts: burst.attempts,
        booked,
        sold_out: burst.count(ClickEnd::SoldOut),
        already_purchased: burst.count(ClickEnd::AlreadyPurchased),
        limited: burst.count(ClickEnd::Limited),
        busy: burst.count(ClickEnd::Busy),
        unknown: burst.count(ClickEnd::Unknown),
        unexpected: burst.count(ClickEnd::Unexpected),
        elapsed_s: burst.elapsed.as_secs_f64(),
        goodput_per_s: per(booked, burst.elapsed.as_secs_f64()),
        latency_ms: burst.latency.quantiles(),
        service_ms: burst.service.quantiles(),
        cpu_us_per_order: cpu_per_order(&cpu.0, &cpu.1, booked),
        answers: burst.answers,
        safety,
        ..blank(plan, durability, strategy)
    }
}

/// A row without a result: everything zero, nothing known.
pub fn blank(plan: &Plan, durability: &str, strategy: Strategy) -> Cell {
    Cell {
        strategy: strategy.name().to_string(),
        database: plan.database.as_str().to_string(),
        guard: plan.guard.as_str().to_string(),
        batch_max: plan.batch_max,
        instances: u64::from(plan.instances),
        durability: durability.to_string(),
        control: strategy.is_control(),
        stock: u64::try_from(plan.load.stock).unwrap_or(0),
        attempts: 0,
        booked: 0,
        sold_out: 0,
        already_purchased: 0,
        limited: 0,
        busy: 0,
        unknown: 0,
        unexpected: 0,
        answers: BTreeMap::new(),
        elapsed_s: 0.0,
        goodput_per_s: None,
        latency_ms: Quantiles::default(),
        service_ms: Quantiles::default(),
        cpu_us_per_order: CpuPerOrder::default(),
        safety: check::undecided("not run"),
        skipped: None,
    }
}

/// Why the trial's figures should not be compared.
#[expect(
    clippy::cast_precision_loss,
    reason = "microseconds of one run are far below 2^52"
)]
pub fn disturbances(strategy: Strategy, trial: &Trial) -> Vec<String> {
    let name = strategy.name();
    let mut found = Vec::new();
    let core = trial.generator_us as f64 / 1e6 / trial.burst.elapsed.as_secs_f64().max(1e-9);
    if core > GENERATOR_CORE_MAX {
        found.push(format!(
            "{name}: the load generator used {:.0} % of a core, so its own speed is part of the figures",
            core * 100.0
        ));
    }
    if let Some(first) = trial.burst.surprises.first() {
        found.push(format!(
            "{name}: {} answers outside the contract, such as {first}",
            trial.burst.count(ClickEnd::Unexpected)
        ));
    }
    found
}

#[expect(
    clippy::cast_precision_loss,
    reason = "orders of one run are far below 2^52"
)]
fn per(n: u64, of: f64) -> Option<f64> {
    (of > 0.0).then(|| n as f64 / of)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "microseconds of one run are far below 2^52"
)]
fn cpu_per_order(before: &Cpu, after: &Cpu, booked: u64) -> CpuPerOrder {
    let each = |before: &Option<CpuReading>, after: &Option<CpuReading>| {
        let (before, after) = (before.as_ref()?, after.as_ref()?);
        per(cpu::between(before, after), booked as f64)
    };
    CpuPerOrder {
        service: each(&before.service, &after.service),
        redis: each(&before.redis, &after.redis),
        zookeeper: each(&before.zookeeper, &after.zookeeper),
        database: each(&before.database, &after.database),
    }
}
