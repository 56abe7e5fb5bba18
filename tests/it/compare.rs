//! Does `flashlock compare` say what held, refuse what it cannot run, and leave nothing behind?

use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use flashlock::bench::plan::{
    DatabaseKind, LimitsMode, LoadPlan, Patience, Plan, Profile, ServersFrom,
};
use flashlock::bench::progress::Progress;
use flashlock::bench::{exit_code, run_with};
use flashlock::lab::process::{Signal, is_alive, signal_all};
use flashlock::lab::{Binaries, LabOptions, Ports};
use flashlock::sale::GuardMode;
use flashlock::strategy::Strategy;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// A small comparison on a busy machine, with a debug build.
const RUN: Duration = Duration::from_secs(120);
/// The processes of a comparison that was killed are told by the kernel, and end in order.
const GONE: Duration = Duration::from_secs(40);

fn compare(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flashlock"));
    command.arg("compare").args(args).kill_on_drop(true);
    command
}

async fn run(args: &[&str], out: &Path) -> Output {
    let mut command = compare(args);
    command.arg("--out").arg(out);
    let ran = tokio::time::timeout(RUN, command.output()).await;
    ran.expect("it ends in time").expect("it was started")
}

fn report(out: &Path) -> Value {
    let text = std::fs::read_to_string(out.join("report.json")).expect("a report");
    serde_json::from_str(&text).expect("JSON")
}

#[tokio::test]
async fn a_small_comparison_holds_and_its_control_oversells() {
    let dir = tempfile::tempdir().expect("a directory");
    let strategies = "no-lock,db-unique-insert,db-conditional-update";
    let small = [
        "--database",
        "sqlite",
        "--users",
        "150",
        "--stock",
        "20",
        "--seed",
        "7",
    ];
    let args: Vec<&str> = ["--strategies", strategies]
        .into_iter()
        .chain(small)
        .collect();
    let output = run(&args, dir.path()).await;
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");

    let report = report(dir.path());
    let results = report["results"].as_array().expect("results");
    assert_eq!(results.len(), 3);
    for cell in &results[..2] {
        assert_eq!(cell["booked"], 20, "{cell}");
        assert_eq!(cell["unexpected"], 0, "{cell}");
        assert_eq!(cell["safety"]["verdict"], "ok", "{cell}");
        for count in [
            "oversold",
            "duplicate_orders",
            "lost_orders",
            "phantom_orders",
        ] {
            assert_eq!(cell["safety"][count], 0, "{cell}");
        }
        // 150 buyers and their second clicks: too few for a p90.
        assert!(cell["latency_ms"]["p90"].is_null() && cell["latency_ms"]["max"].is_f64());
        assert!(cell["cpu_us_per_order"]["service"].as_f64() > Some(0.0));
    }
    let control = &results[2];
    assert_eq!(control["strategy"], "no-lock", "the control comes last");
    assert!(
        control["safety"]["oversold"].as_i64() > Some(0),
        "{control}"
    );
    assert!(
        report["run"]["disturbances"]
            .as_array()
            .is_some_and(Vec::is_empty),
        "{report}"
    );
    for name in ["db-unique-insert", "db-conditional-update", "no-lock"] {
        let history = dir.path().join(format!("history/{name}.jsonl"));
        let text = std::fs::read_to_string(history).expect("a history");
        let booked = text
            .lines()
            .filter(|l| l.contains(r#""event":"ok""#))
            .count();
        assert!(booked >= 20, "{name}: {booked} acknowledged");
    }
}

#[tokio::test]
async fn what_cannot_be_compared_is_a_usage_error_that_says_why() {
    let dir = tempfile::tempdir().expect("a directory");
    for (args, says) in [
        (["--strategies", "redlok"], "redlock"),
        (["--stock", "0"], "--stock"),
        (["--instances", "1"], "--instances"),
        (["--database", "oracle"], "postgres"),
        (["--users", "many"], "--users"),
    ] {
        let output = run(&args, dir.path()).await;
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(says), "{args:?}: {said}");
    }
}

/// A comparison on a machine without any server.
async fn on_a_bare_machine(database: DatabaseKind, out: &Path) -> flashlock::run::Run {
    let plan = Plan {
        strategies: vec![
            Strategy::RedisSetNx,
            Strategy::Zookeeper,
            Strategy::DbConditionalUpdate,
        ],
        database,
        profile: Profile::Quick,
        seed: 7,
        out: out.to_path_buf(),
        servers: ServersFrom::Lab,
        zookeeper_nodes: 1,
        instances: 2,
        guard: GuardMode::Fence,
        batch_max: 1,
        limits: LimitsMode::Off,
        load: LoadPlan {
            users: 60,
            stock: 10,
            concurrency: 16,
            same_key_share: 0.1,
            other_key_share: 0.1,
            patience: Patience::lasting(Duration::from_secs(30)),
        },
        service: env!("CARGO_BIN_EXE_flashlock").into(),
        command: String::new(),
    };
    let lab = LabOptions {
        ports: Ports::Free,
        binaries: Binaries::only_in(Vec::new()),
    };
    let plan = plan.checked().expect("a valid plan");
    let run = run_with(&plan, &lab, &Progress::Silent);
    let ran = tokio::time::timeout(RUN, run).await;
    ran.expect("it ends in time").expect("it runs")
}

#[tokio::test]
async fn a_strategy_without_its_server_is_skipped_and_the_others_run() {
    let dir = tempfile::tempdir().expect("a directory");
    let run = on_a_bare_machine(DatabaseKind::Sqlite, dir.path()).await;
    for cell in &run.results[..2] {
        let why = cell.skipped.as_deref().expect("skipped");
        assert!(
            why.contains("not installed") && why.contains("install"),
            "{why}"
        );
    }
    assert_eq!(run.results[2].skipped, None);
    assert_eq!(run.results[2].booked, 10, "{:?}", run.run.disturbances);
    assert_eq!(exit_code(&run), 0);
}

#[tokio::test]
async fn without_the_database_nothing_runs_and_nothing_is_proved() {
    let dir = tempfile::tempdir().expect("a directory");
    let run = on_a_bare_machine(DatabaseKind::Postgres, dir.path()).await;
    for cell in &run.results {
        let why = cell.skipped.as_deref().expect("skipped");
        assert!(why.contains("postgres is not installed"), "{why}");
    }
    assert_eq!(exit_code(&run), 5);
}

/// A long comparison in the middle of its burst, with its temporary files in `files`, and the
/// processes it has started.
async fn in_the_middle(files: &Path, out: &Path) -> (Child, Vec<u32>) {
    let args = [
        "--strategies",
        "db-conditional-update",
        "--database",
        "sqlite",
    ];
    let mut command = compare(&args);
    command
        .args([
            "--users",
            "200000",
            "--stock",
            "100000",
            "--profile",
            "thorough",
            "--out",
        ])
        .arg(out)
        .env("TMPDIR", files)
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("it was started");
    let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
    let burst = async {
        while let Ok(Some(line)) = lines.next_line().await {
            if line.contains("200000 buyers") {
                return;
            }
        }
        panic!("it ended before its burst");
    };
    tokio::time::timeout(RUN, burst).await.expect("a burst");
    // Read on, so that it is never blocked by what it says.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    let services = below(child.id().expect("it runs"));
    assert!(
        services.len() >= 4,
        "two wards and two services: {services:?}"
    );
    (child, services)
}

/// The processes below `root`.
fn below(root: u32) -> Vec<u32> {
    let all: Vec<(u32, u32)> = procfs::process::all_processes()
        .expect("procfs")
        .flatten()
        .filter_map(|p| p.stat().ok())
        .filter_map(|s| Some((u32::try_from(s.pid).ok()?, u32::try_from(s.ppid).ok()?)))
        .collect();
    let mut found = vec![root];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(
            all.iter()
                .filter(|(_, up)| *up == parent)
                .map(|(pid, _)| *pid),
        );
        next += 1;
    }
    found.split_off(1)
}

