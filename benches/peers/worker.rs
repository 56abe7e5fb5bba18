//! How does one process of a scenario run the locks that are written in Rust?
//!
//! Every driver, in whatever language, keeps to this: it is started with the arguments of
//! [`WorkerArgs`], connects, prints one JSON line with its `version`, reads the start from its
//! standard input (nanoseconds of CLOCK_MONOTONIC), and prints one JSON line, a [`Report`].
//!
//! From the start until half of the warm-up each grant is held for a millisecond, so that two holders
//! at once would be seen; from then on the critical section is empty. What ends after the warm-up
//! counts. A client whose acquire fails tries again; it is the driver that ends it, in time.

mod bare;
mod none;
mod ours;
mod rslock;
mod zookeeper_client;

use std::future::Future;
use std::io::{BufRead, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};

use crate::clock::{monotonic_ns, sleep_until};
use crate::library::Library;
use crate::scenario::Keys;

/// A critical section of the first half of the warm-up.
const PROBE_HOLD: Duration = Duration::from_millis(1);
/// After the end each client may finish what it has begun.
const GRACE: Duration = Duration::from_secs(1);

/// The arguments of every driver.
#[derive(Debug, Clone, Args)]
pub(crate) struct WorkerArgs {
    #[arg(long)]
    pub(crate) library: Library,
    /// Redis URLs, or ZooKeeper's `host:port`, with commas.
    #[arg(long, value_delimiter = ',')]
    pub(crate) urls: Vec<String>,
    /// The key; with own keys, the client's number comes behind it.
    #[arg(long)]
    pub(crate) key: String,
    #[arg(long)]
    pub(crate) keys: Keys,
    #[arg(long)]
    pub(crate) clients: usize,
    #[arg(long)]
    pub(crate) warm_ms: i64,
    #[arg(long)]
    pub(crate) run_ms: i64,
}

/// The first line of a driver.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Ready {
    pub(crate) version: String,
}

/// The last line of a driver.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Acquires and releases of each client that ended in the counted time.
    pub(crate) counts: Vec<u64>,
    /// Acquires and releases that failed, from the start on.
    pub(crate) failed: u64,
    /// What the first failure said.
    pub(crate) failure: Option<String>,
    /// Client, acquired, release called, and the next; nanoseconds since the start.
    pub(crate) holds: Vec<i64>,
}

/// A lock as its own documentation says to use it, shared by all clients of a process.
pub(crate) trait Peer: Clone + Send + Sync + 'static {
    type Held: Send;

    /// Waits for the lock; an error is a wait in vain.
    fn acquire(&self, key: &str) -> impl Future<Output = Result<Self::Held, String>> + Send;

    fn release(&self, held: Self::Held) -> impl Future<Output = Result<(), String>> + Send;
}

/// The moments of a run, in nanoseconds.
#[derive(Debug, Clone, Copy)]
struct Times {
    start: i64,
    probe_until: i64,
    from: i64,
    to: i64,
}

#[derive(Debug, Default)]
struct Client {
    count: u64,
    holds: Vec<(i64, i64)>,
}

#[derive(Debug, Default)]
struct Failures {
    count: AtomicU64,
    first: std::sync::OnceLock<String>,
}

/// Runs the lock of these arguments; an error is why it could not be opened.
pub(crate) async fn run(args: WorkerArgs) -> Result<(), String> {
    match args.library {
        Library::NoLock => drive(none::NoLock, "none", &args).await,
        Library::RawRedis | Library::RawRedlock => {
            drive(bare::Redis::open(&args.urls).await?, "none", &args).await
        }
        Library::RawZookeeper => {
            let bare = bare::Zookeeper::open(&args.urls.join(",")).await?;
            drive(bare, "none", &args).await
        }
        Library::RedisSetNx => {
            let lock = ours::redis_set_nx(&args.urls[0]).await?;
            drive(lock, env!("CARGO_PKG_VERSION"), &args).await
        }
        Library::Redlock => {
            let lock = ours::redlock(&args.urls).await?;
            drive(lock, env!("CARGO_PKG_VERSION"), &args).await
        }
        Library::Zookeeper => {
            let lock = ours::zookeeper(&args.urls.join(",")).await?;
            drive(lock, env!("CARGO_PKG_VERSION"), &args).await
        }
        Library::RslockOne | Library::RslockFive => {
            let lock = rslock::Rslock::open(&args.urls)?;
            drive(lock, &locked_version("rslock"), &args).await
        }
        Library::ZookeeperClient => {
            let lock = zookeeper_client::Recipe::open(&args.urls.join(",")).await?;
            drive(lock, &locked_version("zookeeper-client"), &args).await
        }
        Library::NodeRedlockOne
        | Library::NodeRedlockFive
        | Library::RedisPy
        | Library::PotteryFive
        | Library::Curator
        | Library::Kazoo => Err("it has a driver of its own".to_owned()),
    }
}

