//! The command line: one arm per subcommand.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use serde::Serialize;
use tokio::net::TcpListener;

use flashlock::app::App;
use flashlock::bench::command::{CompareArgs, compare};
use flashlock::config::{Config, LimiterPlace, Role};
use flashlock::flow::{Flow, FlowError};
use flashlock::http;
use flashlock::lab::{self, command::LabCommand};
use flashlock::ledger::reconciled::Mode;
use flashlock::report::{self, command::ReportArgs};
use flashlock::sale::ActivityId;
use flashlock::store::{Store, StoreOptions};

/// The exit code of a usage error, as clap has it.
const USAGE: u8 = 2;

/// Flash sales behind a lock strategy chosen per activity, and a bench that says which strategies held.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The REST service.
    Serve(ServiceOptions),
    /// Compare the strategies on real servers and say which held.
    Compare(Box<CompareArgs>),
    /// Render a stored run again, or against another.
    Report(ReportArgs),
    /// Real servers on free ports: up, down, status.
    Lab {
        #[command(subcommand)]
        command: LabCommand,
    },
    /// Create or upgrade the tables.
    Migrate(ServiceOptions),
    /// Compare an activity's stores and mend what differs, reservation by reservation.
    Reconcile(Box<ReconcileOptions>),
}

#[derive(Debug, Args)]
struct ReconcileOptions {
    /// The activity's id.
    #[arg(long)]
    activity: ActivityId,
    /// Only show what would be repaired.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    service: ServiceOptions,
}

/// What is not given comes from FLASHLOCK_* variables, then the file, then the defaults.
#[derive(Debug, Args, Serialize)]
struct ServiceOptions {
    /// TOML file with any of the options (names as here, with underscores).
    #[arg(long, env = "FLASHLOCK_CONFIG")]
    #[serde(skip)]
    config: Option<PathBuf>,
    /// Where to listen [default: 127.0.0.1:8080]; port 0 takes a free one.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    listen: Option<String>,
    /// sqlite:FILE, postgres://… or mysql://… [default: sqlite:flashlock.db]
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    database_url: Option<String>,
    /// Most database connections of this process [default: 16]
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    database_connections_max: Option<u32>,
    /// The Redis of redis-set-nx and redis-lua.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    redis_url: Option<String>,
    /// Where the rate limits are kept [default: redis where redis_url is set, else local]
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    limiter: Option<LimiterPlace>,
    /// The independent Redis nodes of redlock, with commas: an odd number, three or more.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    redlock_urls: Option<String>,
    /// The ZooKeeper ensemble: host:port,host:port
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    zookeeper: Option<String>,
    /// Bearer token for activities, reconciliation and dead letters.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    operator_token: Option<String>,
    /// Bearer token for buying, paying and reading.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    caller_token: Option<String>,
    /// Allow no-lock and guard none, on loopback, for experiments.
    #[arg(long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    allow_control: bool,
    /// What this process does [default: all of them]
    #[arg(long, value_enum, value_delimiter = ',')]
    #[serde(skip_serializing_if = "Option::is_none")]
    roles: Option<Vec<Role>>,
    /// Largest request body, in bytes [default: 16384]
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    body_bytes_max: Option<usize>,
    /// Longest wait for requests in flight when it stops, in seconds [default: 20]
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    shutdown_s: Option<u64>,
    /// An activity that is not warmed up this long before it opens raises an alarm, in seconds [default: 60]
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    alarm_before_open_s: Option<u64>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let command = Cli::parse().command;
    // A comparison tells its progress itself; its clients' sessions would stand in between.
    let level = match &command {
        Command::Compare(_) => "warn",
        _ => "info,sqlx=warn",
    };
    let filter = tracing_subscriber::EnvFilter::try_from_env("FLASHLOCK_LOG")
        .unwrap_or_else(|_unset| level.into());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    match run(command).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("flashlock: {error}");
            ExitCode::FAILURE
        }
    }
}

type Failed = Box<dyn std::error::Error>;

async fn run(command: Command) -> Result<ExitCode, Failed> {
    match command {
        Command::Serve(options) => match options.read() {
            Ok(config) => serve(config).await?,
            Err(usage) => return Ok(usage),
        },
        Command::Migrate(options) => match options.read() {
            Ok(config) => migrate(config).await?,
            Err(usage) => return Ok(usage),
        },
        Command::Reconcile(options) => match options.service.read() {
            Ok(config) => return reconcile(config, &options).await,
            Err(usage) => return Ok(usage),
        },
        Command::Compare(args) => return Ok(compare(*args).await),
        Command::Report(args) => return Ok(report::command::run(&args)?),
        Command::Lab { command } => return Ok(lab::command::run(command).await?),
    }
    Ok(ExitCode::SUCCESS)
}

async fn serve(config: Config) -> Result<(), Failed> {
    let metrics = metrics_exporter_prometheus::PrometheusBuilder::new().install_recorder()?;
    let listen = config.listen;
    let app = App::open(config).await?;
    app.setup.check().await?;
    for notice in app.notices() {
        tracing::info!("{notice}");
    }
    let listener = TcpListener::bind(listen).await.map_err(|e| {
        format!("cannot listen on {listen}: {e}; choose another address with --listen")
    })?;
    // The one line on stdout: whoever starts the service reads the port from it.
    println!("listening on http://{}", listener.local_addr()?);
    http::serve(Flow::new(app), listener, metrics, stop_signal()).await?;
    Ok(())
}

async fn migrate(config: Config) -> Result<(), Failed> {
    let store = Store::open(&StoreOptions {
        url: config.database_url,
        connections_max: 2,
    })
    .await?;
    store.migrate().await?;
    store.close().await;
    println!("the tables are up to date");
    Ok(())
}

/// Prints the verdict and the findings as JSON. Fails while something differs that was not mended.
async fn reconcile(config: Config, options: &ReconcileOptions) -> Result<ExitCode, Failed> {
    let flow = Flow::new(App::open(config).await?);
    let mode = match options.dry_run {
        true => Mode::DryRun,
        false => Mode::Repair,
    };
    let reconciled = match flow.reconcile(&options.activity, mode).await {
        Ok(reconciled) => reconciled,
        Err(FlowError::NoSuchActivity(id)) => {
            eprintln!(
                "flashlock: there is no activity {id} in this database; GET /v1/activities lists them"
            );
            flow.app.store.close().await;
            return Ok(ExitCode::from(USAGE));
        }
        Err(other) => return Err(other.into()),
    };
    let body = http::ReconciledBody::of(&options.activity, mode, &reconciled);
    println!("{}", serde_json::to_string_pretty(&body)?);
    flow.app.store.close().await;
    Ok(match reconciled.is_mended() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Ctrl-C or SIGTERM.
async fn stop_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
        }
        Err(error) => {
            tracing::warn!(%error, "cannot listen for SIGTERM; Ctrl-C stops the service");
            let _interrupted = tokio::signal::ctrl_c().await;
        }
    }
    tracing::info!("stopping: no new requests, what is in flight ends first");
}

// === impl ServiceOptions ===

impl ServiceOptions {
    /// The whole configuration, or a usage error that has been printed.
    fn read(&self) -> Result<Config, ExitCode> {
        let overrides = match serde_json::to_value(self) {
            Ok(serde_json::Value::Object(map)) => map,
            Ok(_) | Err(_) => serde_json::Map::new(),
        };
        Config::read(self.config.as_deref(), overrides).map_err(|error| {
            eprintln!("flashlock: {error}");
            ExitCode::from(USAGE)
        })
    }
}
