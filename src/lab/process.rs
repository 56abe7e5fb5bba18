//! How does a process end with its parent, even when the parent is killed?
//!
//! By a ward: a shell between the two that holds a pipe whose other end only the parent has. The
//! kernel's `PR_SET_PDEATHSIG` is no answer here, because it fires when the *thread* that forked
//! ends, and a runtime's threads end when they like.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::sync::{mpsc, watch};

pub use rustix::process::Signal;

/// What the ward shell runs.
const WARD: &str = include_str!("ward.sh");

/// The pid line comes from a fork and an `echo`; this long means a machine that does not run.
const PID_WAIT: Duration = Duration::from_secs(10);

/// Lines of output kept for a reader that is behind; what comes beyond is dropped, so that a
/// process never blocks on a parent that does not read.
const LINES_MAX: usize = 1024;

/// The signal that ends a process once its parent is gone or lets go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndSignal {
    Kill,
    Quit,
    Term,
}

/// Where a process's stdout goes. Its stderr goes to the log file in either case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stdout {
    Log,
    Lines,
}

/// What to start, and how it ends.
#[derive(Debug, Clone)]
pub struct WardSpec {
    command: PathBuf,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    log: PathBuf,
    dir: Option<PathBuf>,
    stdout: Stdout,
    end: EndSignal,
    remove: Option<PathBuf>,
}

/// A running process that ends with this value: dropped, the process gets its end signal; so it
/// does when this program is killed.
#[derive(Debug)]
pub struct Ward {
    pid: u32,
    /// The write end of the ward's pipe. Close-on-exec, so no other child keeps it open.
    hold: Mutex<Option<OwnedFd>>,
    ended: watch::Receiver<Option<i32>>,
    lines: Option<mpsc::Receiver<String>>,
}

/// Why a process was not started.
#[derive(Debug, thiserror::Error)]
pub enum WardError {
    #[error("`sh` could not be started")]
    Shell(#[source] io::Error),
    #[error("the ward told no process id within 10 s")]
    NoPid,
}

// === impl WardSpec ===

impl WardSpec {
    /// `command` with its output appended to `log`, ended by SIGKILL.
    pub fn new(command: impl Into<PathBuf>, log: impl Into<PathBuf>) -> Self {
        Self {
            command: command.into(),
            args: Vec::new(),
            env: Vec::new(),
            log: log.into(),
            dir: None,
            stdout: Stdout::Log,
            end: EndSignal::Kill,
            remove: None,
        }
    }

    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    pub fn args(mut self, args: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// The working directory; without it, the parent's.
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.dir = Some(dir.into());
        self
    }

    pub fn stdout(mut self, stdout: Stdout) -> Self {
        self.stdout = stdout;
        self
    }

    pub fn end(mut self, end: EndSignal) -> Self {
        self.end = end;
        self
    }

    /// A directory that goes when the process ended because its parent did, or let go of it. It
    /// stays when the process ended by itself or was killed.
    pub fn remove(mut self, dir: impl Into<PathBuf>) -> Self {
        self.remove = Some(dir.into());
        self
    }

    pub fn log(&self) -> &Path {
        &self.log
    }
}

// === impl Ward ===

impl Ward {
    /// Starts the process. `Ok` means that it was forked; a command that does not exist shows as
    /// an end with status 127.
    ///
    /// # Cancel safety
    /// Dropped on the way, the process is ended like that of a dropped `Ward`.
    pub async fn spawn(spec: &WardSpec) -> Result<Self, WardError> {
        let end = match spec.end {
            EndSignal::Kill => "KILL",
            EndSignal::Quit => "QUIT",
            EndSignal::Term => "TERM",
        };
        let stdout = match spec.stdout {
            Stdout::Log => "log",
            Stdout::Lines => "lines",
        };
        let mut shell = Command::new("sh");
        shell
            .args(["-c", WARD, "ward", end])
            .arg(&spec.log)
            .arg(spec.remove.as_deref().unwrap_or(Path::new("")))
            .arg(stdout)
            .arg(&spec.command)
            .args(&spec.args)
            .envs(spec.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // A Ctrl-C at the terminal goes to the parent alone, which ends its servers in order.
            .process_group(0);
        if let Some(dir) = &spec.dir {
            shell.current_dir(dir);
        }
        let mut child = shell.spawn().map_err(WardError::Shell)?;
        // Taken out before `wait`, which would close it.
        let hold = child
            .stdin
            .take()
            .and_then(|pipe| pipe.into_owned_fd().ok());
        let out = child.stdout.take();

        let (ended_tx, ended) = watch::channel(None);
        // Spawned so that an early end is known at once, whoever asks.
        tokio::spawn(async move {
            let status = child.wait().await.ok().and_then(|status| status.code());
            ended_tx.send_replace(Some(status.unwrap_or(-1)));
        });

        let (Some(hold), Some(out)) = (hold, out) else {
            return Err(WardError::NoPid);
        };
        let mut out = BufReader::new(out).lines();
        let first = tokio::time::timeout(PID_WAIT, out.next_line()).await;
        let Some(pid) = first
            .ok()
            .and_then(Result::ok)
            .flatten()
            .and_then(|line| line.trim().parse::<u32>().ok())
        else {
            return Err(WardError::NoPid);
        };
        let lines = (spec.stdout == Stdout::Lines).then(|| {
            let (tx, rx) = mpsc::channel(LINES_MAX);
            // Spawned so that the pipe is emptied although nobody asks for lines.
            tokio::spawn(async move {
                while let Ok(Some(line)) = out.next_line().await {
                    let _full = tx.try_send(line);
                }
            });
            rx
        });
        Ok(Self {
            pid,
            hold: Mutex::new(Some(hold)),
            ended,
            lines,
        })
    }

    /// The process itself, not its ward.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The process and everything below it, such as PostgreSQL's backends. Empty once it ended.
    pub fn pids(&self) -> Vec<u32> {
        match self.has_ended() {
            Some(_) => Vec::new(),
            None => tree(self.pid),
        }
    }

    /// The exit status, by the shell's convention (128 + signal when a signal ended it).
    pub fn has_ended(&self) -> Option<i32> {
        *self.ended.borrow()
    }

    /// Waits for the end, whatever the reason, and answers like [`Ward::has_ended`]. It has no
    /// deadline of its own.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn ended(&self) -> i32 {
        let mut ended = self.ended.clone();
        let status = match ended.wait_for(Option::is_some).await {
            Ok(status) => *status,
            Err(_runtime_gone) => None,
        };
        status.unwrap_or(-1)
    }

