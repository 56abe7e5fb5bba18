//! What did one library do in one scenario, measured once?

use std::process::Stdio;
use std::time::Duration;

use flashlock::bench::cpu::{self, CpuReading};
use flashlock::lab::Lab;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::task::JoinHandle;

use crate::clock::{monotonic_ns, sleep_until};
use crate::holds::{self, HandOffs, Hold};
use crate::library::{Library, Program};
use crate::scenario::{Keys, Scenario};
use crate::server::{Reading, Servers};
use crate::worker::{Ready, Report};

/// A cold JVM or Python on a loaded machine is ready within this.
const READY_WAIT: Duration = Duration::from_secs(40);
/// After the end of the counted time: a second's grace, and the report.
const REPORT_WAIT: Duration = Duration::from_secs(15);
/// Between the word to start and the start: the word reaches all processes.
const START_AHEAD_NS: i64 = 20_000_000;

/// One measurement.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub(crate) version: String,
    pub(crate) per_s: f64,
    /// Fairness over all clients; `None` when nobody got anything.
    pub(crate) jain: Option<f64>,
    pub(crate) hand_offs: HandOffs,
    /// Pairs of holds that overlapped, in the whole run.
    pub(crate) overlaps: usize,
    pub(crate) requests_per_grant: Option<f64>,
    pub(crate) client_us_per_grant: Option<f64>,
    pub(crate) server_us_per_grant: Option<f64>,
    pub(crate) failed: u64,
    pub(crate) failure: Option<String>,
}

/// Why there is no measurement.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum NoRun {
    /// It cannot be started here at all.
    #[error("{0}")]
    Skipped(String),
    /// It was started, and broke.
    #[error("{0}")]
    Broken(String),
}

/// What all cells share.
pub(crate) struct Stage<'a> {
    pub(crate) lab: &'a Lab,
    pub(crate) servers: &'a Servers,
    /// Differs from cell to cell, so that nothing of an earlier one is met.
    pub(crate) key: String,
    pub(crate) run_ms: u64,
}

/// A driver that is connected and waits for its start. Killed when it is dropped.
struct Worker {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    complaints: JoinHandle<String>,
    version: String,
}

/// Measures once. Every driver has ended when this returns.
pub(crate) async fn measure(
    library: Library,
    scenario: Scenario,
    stage: &Stage<'_>,
) -> Result<Run, NoRun> {
    let program = library.program().map_err(NoRun::Skipped)?;
    let warm_ms = library.warm_ms();
    let start_one = || Worker::start(&program, library, scenario, stage, warm_ms);
    let starts = (0..scenario.processes()).map(|_| start_one());
    let mut workers = Vec::new();
    for worker in futures::future::join_all(starts).await {
        workers.push(worker?);
    }
    let broken = NoRun::Broken;
    let start = monotonic_ns() + START_AHEAD_NS;
    for worker in &mut workers {
        let line = format!("{start}\n");
        let said = worker.input.write_all(line.as_bytes()).await;
        said.map_err(|error| broken(error.to_string()))?;
    }
    let (from, to) = (start + ns(warm_ms), start + ns(warm_ms) + ns(stage.run_ms));
    let pids: Vec<u32> = workers.iter().filter_map(|w| w.process.id()).collect();
    sleep_until(from).await;
    let before = Counters::read(stage, &pids).await?;
    sleep_until(to).await;
    let after = Counters::read(stage, &pids).await?;

    let version = workers[0].version.clone();
    let ends = workers.into_iter().map(Worker::report);
    let mut all = All::default();
    for report in futures::future::join_all(ends).await {
        all.add(report?);
    }
    let done = stage.servers.between(&before.servers, &after.servers);
    let client_us = before.clients.as_ref().zip(after.clients.as_ref());
    let client_us = client_us.map(|(before, after)| cpu::between(before, after));
    let grants: u64 = all.counts.iter().sum();
    // On a busy machine the counters are read later than the counted time begins and ends, so they
    // are set against what was released between the readings.
    let read = before.servers.at_ns - start..after.servers.at_ns - start;
    let released = all.holds.iter().filter(|h| read.contains(&h.released_ns));
    let released = u64::try_from(released.count()).unwrap_or(u64::MAX);
    let per_grant = |n: u64| (released > 0).then(|| ratio(n, released));
    let in_order = match scenario.keys() {
        Keys::One => holds::in_order(all.holds),
        Keys::Own => Vec::new(),
    };
    Ok(Run {
        version,
        per_s: ratio(grants, stage.run_ms) * 1000.0,
        jain: holds::jain(&all.counts),
        hand_offs: holds::hand_offs(&in_order, ns(warm_ms), ns(warm_ms) + ns(stage.run_ms)),
        overlaps: holds::overlaps(&in_order).len(),
        requests_per_grant: per_grant(done.requests),
        client_us_per_grant: client_us.and_then(per_grant),
        server_us_per_grant: done.cpu_us.and_then(per_grant),
        failed: all.failed,
        failure: all.failure,
    })
}