/// Waits until the processes have ended and nothing is left in `files`.
async fn all_gone(pids: &[u32], files: &Path) {
    let left = || std::fs::read_dir(files).map_or(0, Iterator::count);
    let gone = async {
        while pids.iter().any(|pid| is_alive(*pid)) || left() > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let in_time = tokio::time::timeout(GONE, gone).await;
    assert!(
        in_time.is_ok(),
        "of {pids:?} and {} files some are left",
        left()
    );
}

#[tokio::test]
async fn a_comparison_that_is_killed_leaves_nothing_behind() {
    let dir = tempfile::tempdir().expect("a directory");
    let files = tempfile::tempdir().expect("a directory");
    let (mut child, services) = in_the_middle(files.path(), dir.path()).await;
    child.kill().await.expect("killed");
    all_gone(&services, files.path()).await;
}

#[tokio::test]
async fn ctrl_c_ends_a_comparison_and_all_it_started() {
    let dir = tempfile::tempdir().expect("a directory");
    let files = tempfile::tempdir().expect("a directory");
    let (mut child, services) = in_the_middle(files.path(), dir.path()).await;
    signal_all(&[child.id().expect("it runs")], Signal::INT);
    let ended = tokio::time::timeout(GONE, child.wait()).await;
    let status = ended.expect("it ends in time").expect("a status");
    assert_eq!(status.code(), Some(130));
    all_gone(&services, files.path()).await;
    assert!(
        !dir.path().join("report.json").exists(),
        "half a run is no report"
    );
}