/// The version of a dependency, as it is built in.
fn locked_version(package: &str) -> String {
    let lock = include_str!("../../Cargo.lock");
    let mut lines = lock.lines();
    let name = format!("name = \"{package}\"");
    lines.find(|line| *line == name);
    let version = lines.next().and_then(|line| line.split('"').nth(1));
    version.unwrap_or("unknown").to_owned()
}

async fn drive<P: Peer>(peer: P, version: &str, args: &WorkerArgs) -> Result<(), String> {
    let version = version.to_owned();
    say(&Ready { version })?;
    let start = heard_start().await?;
    let from = start + args.warm_ms * 1_000_000;
    let times = Times {
        start,
        probe_until: start + args.warm_ms * 500_000,
        from,
        to: from + args.run_ms * 1_000_000,
    };
    let failures = Arc::new(Failures::default());
    let clients: Vec<_> = (0..args.clients)
        .map(|n| {
            let key = match args.keys {
                Keys::One => args.key.clone(),
                Keys::Own => format!("{}-{n}", args.key),
            };
            tokio::spawn(client(peer.clone(), key, times, failures.clone()))
        })
        .collect();
    sleep_until(times.to).await;
    let mut report = Report {
        counts: Vec::new(),
        failed: 0,
        failure: None,
        holds: Vec::new(),
    };
    let patience = tokio::time::Instant::now() + GRACE;
    for (n, task) in (0..).zip(clients) {
        // Its task is left to the end of the process: it waits for a lock that it does not get.
        let client = tokio::time::timeout_at(patience, task).await;
        let client = match client {
            Ok(ended) => ended.map_err(|error| error.to_string())?,
            Err(_elapsed) => {
                failures.note("an acquire did not end within a second of the end".to_owned());
                Client::default()
            }
        };
        report.counts.push(client.count);
        for (acquired, released) in client.holds {
            report.holds.extend([n, acquired, released]);
        }
    }
    report.failed = failures.count.load(Ordering::Relaxed);
    report.failure = failures.first.get().cloned();
    say(&report)
}

/// Acquires and releases until the end.
async fn client<P: Peer>(peer: P, key: String, times: Times, failures: Arc<Failures>) -> Client {
    let mut done = Client::default();
    sleep_until(times.start).await;
    loop {
        let held = match peer.acquire(&key).await {
            Ok(held) => held,
            Err(why) => {
                failures.note(why);
                if monotonic_ns() >= times.to {
                    return done;
                }
                // A lock that fails at once must not spin.
                tokio::task::yield_now().await;
                continue;
            }
        };
        let acquired = monotonic_ns();
        if acquired < times.probe_until {
            tokio::time::sleep(PROBE_HOLD).await;
        }
        let released = monotonic_ns();
        let ended = peer.release(held).await;
        let now = monotonic_ns();
        match ended {
            Ok(()) if (times.from..times.to).contains(&now) => done.count += 1,
            Ok(()) => {}
            Err(why) => failures.note(why),
        }
        done.holds
            .push((acquired - times.start, released - times.start));
        if now >= times.to {
            return done;
        }
    }
}

/// The start that the caller says, once all processes are ready.
async fn heard_start() -> Result<i64, String> {
    let heard = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line).map(|_| line)
    });
    let line = heard.await.map_err(|error| error.to_string())?;
    let line = line.map_err(|error| error.to_string())?;
    let start = line.trim().parse();
    start.map_err(|_no| format!("`{}` is no start in nanoseconds", line.trim()))
}

fn say(line: &impl Serialize) -> Result<(), String> {
    let text = serde_json::to_string(line).map_err(|error| error.to_string())?;
    let mut out = std::io::stdout().lock();
    let said = writeln!(out, "{text}").and_then(|()| out.flush());
    said.map_err(|error| error.to_string())
}

// === impl Failures ===

impl Failures {
    fn note(&self, why: String) {
        self.count.fetch_add(1, Ordering::Relaxed);
        // Only the first is kept.
        let _later = self.first.set(why);
    }
}
