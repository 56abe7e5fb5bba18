//! What do `flashlock lab up`, `down` and `status` do?

use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use clap::{Args, Subcommand};
use comfy_table::{Table, presets};
use tokio::signal::unix::{Signal as Listener, SignalKind, signal};

use super::process::{Signal, is_alive, signal_all};
use super::state::{LabState, Phase, StateFile, already_runs};
use super::{
    Lab, LabError, LabOptions, LabPlan, Ports, ServerId, ServerState, ServerStatus, mariadb,
    postgres, redis, zookeeper,
};
use crate::clock;

/// Longer than any start that ends well: each server gives up after 60 s, PostgreSQL and MariaDB
/// after twice that, because they are set up first.
const DETACHED_WAIT: Duration = Duration::from_secs(150);

/// `down` waits this long for the servers to end, each of which has 15 s.
const DOWN_WAIT: Duration = Duration::from_secs(30);

/// Between two looks at a lab that is starting or ending.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Real servers for the shell: Redis, RedLock's five, ZooKeeper, PostgreSQL, MariaDB.
#[derive(Debug, Clone, Subcommand)]
pub enum LabCommand {
    /// Start the servers, print the environment, and keep them until Ctrl-C or `lab down`
    Up(Up),
    /// End the running lab
    Down,
    /// Show the running lab and whether its servers answer; exit 1 when none runs
    Status,
}

#[derive(Debug, Clone, Args)]
pub struct Up {
    /// ZooKeeper alone or as an ensemble
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse_nodes)]
    pub zookeeper_nodes: u8,
    /// Only these servers
    #[arg(long, value_name = "SERVERS", value_delimiter = ',', value_parser = ["redis", "redlock", "zookeeper", "postgres", "mariadb"])]
    pub only: Vec<String>,
    /// Fail where a server's well-known port is taken, instead of using a free one
    #[arg(long)]
    pub fixed_ports: bool,
    /// Return when the servers are ready, and leave them running
    #[arg(long)]
    pub detach: bool,
}

/// Runs the command. `Ok` carries the exit code: 1 from `status` when no lab runs or a server does
/// not answer, from `up` when no server started, and from `down` when there was nothing to end.
pub async fn run(command: LabCommand) -> Result<ExitCode, LabError> {
    match command {
        LabCommand::Up(up) if up.detach => detach(&up).await,
        LabCommand::Up(up) => stay(&up).await,
        LabCommand::Down => down().await,
        LabCommand::Status => status().await,
    }
}

fn parse_nodes(text: &str) -> Result<u8, String> {
    match text {
        "0" => Ok(0),
        "1" => Ok(1),
        "3" => Ok(3),
        other => Err(format!("`{other}` is not 0, 1 or 3")),
    }
}

// === impl Up ===

impl Up {
    fn plan(&self) -> LabPlan {
        let wanted = |name: &str| self.only.is_empty() || self.only.iter().any(|only| only == name);
        LabPlan {
            redis: wanted("redis"),
            redlock: wanted("redlock"),
            zookeeper_nodes: if wanted("zookeeper") {
                self.zookeeper_nodes
            } else {
                0
            },
            postgres: wanted("postgres"),
            mariadb: wanted("mariadb"),
        }
    }

    fn options(&self) -> LabOptions {
        let ports = if self.fixed_ports {
            Ports::Fixed
        } else {
            Ports::Preferred
        };
        LabOptions {
            ports,
            ..LabOptions::default()
        }
    }

    /// The arguments of the same command without `--detach`.
    fn args(&self) -> Vec<String> {
        let mut args = vec!["lab".to_owned(), "up".to_owned()];
        args.push(format!("--zookeeper-nodes={}", self.zookeeper_nodes));
        if !self.only.is_empty() {
            args.push(format!("--only={}", self.only.join(",")));
        }
        if self.fixed_ports {
            args.push("--fixed-ports".to_owned());
        }
        args
    }
}

/// The signals that end a lab.
struct Stops {
    interrupt: Listener,
    terminate: Listener,
    hangup: Listener,
}

// === impl Stops ===

