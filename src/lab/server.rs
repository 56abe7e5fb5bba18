//! How is one server started, broken and started again?

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::process::{Signal, Ward, WardSpec, log_tail};
use crate::clock;

/// A cold JVM or a recovery after a kill takes seconds on a loaded machine; this is a hang.
const READY_WAIT: Duration = Duration::from_secs(60);

/// Between two questions to a server that is not ready. A question costs well under a millisecond.
const ASK_EVERY: Duration = Duration::from_millis(15);

/// One question to a server. A server that does not answer in this time is not ready.
pub(super) const ANSWER_WAIT: Duration = Duration::from_secs(2);

/// A killed process is gone within milliseconds; an immediate shutdown may take seconds.
pub(super) const END_WAIT: Duration = Duration::from_secs(15);

/// A server's address stays in use for a moment after a kill; a restart tries again this often.
const RESTARTS_MAX: u32 = 20;

/// A server of the lab. RedLock's nodes count from 1 to 5, ZooKeeper's from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerId {
    Redis,
    Redlock(u8),
    Zookeeper(u8),
    Postgres,
    Mariadb,
}

/// How one kind of server is set up, started and asked.
#[async_trait]
pub(super) trait Recipe: Send + Sync + fmt::Debug {
    /// Makes the data directory. Safe to repeat.
    async fn prepare(&self) -> Result<(), StartError>;
    fn spec(&self) -> WardSpec;
    fn port(&self) -> u16;
    fn url(&self) -> String;
    /// `Ok` when the server with this pid, and not another one on its port, serves requests.
    async fn answers(&self, pid: u32) -> Result<(), String>;
    /// Version and durability, read back from the running server.
    async fn settings(&self, pid: u32) -> Result<BTreeMap<String, String>, String>;
}

/// A server that was started once. It may have been killed since.
#[derive(Debug)]
pub(super) struct Server {
    recipe: Box<dyn Recipe>,
    ward: Mutex<Arc<Ward>>,
}

/// Why a server did not start, with the end of its log.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{what}\n{log}")]
pub struct StartError {
    pub what: String,
    pub log: String,
}

// === impl ServerId ===

impl ServerId {
    /// The kind of server, as in `environment.servers` of a report.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Redlock(_) => "redlock",
            Self::Zookeeper(_) => "zookeeper",
            Self::Postgres => "postgres",
            Self::Mariadb => "mariadb",
        }
    }
}

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Redlock(node) | Self::Zookeeper(node) => write!(f, "{}-{node}", self.kind()),
            Self::Redis | Self::Postgres | Self::Mariadb => f.write_str(self.kind()),
        }
    }
}

// === impl StartError ===

impl StartError {
    pub(super) fn new(what: impl Into<String>, log: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            log: log.into(),
        }
    }

    /// The server lost the race for its port. All five servers pass on what the C library calls
    /// it (in the C locale, which the lab sets), Java too.
    pub(super) fn is_port_taken(&self) -> bool {
        self.log.contains("Address already in use")
    }
}

// === impl Server ===

impl Server {
    /// Starts a server and waits until it answers. Dropped on the way, the server ends.
    pub(super) async fn start(recipe: Box<dyn Recipe>) -> Result<Self, StartError> {
        recipe.prepare().await?;
        let ward = launch(recipe.as_ref()).await?;
        Ok(Self {
            recipe,
            ward: Mutex::new(Arc::new(ward)),
        })
    }

    pub(super) fn url(&self) -> String {
        self.recipe.url()
    }

    pub(super) fn port(&self) -> u16 {
        self.recipe.port()
    }

    /// The pid, while the server runs.
    pub(super) fn pid(&self) -> Option<u32> {
        let ward = self.ward();
        ward.has_ended().is_none().then(|| ward.pid())
    }

    pub(super) fn pids(&self) -> Vec<u32> {
        self.ward().pids()
    }

    pub(super) fn signal(&self, signal: Signal) {
        self.ward().signal(signal);
    }

    /// `false` when a process is still there after [`END_WAIT`].
    pub(super) async fn kill(&self) -> bool {
        self.ward().kill(END_WAIT).await
    }

    /// Kills the server if it runs, then starts it on its port and data.
    pub(super) async fn restart(&self) -> Result<(), StartError> {
        if !self.kill().await {
            return Err(StartError::new("it did not end when killed", ""));
        }
        let mut attempt = 0;
        let ward = loop {
            attempt += 1;
            match launch(self.recipe.as_ref()).await {
                Err(error) if error.is_port_taken() && attempt < RESTARTS_MAX => {
                    tokio::time::sleep(ASK_EVERY * attempt).await;
                }
                other => break other?,
            }
        };
        *self.ward.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(ward);
        Ok(())
    }

