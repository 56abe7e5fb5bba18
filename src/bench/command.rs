//! `flashlock compare`: its options, and how it ends.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::plan::{
    DatabaseKind, LimitsMode, LoadPlan, Patience, Plan, Profile, Servers, ServersFrom,
};
use super::progress::Progress;
use crate::config::Config;
use crate::report::{self, Format};
use crate::run::Run;
use crate::sale::GuardMode;
use crate::strategy::Strategy;

/// Requests in flight unless told otherwise: a crowd for two processes, and not so many that the
/// sockets are what is measured.
const CONCURRENCY: u32 = 64;
/// Ended by Ctrl-C, by the shell's convention (128 + SIGINT).
const INTERRUPTED: u8 = 130;
const USAGE: u8 = 2;

/// Compares the strategies on real servers: throughput, latency, cost, and which of them held.
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// Which strategies, with commas [default: all, the control no-lock among them]
    #[arg(long, value_enum, value_delimiter = ',')]
    strategies: Vec<Strategy>,
    /// Where the orders are.
    #[arg(long, value_enum, default_value = "postgres")]
    database: DatabaseKind,
    /// quick: two minutes; standard: enough for a p99; thorough: a long sale.
    #[arg(long, value_enum, default_value = "quick")]
    profile: Profile,
    /// The same seed gives the same buyers.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where report.json, report.md, report.html and the histories go.
    #[arg(long, default_value = "flashlock-report")]
    out: PathBuf,
    /// lab: start private servers; config: use those of the configuration.
    #[arg(long, value_enum, default_value = "lab")]
    servers: ServersArg,
    /// The configuration for --servers config; FLASHLOCK_* variables are read as well.
    #[arg(long, env = "FLASHLOCK_CONFIG")]
    config: Option<PathBuf>,
    /// Buyers [default: by profile]
    #[arg(long)]
    users: Option<u32>,
    /// Units on sale [default: by profile]
    #[arg(long, allow_negative_numbers = true)]
    stock: Option<i64>,
    /// Most requests in flight.
    #[arg(long, default_value_t = CONCURRENCY)]
    concurrency: u32,
    /// Service processes, two or more.
    #[arg(long, default_value_t = super::plan::INSTANCES_MIN)]
    instances: u16,
    /// How far lock strategies trust their lock.
    #[arg(long, value_enum, default_value = "fence")]
    guard: GuardMode,
    /// Purchases that may share one critical section.
    #[arg(long, default_value_t = 1, allow_negative_numbers = true)]
    batch_max: i64,
    /// Share of buyers, 0 to 1, that click twice with the same key.
    #[arg(long, default_value_t = 0.10, allow_negative_numbers = true)]
    same_key_share: f64,
    /// Share of buyers, 0 to 1, that click twice with another key.
    #[arg(long, default_value_t = 0.10, allow_negative_numbers = true)]
    other_key_share: f64,
    /// Whether the service's rate limits take part.
    #[arg(long, value_enum, default_value = "off")]
    limits: LimitsMode,
    /// ZooKeeper nodes of the lab: 1 or 3.
    #[arg(long, default_value_t = 1)]
    zookeeper_nodes: u8,
}

/// Whose servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ServersArg {
    Lab,
    Config,
}

/// Runs it and tells the exit code: 0 all held, 1 a property was violated, 2 usage, 3 a verdict is
/// unknown, 5 the run was not valid.
pub async fn compare(args: CompareArgs) -> ExitCode {
    let plan = match args.plan() {
        Ok(plan) => plan,
        Err(usage) => {
            eprintln!("flashlock compare: {usage}");
            return ExitCode::from(USAGE);
        }
    };
    // Dropping the run ends every process that it started.
    let progress = Progress::to_stderr();
    let ran = tokio::select! {
        ran = super::run(&plan, &progress) => ran,
        () = stop_signal() => {
            eprintln!("flashlock compare: interrupted; no report is written");
            return ExitCode::from(INTERRUPTED);
        }
    };
    match ran {
        Ok(run) => tell(&plan, &run),
        Err(error) => {
            eprintln!("flashlock compare: {error}");
            // Nothing was measured, so nothing was proved.
            ExitCode::from(5)
        }
    }
}

