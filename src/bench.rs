//! One comparison: real servers, every strategy under the same burst, and what the stores say.

pub mod answer;
pub mod buyer;
pub mod cell;
pub mod check;
pub mod client;
pub mod command;
pub mod cpu;
pub mod environment;
pub mod history;
pub mod limits;
pub mod load;
pub mod plan;
pub mod progress;
pub mod read;
pub mod service;
pub mod stats;

use std::path::PathBuf;

use crate::clock;
use crate::lab::{self, Lab, LabError, LabPlan, ServerState};
use crate::run::{Cell, Limit, Run, RunInfo, SCHEMA, Verdict};
use crate::strategy::{Need, Strategy};

use cell::{Bench, CellError};
use environment::Settings;
use plan::{DatabaseKind, Plan, Servers, ServersFrom};
use progress::{Progress, summary};

/// What this program was built from, where the build could tell.
const COMMIT: Option<&str> = option_env!("BUILD_COMMIT");
/// Where SQLite's files and the services' logs are, in the lab's directory.
const FILES: &str = "compare";

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

/// The servers of a run, whoever started them.
struct Ground {
    /// Without a server where those are given: its directory goes with this process, however it ends.
    lab: Lab,
    servers: Servers,
    settings: Settings,
    /// SQLite's files and the services' logs.
    files: PathBuf,
}

/// Runs the comparison. `Ok` whatever the verdicts are.
///
/// # Cancel safety
/// Dropped, every process that it started is ended.
pub async fn run(plan: &Plan, progress: &Progress) -> Result<Run, BenchError> {
    let started_at = clock::rfc3339(clock::wall_ms());
    std::fs::create_dir_all(&plan.out).map_err(|source| BenchError::Directory {
        what: format!("cannot create {}", plan.out.display()),
        source,
    })?;
    let step = progress.step("servers");
    step.now("starting");
    let ground = Ground::prepare(plan).await?;
    step.now("measuring what they can do");
    let limits = limits_of(&ground, plan).await?;
    step.done(&format!("ready, {} limits measured", limits.len()));

    let mut results = Vec::with_capacity(plan.strategies.len());
    let mut disturbances = Vec::new();
    for strategy in &plan.strategies {
        let (cell, disturbed) = ground.cell(plan, *strategy, progress).await;
        results.push(cell);
        disturbances.extend(disturbed);
    }
    disturbances.extend(invalid(&results));
    let environment = environment::describe(&ground.files, ground.settings.clone());
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

// === impl Ground ===

impl Ground {
    async fn prepare(plan: &Plan) -> Result<Self, BenchError> {
        let lab = Lab::start(&lab_plan(plan)).await?;
        let files = lab.directory().join(FILES);
        std::fs::create_dir(&files).map_err(|source| BenchError::Directory {
            what: format!("cannot create {}", files.display()),
            source,
        })?;
        let servers = match &plan.servers {
            ServersFrom::Given(servers) => servers.clone(),
            ServersFrom::Lab => Servers {
                database_url: None,
                redis_url: lab.redis_url(),
                redlock_urls: lab.redlock_urls(),
                zookeeper: lab.zookeeper(),
            },
        };
        let mut settings = lab.settings().await;
        if plan.database == DatabaseKind::Sqlite {
            settings.insert("sqlite".to_string(), environment::sqlite(&files));
        }
        Ok(Self {
            lab,
            servers,
            settings,
            files,
        })
    }

    /// The servers with an empty database of this name; with given servers, the given one.
    async fn with_database(&self, plan: &Plan, name: &str) -> Result<Servers, BenchError> {
        match &plan.servers {
            ServersFrom::Given(servers) => return Ok(servers.clone()),
            ServersFrom::Lab => {}
        }
        let lab = &self.lab;
        let name = format!("compare_{}", name.replace('-', "_"));
        let kind = match plan.database {
            DatabaseKind::Sqlite => {
                let file = self.files.join(format!("{name}.db"));
                return Ok(Servers {
                    database_url: Some(format!("sqlite:{}", file.display())),
                    ..self.servers.clone()
                });
            }
            DatabaseKind::Postgres => lab::DatabaseKind::Postgres,
            DatabaseKind::Mysql => lab::DatabaseKind::Mysql,
        };
        let url = lab.create_database(kind, &name).await.map_err(|error| {
            let why = not_there(lab, |id| matches!(id, "postgres" | "mariadb"));
            let why = why.unwrap_or_else(|| error.to_string());
            BenchError::NoDatabase(plan.database.as_str(), why)
        })?;
        Ok(Servers {
            database_url: Some(url),
            ..self.servers.clone()
        })
    }

    /// A row for the strategy, whatever happens, and why its figures should not be compared.
    async fn cell(
        &self,
        plan: &Plan,
        strategy: Strategy,
        progress: &Progress,
    ) -> (Cell, Vec<String>) {
        let name = strategy.name().to_string();
        let step = progress.step(&name);
        let servers = self.with_database(plan, &name).await;
        let durability = environment::durability(plan.database, &self.settings);
        let bench = Bench {
            plan,
            servers: servers.as_ref().unwrap_or(&self.servers),
            lab: &self.lab,
            logs: &self.files,
            durability,
        };
        let blank = cell::blank(plan, durability, strategy);
        let measured = match (&servers, self.missing(strategy)) {
            (Err(error), _) => skipped(blank, error.to_string()),
            (Ok(_), Some(why)) => skipped(blank, why),
            (Ok(_), None) => match bench.run(strategy, &step).await {
                Ok(measured) => (measured.cell, measured.disturbances),
                Err(CellError::Unavailable(why)) => skipped(blank, why),
                Err(error) => undecided(blank, &error),
            },
        };
        step.done(&summary(&measured.0));
        measured
    }

    /// What to install for this strategy, where the lab says that it is not.
    fn missing(&self, strategy: Strategy) -> Option<String> {
        let needs = strategy.entry().needs;
        not_there(&self.lab, |id| needs.iter().any(|need| id == kind(*need)))
    }

    /// Ends the servers and waits for it.
    async fn stop(self) {
        if let Err(error) = self.lab.stop().await {
            tracing::warn!(%error, "the lab did not end cleanly");
        }
    }
}

fn skipped(mut cell: Cell, why: String) -> (Cell, Vec<String>) {
    cell.safety = check::undecided(&format!("skipped: {why}"));
    cell.skipped = Some(why);
    (cell, Vec::new())
}

/// The strategy is here, and its measurement broke: nothing is known, and that is said.
fn undecided(mut cell: Cell, error: &CellError) -> (Cell, Vec<String>) {
    cell.safety = check::undecided(&error.to_string());
    let disturbed = format!("{}: {error}", cell.strategy);
    (cell, vec![disturbed])
}

/// Only what the strategies of the plan need, and nothing where the servers are given.
fn lab_plan(plan: &Plan) -> LabPlan {
    match plan.servers {
        ServersFrom::Given(_) => return LabPlan::nothing(),
        ServersFrom::Lab => {}
    }
    let any = |need: Need| plan.strategies.iter().any(|s| s.needs(need));
    LabPlan {
        redis: any(Need::Redis),
        redlock: any(Need::Redlock),
        zookeeper_nodes: match any(Need::Zookeeper) {
            true => plan.zookeeper_nodes,
            false => 0,
        },
        postgres: plan.database == DatabaseKind::Postgres,
        mariadb: plan.database == DatabaseKind::Mysql,
    }
}

/// What the lab calls the servers of a need.
fn kind(need: Need) -> &'static str {
    match need {
        Need::Redis => "redis",
        Need::Redlock => "redlock",
        Need::Zookeeper => "zookeeper",
    }
}