/// What everybody had done at one moment.
struct Counters {
    servers: Reading,
    clients: Option<CpuReading>,
}

/// The reports of all processes of a scenario.
#[derive(Debug, Default)]
struct All {
    counts: Vec<u64>,
    holds: Vec<Hold>,
    failed: u64,
    failure: Option<String>,
}

// === impl NoRun ===

impl NoRun {
    /// It holds for every scenario of the library.
    pub(crate) fn is_skip(&self) -> bool {
        match self {
            Self::Skipped(_) => true,
            Self::Broken(_) => false,
        }
    }
}

// === impl Counters ===

impl Counters {
    async fn read(stage: &Stage<'_>, pids: &[u32]) -> Result<Self, NoRun> {
        Ok(Self {
            servers: stage.servers.read(stage.lab).await.map_err(NoRun::Broken)?,
            clients: cpu::read(pids),
        })
    }
}

// === impl All ===

impl All {
    fn add(&mut self, report: Report) {
        let before = self.counts.len();
        self.counts.extend(report.counts);
        self.holds
            .extend(report.holds.chunks_exact(3).map(|hold| Hold {
                client: before + usize::try_from(hold[0]).unwrap_or(0),
                acquired_ns: hold[1],
                released_ns: hold[2],
            }));
        self.failed += report.failed;
        self.failure = self.failure.take().or(report.failure);
    }
}

// === impl Worker ===

impl Worker {
    async fn start(
        program: &Program,
        library: Library,
        scenario: Scenario,
        stage: &Stage<'_>,
        warm_ms: u64,
    ) -> Result<Self, NoRun> {
        let clients = scenario.clients() / scenario.processes();
        let mut process = Command::new(&program.path)
            .args(&program.args)
            .args(["--library", &library.name()])
            .args(["--urls", &stage.servers.urls.join(",")])
            .args(["--key", &stage.key])
            .args(["--keys", scenario.keys().name()])
            .args(["--clients", &clients.to_string()])
            .args(["--warm-ms", &warm_ms.to_string()])
            .args(["--run-ms", &stage.run_ms.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| NoRun::Skipped(format!("{}: {error}", program.path.display())))?;
        let (Some(input), Some(output), Some(mut complaint)) = (
            process.stdin.take(),
            process.stdout.take(),
            process.stderr.take(),
        ) else {
            return Err(NoRun::Broken("a driver without pipes".to_owned()));
        };
        let complaints = tokio::spawn(async move {
            let mut said = Vec::new();
            // What cannot be read is not told; the exit tells that there was trouble.
            let _read = complaint.read_to_end(&mut said).await;
            String::from_utf8_lossy(&said).into_owned()
        });
        let mut worker = Self {
            process,
            input,
            output: BufReader::new(output),
            complaints,
            version: String::new(),
        };
        match worker.line::<Ready>(READY_WAIT).await {
            Ok(ready) => {
                worker.version = ready.version;
                Ok(worker)
            }
            Err(why) => Err(NoRun::Skipped(worker.end(why).await)),
        }
    }

    /// Its last line, after which it is ended.
    async fn report(mut self) -> Result<Report, NoRun> {
        match self.line::<Report>(REPORT_WAIT).await {
            Ok(report) => {
                self.kill().await;
                Ok(report)
            }
            Err(why) => Err(NoRun::Broken(self.end(why).await)),
        }
    }

    async fn line<T: serde::de::DeserializeOwned>(&mut self, wait: Duration) -> Result<T, String> {
        let mut text = String::new();
        match tokio::time::timeout(wait, self.output.read_line(&mut text)).await {
            Ok(Ok(0)) => Err("it ended without a word".to_owned()),
            Ok(Ok(_)) => serde_json::from_str(&text)
                .map_err(|error| format!("it said `{}`: {error}", text.trim())),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_elapsed) => Err(format!("it said nothing for {} s", wait.as_secs())),
        }
    }

    /// Ends it, and adds what it complained of to `why`.
    async fn end(mut self, why: String) -> String {
        self.kill().await;
        let said = match tokio::time::timeout(REPORT_WAIT, self.complaints).await {
            Ok(Ok(said)) => said,
            Ok(Err(_)) | Err(_) => String::new(),
        };
        let mut lines = said.lines().filter(|line| !line.trim().is_empty());
        // Node and Java name the error first and the way to it after; Python ends with it.
        let named = lines.clone().find(|line| line.contains("Error"));
        match named.or_else(|| lines.next_back()) {
            Some(line) => format!("{why}: {}", line.trim()),
            None => why,
        }
    }

    async fn kill(&mut self) {
        // By its own id; one that has ended already is none.
        if let Err(error) = self.process.kill().await {
            tracing::debug!(%error, "a driver had ended before it was killed");
        }
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "counts of a few seconds are far below 2^52"
)]
fn ratio(n: u64, of: u64) -> f64 {
    n as f64 / of as f64
}

fn ns(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX / 1_000_000) * 1_000_000
}