fn tell(plan: &Plan, run: &Run) -> ExitCode {
    match report::render(Format::Table, run) {
        Ok(table) => println!("{table}"),
        Err(error) => eprintln!("flashlock compare: no table: {error}"),
    }
    for why in &run.run.disturbances {
        println!("note: {why}");
    }
    match report::write_all(run, &plan.out) {
        Ok(_files) => println!(
            "wrote report.html, report.md, report.json and history/ to {}",
            plan.out.display()
        ),
        Err(error) => {
            eprintln!("flashlock compare: the report could not be written: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::from(super::exit_code(run))
}

async fn stop_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
        }
        Err(_no_handler) => {
            let _interrupted = tokio::signal::ctrl_c().await;
        }
    }
}

// === impl CompareArgs ===

impl CompareArgs {
    /// The plan, or what is wrong with the options.
    pub fn plan(self) -> Result<Plan, String> {
        let servers = match self.servers {
            ServersArg::Lab => ServersFrom::Lab,
            ServersArg::Config => {
                let config = Config::read(self.config.as_deref(), serde_json::Map::new())
                    .map_err(|error| error.to_string())?;
                ServersFrom::Given(given(config))
            }
        };
        let strategies = match self.strategies.is_empty() {
            true => Strategy::all().to_vec(),
            false => self.strategies,
        };
        let service = std::env::current_exe()
            .map_err(|error| format!("where this program is cannot be told: {error}"))?;
        Plan {
            strategies,
            database: self.database,
            profile: self.profile,
            seed: self.seed,
            out: self.out,
            servers,
            zookeeper_nodes: self.zookeeper_nodes,
            instances: self.instances,
            guard: self.guard,
            batch_max: self.batch_max,
            limits: self.limits,
            load: LoadPlan {
                users: self.users.unwrap_or_else(|| self.profile.users()),
                stock: self.stock.unwrap_or_else(|| self.profile.stock()),
                concurrency: self.concurrency,
                same_key_share: self.same_key_share,
                other_key_share: self.other_key_share,
                patience: Patience::lasting(self.profile.patience()),
            },
            service,
            command: command_line(),
        }
        .checked()
        .map_err(|error| error.to_string())
    }
}

fn given(config: Config) -> Servers {
    let redlock = config.redlock_urls;
    Servers {
        database_url: Some(config.database_url),
        redis_url: config.redis_url,
        redlock_urls: (!redlock.is_empty()).then_some(redlock),
        zookeeper: config.zookeeper,
    }
}

/// What was typed; the program by its name, wherever it lies.
fn command_line() -> String {
    let arguments = std::env::args().skip(1);
    std::iter::once("flashlock".to_string())
        .chain(arguments)
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        compare: CompareArgs,
    }

    fn parsed(args: &[&str]) -> Result<Plan, String> {
        let args = std::iter::once("compare").chain(args.iter().copied());
        let cli = Cli::try_parse_from(args).map_err(|error| error.to_string())?;
        cli.compare.plan()
    }

    #[test]
    fn without_options_all_strategies_run_and_the_control_comes_last() {
        let plan = parsed(&[]).expect("the defaults are valid");
        assert_eq!(plan.strategies.len(), Strategy::all().len());
        assert_eq!(plan.strategies.last(), Some(&Strategy::NoLock));
        assert!(
            i64::from(plan.load.users) > plan.load.stock,
            "demand exceeds stock"
        );
    }

    #[test]
    fn an_unknown_strategy_is_refused_with_the_names_there_are() {
        let error = parsed(&["--strategies", "redis"]).expect_err("no such strategy");
        assert!(
            error.contains("redis-set-nx") && error.contains("zookeeper"),
            "{error}"
        );
    }

    #[test]
    fn bad_values_are_refused_by_the_name_of_their_option() {
        for (args, option) in [
            (["--stock", "-1"], "--stock"),
            (["--stock", "0"], "--stock"),
            (["--instances", "1"], "--instances"),
            (["--same-key-share", "1.5"], "--same-key-share"),
            (["--batch-max", "-1"], "--batch-max"),
            (["--zookeeper-nodes", "2"], "--zookeeper-nodes"),
            (["--database", "oracle"], "--database"),
        ] {
            let error = parsed(&args).expect_err(option);
            assert!(error.contains(option), "{error}");
        }
    }
}