/// Why a server of the lab does not run.
fn not_there(lab: &Lab, is: impl Fn(&str) -> bool) -> Option<String> {
    lab.servers().into_iter().find_map(|server| {
        if !is(server.id.kind()) {
            return None;
        }
        match server.state {
            ServerState::Running { .. } => None,
            ServerState::Stopped { .. } => Some(format!("{} has ended", server.name)),
            ServerState::NotInstalled { install } => {
                Some(format!("{} is not installed: {install}", server.name))
            }
            ServerState::Failed { log } => {
                Some(format!("{} did not start; it logged:\n{log}", server.name))
            }
        }
    })
}

/// The raw servers and a service that does nothing.
async fn limits_of(ground: &Ground, plan: &Plan) -> Result<Vec<Limit>, BenchError> {
    let servers = ground.with_database(plan, "limits").await?;
    let spec = service::ServiceSpec {
        binary: plan.service.clone(),
        servers: servers.clone(),
        logs: ground.files.clone(),
        name: "limits".to_string(),
    };
    // Without its tables there is no row to commit; the strategies will say the same, each its own.
    if let Err(error) = spec.migrate().await {
        tracing::warn!(%error, "the database's limits are not measured");
        return Ok(limits::measure(&ground.servers, &ground.files).await);
    }
    let mut measured = limits::measure(&servers, &ground.files).await;
    match spec.start(plan.instances).await {
        Ok(services) => {
            let client = load::client(plan.load.concurrency, &plan.load.patience);
            if let Ok(client) = client {
                let many = usize::try_from(plan.load.concurrency).unwrap_or(1);
                for in_flight in [1, many] {
                    measured.extend(limits::http_noop(&client, services.urls(), in_flight).await);
                }
            }
            services.stop().await;
        }
        Err(error) => tracing::warn!(%error, "the service's limit is not measured"),
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::plan::tests::plan;

    fn cell(strategy: Strategy, verdict: Verdict, oversold: i64) -> Cell {
        let mut cell = cell::blank(&plan(), "fsync", strategy);
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
        let (skipped, _) = skipped(held(), "no server".to_string());
        assert_eq!(code(vec![skipped.clone()]), 5);
        assert_eq!(code(vec![skipped, held(), control()]), 0);
        assert_eq!(code(vec![held()]), 0, "the control was not asked for");
    }

    #[test]
    fn only_the_servers_that_are_needed_are_started() {
        let mut plan = plan();
        plan.strategies = vec![Strategy::DbConditionalUpdate];
        assert_eq!(lab_plan(&plan), LabPlan::nothing());
        plan.strategies = vec![Strategy::Redlock];
        plan.database = DatabaseKind::Postgres;
        let lab = lab_plan(&plan);
        assert!(lab.redlock && lab.postgres && !lab.redis && lab.zookeeper_nodes == 0);
    }
}