impl Stops {
    fn listen() -> Result<Self, LabError> {
        let listen = |kind| signal(kind).map_err(|error| LabError::State(error.to_string()));
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}

/// `up`: the servers live as long as this does.
async fn stay(up: &Up) -> Result<ExitCode, LabError> {
    // Listened to from here on: a signal during the start ends what has started so far.
    let mut stops = Stops::listen()?;
    let file = StateFile::of_user();
    let mut state = LabState::starting()?;
    file.claim(&state)?;
    let (plan, options) = (up.plan(), up.options());
    let started = tokio::select! {
        started = Lab::start_with(&plan, &options) => started,
        () = stops.next() => {
            file.remove()?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    let lab = match started {
        Ok(lab) => lab,
        Err(error) => {
            file.remove()?;
            return Err(error);
        }
    };
    state.phase = Phase::Ready;
    state.environment = lab.environment();
    state.servers = lab.servers();
    if let Err(error) = file.replace(&state) {
        lab.stop().await?;
        return Err(error);
    }
    print_lab(&state, &answers_of(&state.servers).await);
    let code = if lab.pids().is_empty() {
        eprintln!("no server started");
        ExitCode::FAILURE
    } else {
        eprintln!("the lab runs; Ctrl-C or `flashlock lab down` ends it");
        keep(&lab, &mut stops).await;
        ExitCode::SUCCESS
    };
    let stopped = lab.stop().await;
    file.remove()?;
    stopped?;
    eprintln!("the lab has ended");
    Ok(code)
}

/// Waits for a signal; a server that ends meanwhile is said at once.
async fn keep(lab: &Lab, stops: &mut Stops) {
    let mut said: Vec<ServerId> = Vec::new();
    loop {
        tokio::select! {
            () = stops.next() => return,
            (id, status, log) = lab.first_to_end(&said) => {
                eprintln!("{id} ended with status {status}:\n{log}");
                said.push(id);
            }
        }
    }
}

/// `up --detach`: starts `up` as a process of its own and waits until it is ready.
async fn detach(up: &Up) -> Result<ExitCode, LabError> {
    let file = StateFile::of_user();
    if let Some(other) = file.read()? {
        return Err(already_runs(&other));
    }
    let trouble = |error: std::io::Error| LabError::State(format!("detached lab: {error}"));
    let program = std::env::current_exe().map_err(trouble)?;
    let log_path: PathBuf = file.path().with_extension("log");
    // Removed and created anew, so that it is ours whatever lay there.
    let _absent = std::fs::remove_file(&log_path);
    let log = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&log_path)
        .map_err(trouble)?;
    let mut child = tokio::process::Command::new(program)
        .args(up.args())
        .stdin(Stdio::null())
        .stdout(log.try_clone().map_err(trouble)?)
        .stderr(log)
        // Out of the terminal's reach: Ctrl-C and hang-up go to the foreground group.
        .process_group(0)
        .spawn()
        .map_err(trouble)?;
    let pid = child.id();
    let deadline = clock::now() + DETACHED_WAIT;
    loop {
        if let Some(status) = child.try_wait().map_err(trouble)? {
            let log = super::process::log_tail(&log_path, 0);
            return Err(LabError::State(format!(
                "the lab ended before it was ready ({status}):\n{log}"
            )));
        }
        if let Some(state) = file.read()?
            && Some(state.pid) == pid
            && state.phase == Phase::Ready
        {
            print_lab(&state, &answers_of(&state.servers).await);
            eprintln!(
                "the lab runs (pid {}); `flashlock lab down` ends it",
                state.pid
            );
            return Ok(ExitCode::SUCCESS);
        }
        if clock::now() >= deadline {
            if let Some(pid) = pid {
                signal_all(&[pid], Signal::TERM);
            }
            let log = super::process::log_tail(&log_path, 0);
            return Err(LabError::State(format!(
                "the lab was not ready in time:\n{log}"
            )));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn down() -> Result<ExitCode, LabError> {
    let Some(state) = StateFile::of_user().read()? else {
        eprintln!("no lab is running");
        return Ok(ExitCode::FAILURE);
    };
    signal_all(&[state.pid], Signal::TERM);
    let servers: Vec<u32> = state.servers.iter().filter_map(pid_of).collect();
    let deadline = clock::now() + DOWN_WAIT;
    while state.is_running() || servers.iter().any(|pid| is_alive(*pid)) {
        if clock::now() >= deadline {
            return Err(LabError::State(format!(
                "the lab (pid {}) has not ended after {DOWN_WAIT:?}",
                state.pid
            )));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    eprintln!("the lab (pid {}) has ended", state.pid);
    Ok(ExitCode::SUCCESS)
}

async fn status() -> Result<ExitCode, LabError> {
    let Some(state) = StateFile::of_user().read()? else {
        eprintln!("no lab is running; `flashlock lab up` starts one");
        return Ok(ExitCode::FAILURE);
    };
    if state.phase == Phase::Starting {
        eprintln!("a lab is starting (pid {})", state.pid);
        return Ok(ExitCode::FAILURE);
    }
    let answers = answers_of(&state.servers).await;
    print_lab(&state, &answers);
    let all_answer = state
        .servers
        .iter()
        .zip(&answers)
        .all(|(server, answer)| pid_of(server).is_none() || answer.is_ok());
    Ok(if all_answer {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn pid_of(server: &ServerStatus) -> Option<u32> {
    match server.state {
        ServerState::Running { pid, .. } => Some(pid),
        ServerState::Stopped { .. }
        | ServerState::NotInstalled { .. }
        | ServerState::Failed { .. } => None,
    }
}

/// Asks every server that was started whether it serves requests now.
async fn answers_of(servers: &[ServerStatus]) -> Vec<Result<(), String>> {
    futures::future::join_all(servers.iter().map(|server| async {
        let url = server.url.as_deref().ok_or("it did not start")?;
        match server.id {
            ServerId::Redis | ServerId::Redlock(_) => redis::ping(url).await,
            ServerId::Zookeeper(_) => zookeeper::ping(url).await,
            ServerId::Postgres => postgres::ping(url).await,
            ServerId::Mariadb => mariadb::ping(url).await,
        }
    }))
    .await
}

/// The table goes to stderr, the environment to stdout, so that a shell can `eval` the latter.
fn print_lab(state: &LabState, answers: &[Result<(), String>]) {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["SERVER", "STATE", "PID", "URL"]);
    for (server, answer) in state.servers.iter().zip(answers) {
        let (says, pid) = match &server.state {
            ServerState::Running { pid, .. } => match answer {
                Ok(()) => ("answers".to_owned(), pid.to_string()),
                Err(why) => (format!("does not answer: {why}"), pid.to_string()),
            },
            ServerState::Stopped { .. } => ("stopped".to_owned(), String::new()),
            ServerState::NotInstalled { install } => {
                (format!("not installed: {install}"), String::new())
            }
            ServerState::Failed { log } => (format!("failed: {log}"), String::new()),
        };
        let url = server.url.clone().unwrap_or_default();
        table.add_row([server.name.clone(), says, pid, url]);
    }
    eprintln!("{table}");
    for (name, value) in &state.environment {
        println!("export {name}='{value}'");
    }
}
