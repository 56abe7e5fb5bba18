//! Which lab of this user runs, as `up` leaves it for `status` and `down`?

use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{LabError, ServerStatus};

/// The state file. Written once at the start, so that a second `up` is refused early, and again
/// when the servers are ready.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LabState {
    pub(super) pid: u32,
    /// Clock ticks between boot and the start of `pid`. With it, a pid that was given to another
    /// process is told apart.
    started_ticks: u64,
    pub(super) phase: Phase,
    pub(super) environment: Vec<(String, String)>,
    pub(super) servers: Vec<ServerStatus>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Phase {
    Starting,
    Ready,
}

/// Where the state lies: one file per user.
#[derive(Debug, Clone)]
pub(super) struct StateFile(PathBuf);

// === impl LabState ===

impl LabState {
    /// This process, before its servers are ready.
    pub(super) fn starting() -> Result<Self, LabError> {
        let pid = std::process::id();
        let Some(started_ticks) = started_ticks(pid) else {
            return Err(LabError::State(
                "/proc does not know this process".to_owned(),
            ));
        };
        Ok(Self {
            pid,
            started_ticks,
            phase: Phase::Starting,
            environment: Vec::new(),
            servers: Vec::new(),
        })
    }

    /// Whether the process that wrote this is still there.
    pub(super) fn is_running(&self) -> bool {
        super::process::is_alive(self.pid) && started_ticks(self.pid) == Some(self.started_ticks)
    }
}

// === impl StateFile ===

impl StateFile {
    /// `FLASHLOCK_LAB_STATE`, or a file in `XDG_RUNTIME_DIR`, or one in the temporary directory.
    pub(super) fn of_user() -> Self {
        if let Some(path) = std::env::var_os("FLASHLOCK_LAB_STATE") {
            return Self(path.into());
        }
        if let Some(dir) = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from)
            && dir.is_dir()
        {
            return Self(dir.join("flashlock-lab.json"));
        }
        let uid = rustix::process::geteuid().as_raw();
        Self(std::env::temp_dir().join(format!("flashlock-lab-{uid}.json")))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// The lab that runs; `None` when none does. What a killed lab left behind is removed.
    pub(super) fn read(&self) -> Result<Option<LabState>, LabError> {
        let Some(state) = self.parse()? else {
            return Ok(None);
        };
        if state.is_running() {
            return Ok(Some(state));
        }
        self.remove()?;
        Ok(None)
    }

    /// Claims the file for this process. `Err` names the lab that has it already.
    pub(super) fn claim(&self, state: &LabState) -> Result<(), LabError> {
        if let Some(other) = self.read()? {
            return Err(already_runs(&other));
        }
        let beside = self.write_beside(state)?;
        // Another `up` may be at this very line: the link tells which of the two was first.
        let linked = std::fs::hard_link(&beside, &self.0);
        let _absent = std::fs::remove_file(&beside);
        match linked {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(LabError::State(
                "another `flashlock lab up` started at the same moment".to_owned(),
            )),
            Err(error) => Err(self.trouble(&error)),
        }
    }

    /// Replaces the state of this process, never leaving half a file for a reader.
    pub(super) fn replace(&self, state: &LabState) -> Result<(), LabError> {
        let beside = self.write_beside(state)?;
        std::fs::rename(&beside, &self.0).map_err(|error| self.trouble(&error))
    }

    pub(super) fn remove(&self) -> Result<(), LabError> {
        match std::fs::remove_file(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(self.trouble(&error)),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn parse(&self) -> Result<Option<LabState>, LabError> {
        let no_link = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or(0);
        let opened = std::fs::OpenOptions::new()
            .read(true)
            .custom_flags(no_link)
            .open(&self.0);
        let mut file = match opened {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.trouble(&error)),
        };
        // The temporary directory is everybody's: a file of somebody else must not tell us which
        // process to end.
        let owner = file.metadata().map_err(|error| self.trouble(&error))?.uid();
        if owner != rustix::process::geteuid().as_raw() {
            return Err(LabError::State(format!(
                "{} belongs to another user; set FLASHLOCK_LAB_STATE to a path of your own",
                self.0.display()
            )));
        }
        let mut text = String::new();
        file.read_to_string(&mut text)
            .map_err(|error| self.trouble(&error))?;
        serde_json::from_str(&text).map(Some).map_err(|error| {
            LabError::State(format!(
                "{} is not a lab's state ({error}); remove it if no lab runs",
                self.0.display()
            ))
        })
    }

    /// The whole state in a file of its own, so that no reader ever sees half of it.
    fn write_beside(&self, state: &LabState) -> Result<PathBuf, LabError> {
        let beside = self.0.with_extension(format!("{}.new", state.pid));
        let text =
            serde_json::to_vec_pretty(state).map_err(|error| LabError::State(error.to_string()))?;
        let _absent = std::fs::remove_file(&beside);
        std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&beside)
            .and_then(|mut file| file.write_all(&text))
            .map_err(|error| self.trouble(&error))?;
        Ok(beside)
    }

    fn trouble(&self, error: &io::Error) -> LabError {
        LabError::State(format!("{}: {error}", self.0.display()))
    }
}

pub(super) fn already_runs(other: &LabState) -> LabError {
    LabError::State(format!(
        "a lab runs already (pid {}): use it (`flashlock lab status` prints its environment), or \
         end it with `flashlock lab down`",
        other.pid
    ))
}

fn started_ticks(pid: u32) -> Option<u64> {
    let process = procfs::process::Process::new(i32::try_from(pid).ok()?).ok()?;
    Some(process.stat().ok()?.starttime)
}
