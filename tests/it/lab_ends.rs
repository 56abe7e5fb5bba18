//! Does everything end with its parent, however the parent ends?

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use flashlock::lab::command::{LabCommand, Up, run};
use flashlock::lab::process::{Signal, is_alive, signal_all};
use flashlock::lab::{Lab, LabPlan, ServerState};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::lab::eventually;

/// Names what this binary does when a test starts it once more as a parent that can be killed.
const HELPER: &str = "FLASHLOCK_TEST_LAB_HELPER";

/// Where the command keeps its state, so that a lab of the developer is left alone.
const STATE: &str = "FLASHLOCK_LAB_STATE";

/// A second copy of this test binary, with a temporary directory of its own.
struct Parent {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    temp: TempDir,
}

impl Parent {
    fn start(helper: &str) -> Self {
        let temp = tempfile::tempdir().unwrap();
        // PostgreSQL and MariaDB run as other users when the test runs as root.
        std::fs::set_permissions(temp.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
        Self::start_in(helper, temp)
    }

    fn start_in(helper: &str, temp: TempDir) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "lab_ends::helper", "--nocapture"])
            .env(HELPER, helper)
            .env("TMPDIR", temp.path())
            .env(STATE, temp.path().join("state.json"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines, temp }
    }

    /// The rest of the first line that contains `mark`.
    async fn line_after(&mut self, mark: &str) -> String {
        loop {
            let line = self.lines.next_line().await.unwrap();
            let line = line.expect("the helper ended before it said so");
            if let Some((_, rest)) = line.split_once(mark) {
                return rest.to_owned();
            }
        }
    }

    fn pid(&self) -> u32 {
        self.child.id().unwrap()
    }
}

/// Not a test of its own: what [`Parent`] runs.
#[tokio::test(flavor = "multi_thread")]
async fn helper() {
    let Ok(helper) = std::env::var(HELPER) else {
        return;
    };
    match helper.as_str() {
        "hold" => {
            let lab = Lab::start(&LabPlan::all()).await.unwrap();
            for server in lab.servers() {
                let runs = matches!(server.state, ServerState::Running { .. });
                assert!(runs, "{server:?}");
            }
            let pids = lab.pids().into_iter().flat_map(|(_, pids)| pids);
            let pids: Vec<String> = pids.map(|pid| pid.to_string()).collect();
            println!("\nholds {}", pids.join(" "));
            std::future::pending::<()>().await;
        }
        "up" => {
            let code = run(LabCommand::Up(Up {
                zookeeper_nodes: 0,
                only: vec!["redis".to_owned()],
                fixed_ports: false,
                detach: false,
            }));
            println!("\ncode {:?}", code.await.map_err(|error| error.to_string()));
        }
        "status" | "down" => {
            let command = if helper == "down" {
                LabCommand::Down
            } else {
                LabCommand::Status
            };
            println!(
                "\ncode {:?}",
                run(command).await.map_err(|error| error.to_string())
            );
        }
        other => panic!("no helper is called {other}"),
    }
}

/// Processes whose command line names `dir`.
fn processes_in(dir: &Path) -> Vec<i32> {
    let dir = dir.to_str().unwrap();
    let processes = procfs::process::all_processes().unwrap().flatten();
    processes
        .filter(|process| {
            let args = process.cmdline().unwrap_or_default();
            args.iter().any(|arg| arg.contains(dir))
        })
        .map(|process| process.pid)
        .collect()
}

fn is_empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).unwrap().next().is_none()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_parent_leaves_no_server_and_no_file() {
    let mut parent = Parent::start("hold");
    let pids = parent.line_after("holds ").await;
    let pids: Vec<u32> = pids.split(' ').map(|pid| pid.parse().unwrap()).collect();
    assert!(pids.len() > 9, "{pids:?}");
    assert!(pids.iter().all(|pid| is_alive(*pid)));
    signal_all(&[parent.pid()], Signal::KILL);
    eventually("every server ends with its killed parent", || async {
        !pids.iter().any(|pid| is_alive(*pid)) && processes_in(parent.temp.path()).is_empty()
    })
    .await;
    assert!(is_empty(parent.temp.path()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parent_killed_in_the_start_leaves_nothing_either() {
    // From the first process on until the databases are set up.
    for processes in [1, 4, 10, 20, 26] {
        let parent = Parent::start("hold");
        eventually("servers are being started", || async {
            processes_in(parent.temp.path()).len() >= processes
        })
        .await;
        signal_all(&[parent.pid()], Signal::KILL);
        eventually("what was started ends", || async {
            processes_in(parent.temp.path()).is_empty()
        })
        .await;
        assert!(
            is_empty(parent.temp.path()),
            "killed at {processes} processes"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_server_ends_with_its_killed_parent() {
    let mut parent = Parent::start("hold");
    let pids = parent.line_after("holds ").await;
    let pids: Vec<u32> = pids.split(' ').map(|pid| pid.parse().unwrap()).collect();
    signal_all(&pids, Signal::STOP);
    signal_all(&[parent.pid()], Signal::KILL);
    eventually("every paused server ends", || async {
        !pids.iter().any(|pid| is_alive(*pid)) && processes_in(parent.temp.path()).is_empty()
    })
    .await;
    assert!(is_empty(parent.temp.path()));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_starts_shows_refuses_and_ends_a_lab() {
    let mut up = Parent::start("up");
    let url = up.line_after("export FLASHLOCK_REDIS_URL=").await;
    let url = url.trim_matches('\'').to_owned();
    flashlock::lab::redis::ping(&url).await.unwrap();
    let state = up.temp.path().join("state.json");
    let mode = state.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    let again = |helper: &'static str| {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child
            .args(["--exact", "lab_ends::helper", "--nocapture"])
            .env(HELPER, helper)
            .env(STATE, &state);
        async move { String::from_utf8(child.output().await.unwrap().stdout).unwrap() }
    };
    let second = again("up").await;
    assert!(second.contains("a lab runs already"), "{second}");
    let shown = again("status").await;
    assert!(shown.contains(&url), "{shown}");
    assert!(
        shown.contains("code Ok(ExitCode(unix_exit_status(0)))"),
        "{shown}"
    );
    let down = again("down").await;
    assert!(
        down.contains("code Ok(ExitCode(unix_exit_status(0)))"),
        "{down}"
    );
    assert!(flashlock::lab::redis::ping(&url).await.is_err());
    assert!(up.child.wait().await.unwrap().success());
    assert!(!state.exists());
    let shown = again("status").await;
    assert!(
        shown.contains("code Ok(ExitCode(unix_exit_status(1)))"),
        "{shown}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_state_of_a_killed_lab_is_seen_to_be_stale() {
    let mut up = Parent::start("up");
    up.line_after("export FLASHLOCK_REDIS_URL=").await;
    signal_all(&[up.pid()], Signal::KILL);
    up.child.wait().await.unwrap();
    let state = up.temp.path().join("state.json");
    assert!(state.exists());
    let mut next = Parent::start_in("status", up.temp);
    let code = next.line_after("code ").await;
    assert_eq!(code, "Ok(ExitCode(unix_exit_status(1)))");
    assert!(!state.exists());
}