    /// The next line of stdout; `None` after the last, or when stdout goes to the log.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn next_line(&mut self) -> Option<String> {
        self.lines.as_mut()?.recv().await
    }

    /// Sends `signal` to the process and everything below it, top first.
    pub fn signal(&self, signal: Signal) {
        signal_all(&self.pids(), signal);
    }

    /// Kills the process and everything below it, and waits up to `wait` until all are gone.
    /// `false` when one of them is still there. What the ward would remove stays.
    pub async fn kill(&self, wait: Duration) -> bool {
        let pids = self.pids();
        signal_all(&pids, Signal::KILL);
        let gone = async {
            self.ended().await;
            // PostgreSQL's backends outlive their postmaster by a moment, and hold its memory.
            while pids.iter().any(|pid| is_alive(*pid)) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(wait, gone).await.is_ok()
    }

    /// Lets go: the process gets its end signal, and what the ward removes goes. Waits up to
    /// `wait` for it; `false` when that was not enough.
    pub async fn end(&self, wait: Duration) -> bool {
        // A stopped backend would keep its postmaster waiting.
        self.signal(Signal::CONT);
        drop(
            self.hold
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take(),
        );
        tokio::time::timeout(wait, self.ended()).await.is_ok()
    }
}

/// Whether a process is there and not merely waiting to be collected.
pub fn is_alive(pid: u32) -> bool {
    i32::try_from(pid)
        .ok()
        .and_then(|pid| procfs::process::Process::new(pid).ok())
        .and_then(|process| process.stat().ok())
        .is_some_and(|stat| stat.state != 'Z')
}

/// Sends `signal` to each process; those that are gone are passed over.
pub fn signal_all(pids: &[u32], signal: Signal) {
    for pid in pids {
        if let Some(pid) = i32::try_from(*pid).ok().and_then(Pid::from_raw) {
            let _gone = kill_process(pid, signal);
        }
    }
}

/// `root` and its descendants, parents before children.
fn tree(root: u32) -> Vec<u32> {
    let Ok(processes) = procfs::process::all_processes() else {
        return vec![root];
    };
    let parents: Vec<(u32, u32)> = processes
        .flatten()
        .filter_map(|process| process.stat().ok())
        .filter_map(|stat| {
            Some((
                u32::try_from(stat.pid).ok()?,
                u32::try_from(stat.ppid).ok()?,
            ))
        })
        .collect();
    let mut found = vec![root];
    let mut known = BTreeSet::from([root]);
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        for (pid, ppid) in &parents {
            if *ppid == parent && known.insert(*pid) {
                found.push(*pid);
            }
        }
        next += 1;
    }
    found
}

/// The last lines of a log from byte `from` on, at most `BYTES_MAX`.
pub fn log_tail(log: impl AsRef<OsStr>, from: u64) -> String {
    /// Enough for a stack trace, short enough for an error message.
    const BYTES_MAX: usize = 4000;
    let bytes = std::fs::read(Path::new(log.as_ref())).unwrap_or_default();
    let from = usize::try_from(from).unwrap_or(0).min(bytes.len());
    let from = from.max(bytes.len().saturating_sub(BYTES_MAX));
    String::from_utf8_lossy(&bytes[from..]).trim().to_owned()
}