    /// Waits until the server is gone for whatever reason; answers its exit status and log.
    pub(super) async fn ended(&self) -> (i32, String) {
        let status = self.ward().ended().await;
        (status, log_tail(self.recipe.spec().log(), 0))
    }

    pub(super) async fn end(&self) -> bool {
        self.ward().end(END_WAIT).await
    }

    pub(super) async fn settings(&self) -> Result<BTreeMap<String, String>, String> {
        let pid = self.pid().ok_or("it does not run")?;
        self.recipe.settings(pid).await
    }

    fn ward(&self) -> Arc<Ward> {
        Arc::clone(&self.ward.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Starts the process and asks it until it answers, ends, or [`READY_WAIT`] is over.
async fn launch(recipe: &dyn Recipe) -> Result<Ward, StartError> {
    let spec = recipe.spec();
    // A restarted server appends to its log; only what it says now counts.
    let from = std::fs::metadata(spec.log()).map_or(0, |meta| meta.len());
    let fail = |what: String| StartError::new(what, log_tail(spec.log(), from));
    let ward = Ward::spawn(&spec)
        .await
        .map_err(|error| fail(error.to_string()))?;
    let deadline = clock::now() + READY_WAIT;
    loop {
        let asked = tokio::select! {
            status = ward.ended() => {
                return Err(fail(format!("it ended with status {status} before it was ready")));
            }
            asked = tokio::time::timeout(ANSWER_WAIT, recipe.answers(ward.pid())) => asked,
        };
        let why = match asked {
            Ok(Ok(())) => return Ok(ward),
            Ok(Err(why)) => why,
            Err(_elapsed) => "no answer".to_owned(),
        };
        if clock::now() >= deadline {
            ward.kill(END_WAIT).await;
            return Err(fail(format!(
                "it was not ready after {READY_WAIT:?}: {why}"
            )));
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
}

/// Runs a set-up program to its end; an `Err` carries its log.
pub(super) async fn run_once(spec: WardSpec, what: &str) -> Result<(), StartError> {
    let fail = |why: String| StartError::new(format!("{what}: {why}"), log_tail(spec.log(), 0));
    let ward = Ward::spawn(&spec)
        .await
        .map_err(|error| fail(error.to_string()))?;
    match tokio::time::timeout(READY_WAIT, ward.ended()).await {
        Ok(0) => Ok(()),
        Ok(status) => Err(fail(format!("status {status}"))),
        Err(_elapsed) => Err(fail(format!("not done after {READY_WAIT:?}"))),
    }
}

/// A server's directory: its data, beside its log.
#[derive(Debug, Clone)]
pub(super) struct ServerDir(PathBuf);

// === impl ServerDir ===

impl ServerDir {
    /// Creates the directory, for `account` when the server runs as another user.
    pub(super) fn create(
        lab: &Path,
        id: ServerId,
        account: Option<&super::find::Account>,
    ) -> Result<Self, StartError> {
        let dir = lab.join(id.to_string());
        let made = std::fs::create_dir_all(&dir).and_then(|()| match account {
            Some(account) => std::os::unix::fs::chown(&dir, Some(account.uid), Some(account.gid)),
            None => Ok(()),
        });
        match made {
            Ok(()) => Ok(Self(dir)),
            Err(error) => Err(StartError::new(format!("{}: {error}", dir.display()), "")),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn data(&self) -> PathBuf {
        self.0.join("data")
    }

    /// A process of this server: its log here, in a locale the log can be searched in.
    pub(super) fn spec(&self, command: PathBuf, args: Vec<std::ffi::OsString>) -> WardSpec {
        WardSpec::new(command, self.0.join("log"))
            .args(args)
            .env("LC_ALL", "C")
            // Ours may be closed to the user that the server runs as.
            .env("TMPDIR", &self.0)
            .dir("/")
    }

    /// The kind of file system the data is on: on `tmpfs` an fsync makes nothing durable.
    pub(super) fn file_system(&self) -> String {
        let mounts = procfs::process::Process::myself()
            .and_then(|me| me.mountinfo())
            .map(|mounts| mounts.0)
            .unwrap_or_default();
        mounts
            .into_iter()
            .filter(|mount| self.0.starts_with(&mount.mount_point))
            .max_by_key(|mount| mount.mount_point.components().count())
            .map_or_else(|| "unknown".to_owned(), |mount| mount.fs_type)
    }
}
