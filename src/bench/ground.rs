//! The servers of one run: started or given, with a database for each strategy.

use std::path::PathBuf;

use super::cell::{Bench, CellError};
use super::environment::{self, Settings};
use super::plan::{DatabaseKind, Plan, Servers, ServersFrom};
use super::progress::{Progress, summary};
use super::service::ServiceSpec;
use super::{BenchError, check, limits, load, row};
use crate::lab::{self, Lab, LabOptions, LabPlan, ServerState};
use crate::run::{Cell, Environment, Limit};
use crate::strategy::{Need, Strategy};

/// Where SQLite's files and the services' logs are, in the lab's directory.
const FILES: &str = "compare";

/// The servers of a run, whoever started them.
pub(super) struct Ground {
    /// Without a server where those are given: its directory goes with this process, however it ends.
    lab: Lab,
    servers: Servers,
    settings: Settings,
    /// SQLite's files and the services' logs.
    files: PathBuf,
}

// === impl Ground ===

impl Ground {
    pub(super) async fn prepare(plan: &Plan, options: &LabOptions) -> Result<Self, BenchError> {
        let lab = Lab::start_with(&lab_plan(plan), options).await?;
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
            let given = servers.database_url.as_deref().and_then(sqlite_file);
            let file = given.unwrap_or_else(|| files.clone());
            settings.insert("sqlite".to_string(), environment::sqlite(&file));
        }
        Ok(Self {
            lab,
            servers,
            settings,
            files,
        })
    }

    /// What the raw servers do, and a service that has nothing to do.
    pub(super) async fn limits(&self, plan: &Plan) -> Vec<Limit> {
        let servers = match self.with_database(plan, "limits").await {
            Ok(servers) => servers,
            // Each strategy says so in its own row; what there is can be measured.
            Err(_no_database) => return limits::measure(&self.servers, &self.files).await,
        };
        let spec = ServiceSpec {
            binary: plan.service.clone(),
            servers: servers.clone(),
            logs: self.files.clone(),
            name: "limits".to_string(),
        };
        if let Err(error) = spec.migrate().await {
            tracing::warn!(%error, "the limits of the database and the service are not measured");
            return limits::measure(&self.servers, &self.files).await;
        }
        let mut measured = limits::measure(&servers, &self.files).await;
        match spec.start(plan.instances).await {
            Ok(services) => {
                if let Ok(client) = load::client(plan.load.concurrency, &plan.load.patience) {
                    let many = usize::try_from(plan.load.concurrency).unwrap_or(1);
                    for in_flight in [1, many] {
                        let limit = limits::http_noop(&client, services.urls(), in_flight).await;
                        measured.extend(limit);
                    }
                }
                services.stop().await;
            }
            Err(error) => tracing::warn!(%error, "the service's limit is not measured"),
        }
        measured
    }

    pub(super) fn environment(&self) -> Environment {
        environment::describe(&self.files, self.settings.clone())
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
    pub(super) async fn cell(
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
        let blank = row::blank(plan, durability, strategy);
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
    pub(super) async fn stop(self) {
        if let Err(error) = self.lab.stop().await {
            tracing::warn!(%error, "the lab did not end cleanly");
        }
    }
}

/// The file of a SQLite URL, which need not be there yet.
fn sqlite_file(url: &str) -> Option<PathBuf> {
    let path = url.strip_prefix("sqlite:")?;
    let path = path.strip_prefix("//").unwrap_or(path);
    Some(PathBuf::from(path.split('?').next().unwrap_or(path)))
}

/// A row that says what to install or start.
pub(super) fn skipped(mut cell: Cell, why: String) -> (Cell, Vec<String>) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::plan::tests::plan;

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
