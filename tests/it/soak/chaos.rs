//! What is done to the processes, to Redis and to their connections, by a seed.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flashlock::clock;
use flashlock::lab::{Lab, ServerId};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::counts::Counts;
use super::crew::{Crew, Member};
use super::crowd::Crowd;
use crate::tap::{Act, Tap, has, host_of};

/// Between two kills of services of one kind, in milliseconds.
const KILL_EVERY_MS: std::ops::Range<u64> = 700..1_200;
/// Orders that are sold between two kills of a service, so that there is something to lose; and the
/// longest wait for them.
const SOLD_MIN: u64 = 4;
const SOLD_WAIT: Duration = Duration::from_secs(4);
/// Redis lives for this long, from when it answers again (20 to 90 ms after its kill, on a busy
/// machine more) to its next kill; the gates are rebuilt within that, once a buyer has noticed.
const REDIS_LIVES: Duration = Duration::from_secs(1);
/// How exactly it is seen when the first is sold after that.
const FIRST_SOLD_MS: u64 = 10;
/// Longer than the sweeper leaves a hold to its purchase.
const SLOW_MS: std::ops::Range<u64> = 3_200..4_200;
/// Of the first bookings on a connection.
const BOOKINGS_SLOWED: f64 = 0.3;
/// Longer than the lease of a claim of the outbox.
const PAUSE_MS: std::ops::Range<u64> = 8_300..9_000;
/// Most of its append-only file that Redis loses in a kill.
const CUT_BYTES_MAX: u64 = 30_000;
/// The gate waits for an answer for one second.
const LATE_MS: std::ops::Range<u64> = 1_100..2_500;
/// Of all commits, those that are cut off; of all scripts, those whose outcome stays unknown.
const COMMITS_CUT: f64 = 0.03;
const SCRIPTS_LOST: f64 = 0.03;
/// Of all publications, those whose answer is lost.
const PUBLICATIONS_LOST: f64 = 0.1;

pub(super) struct Chaos {
    pub(super) seed: u64,
    pub(super) crew: Arc<Crew>,
    pub(super) lab: Arc<Lab>,
    /// Of each sale.
    pub(super) crowds: Vec<Arc<Crowd>>,
    /// How long it lasts at least.
    pub(super) length: Duration,
    pub(super) injected: Counts,
    pub(super) stop: CancellationToken,
}

/// A proxy that cuts connections at COMMIT, before or after the database has carried it out, and
/// keeps bookings back.
pub(super) async fn before_the_database(
    url: &str,
    seed: u64,
    injected: &Counts,
    stop: &CancellationToken,
) -> Tap {
    let rng = Mutex::new(StdRng::seed_from_u64(seed));
    let (injected, stop) = (injected.clone(), stop.clone());
    Tap::before(&host_of(url), move |piece| {
        let mut rng = rng.lock().expect("no panic");
        // A statement's text is sent when its connection has not prepared it yet.
        if !stop.is_cancelled()
            && has(piece, "INSERT INTO orders")
            && !has(piece, "CONFLICT")
            && rng.random_bool(BOOKINGS_SLOWED)
        {
            injected.add("booking slowed beyond the sweeper's grace", 1);
            return Act::RequestLate(Duration::from_millis(rng.random_range(SLOW_MS)));
        }
        if stop.is_cancelled() || !has(piece, "COMMIT") || !rng.random_bool(COMMITS_CUT) {
            return Act::Pass;
        }
        if rng.random_bool(0.5) {
            injected.add("connection cut before COMMIT was read", 1);
            return Act::CutBefore;
        }
        injected.add("connection cut after COMMIT was done", 1);
        Act::CutAfter
    })
    .await
}

/// A proxy that keeps answers of Redis back, or whole requests, or drops an answer.
pub(super) async fn before_redis(
    url: &str,
    seed: u64,
    injected: &Counts,
    stop: &CancellationToken,
) -> Tap {
    let rng = Mutex::new(StdRng::seed_from_u64(seed));
    let (injected, stop) = (injected.clone(), stop.clone());
    Tap::before(&host_of(url), move |piece| {
        let mut rng = rng.lock().expect("no panic");
        if !stop.is_cancelled() && has(piece, "XADD") && rng.random_bool(PUBLICATIONS_LOST) {
            injected.add("answer of redis to a publication dropped", 1);
            return Act::CutAfter;
        }
        if stop.is_cancelled() || !has(piece, "EVALSHA") || !rng.random_bool(SCRIPTS_LOST) {
            return Act::Pass;
        }
        let by = Duration::from_millis(rng.random_range(LATE_MS));
        match rng.random_range(0..3) {
            0 => {
                injected.add("answer of redis dropped", 1);
                Act::CutAfter
            }
            1 => {
                injected.add("answer of redis late", 1);
                Act::AnswerLate(by)
            }
            _ => {
                injected.add("request to redis late", 1);
                Act::RequestLate(by)
            }
        }
    })
    .await
}

// === impl Chaos ===

impl Chaos {
    /// Everything at once, until it is stopped.
    pub(super) async fn run(self: Arc<Self>) {
        let apis = self.crew.named("api");
        let workers: Vec<&Member> = self.crew.named("worker");
        tokio::join!(
            self.kill_redis(),
            self.kill(1, "api killed", &apis),
            self.kill(2, "worker killed", &workers),
            self.pause_relays(),
            self.reconcile(),
        );
    }

    fn rng(&self, stream: u64) -> StdRng {
        StdRng::seed_from_u64(self.seed.wrapping_add(stream))
    }

    /// `false`: it is stopped.
    async fn wait(&self, ms: u64) -> bool {
        tokio::select! {
            () = self.stop.cancelled() => false,
            () = tokio::time::sleep(Duration::from_millis(ms)) => true,
        }
    }

    async fn kill_redis(&self) {
        let mut rng = self.rng(10);
        let data = self.lab.directory().join("redis/data");
        let mut turn = rng.random_range(0..8);
        while self.one_life_of_redis().await {
            self.lab.kill(ServerId::Redis).await.expect("killed");
            turn += 1;
            let what = match turn % 8 {
                0 | 1 | 3 | 5 | 6 => "redis killed",
                2 | 7 => {
                    let lost = cut(&newest_file(&data), rng.random_range(1..CUT_BYTES_MAX));
                    self.injected.add("bytes of history cut off redis", lost);
                    "redis killed and its history cut"
                }
                _ => {
                    std::fs::remove_dir_all(&data).expect("it had data");
                    std::fs::create_dir(&data).expect("a directory");
                    "redis killed and emptied"
                }
            };
            self.lab.restart(ServerId::Redis).await.expect("restarted");
            self.injected.add(what, 1);
        }
    }

    /// Notes how soon each sale goes on after Redis has come back: its gate is rebuilt until then.
    /// `false`: it is stopped.
    async fn one_life_of_redis(&self) -> bool {
        let firsts = self.crowds.iter().map(|crowd| self.first_sold(crowd));
        let firsts = futures::future::join_all(firsts).await;
        if self.stop.is_cancelled() {
            return false;
        }
        for (crowd, first) in self.crowds.iter().zip(firsts) {
            let noted =
                |what: &str, n| self.injected.add(&format!("{what} ({})", crowd.booking), n);
            match first {
                None => noted("lives of redis in which nothing was sold", 1),
                Some(first) => {
                    let ms = u64::try_from(first.as_millis()).expect("about a second");
                    noted("lives of redis in which something was sold", 1);
                    noted("ms of them before the first was sold", ms);
                }
            }
        }
        true
    }

    /// Lets Redis live, and says when it first sold something to `crowd`.
    async fn first_sold(&self, crowd: &Crowd) -> Option<Duration> {
        let (begun, before) = (clock::now(), crowd.sold());
        let mut first = None;
        while begun.elapsed() < REDIS_LIVES && self.wait(FIRST_SOLD_MS).await {
            if first.is_none() && crowd.sold() > before {
                first = Some(begun.elapsed());
            }
        }
        first
    }

    async fn until_sold(&self, more: u64) {
        let (begun, before) = (clock::now(), self.sold());
        let enough = || self.sold() >= before + more;
        while begun.elapsed() < SOLD_WAIT && !enough() && self.wait(50).await {}
    }

    fn sold(&self) -> u64 {
        self.crowds.iter().map(|crowd| crowd.sold()).sum()
    }

    async fn kill(&self, stream: u64, what: &str, members: &[&Member]) {
        let mut rng = self.rng(stream);
        loop {
            let goes_on = self.wait(rng.random_range(KILL_EVERY_MS)).await;
            // Once more at the end: nothing that happens later hides what it leaves behind.
            if self.crew.kill_one(members, &mut rng).await {
                self.injected.add(what, 1);
            }
            if !goes_on {
                return;
            }
            self.until_sold(SOLD_MIN).await;
        }
    }

    /// A relay that stood past its lease goes on with what it had claimed.
    async fn pause_relays(&self) {
        let mut rng = self.rng(3);
        let relays = self.crew.named("relay");
        let begun = clock::now();
        let longest = Duration::from_millis(PAUSE_MS.end);
        while self.wait(rng.random_range(200..400)).await {
            let paused = self.injected.of("relay paused") > 0;
            if paused && begun.elapsed() + longest > self.length {
                return;
            }
            let pauses = relays.iter().map(|relay| {
                let pause = Duration::from_millis(rng.random_range(PAUSE_MS));
                self.crew.pause(relay, pause)
            });
            futures::future::join_all(pauses).await;
            let n = relays.len() as u64;
            self.injected.add("relay paused past its lease", n);
        }
    }

    /// As an operator would who does not trust it: while it sells, and while everything breaks.
    async fn reconcile(&self) {
        let mut rng = self.rng(4);
        while self.wait(rng.random_range(400..900)).await {
            let crowd = &self.crowds[rng.random_range(0..self.crowds.len())];
            let path = format!("/v1/activities/{}/reconcile", crowd.activity);
            let told = self.crew.api(&mut rng).try_post(&path, Value::Null).await;
            if let Ok(told) = told
                && let Some(verdict) = told.body["verdict"].as_str()
            {
                self.injected.add(&format!("reconciled: {verdict}"), 1);
            }
        }
    }
}

/// The append-only file that Redis writes to.
fn newest_file(data: &Path) -> PathBuf {
    let files = std::fs::read_dir(data.join("appendonlydir")).expect("it has one");
    let paths = files.map(|file| file.expect("a file").path());
    let mut written: Vec<PathBuf> = paths
        .filter(|path| path.to_string_lossy().ends_with(".incr.aof"))
        .collect();
    written.sort_by_key(|path| std::fs::metadata(path).and_then(|m| m.modified()).ok());
    written.pop().expect("it was written to")
}

/// Cuts off up to `bytes` from the end, as if they had never reached the disk; answers how many.
fn cut(file: &Path, bytes: u64) -> u64 {
    let file = std::fs::File::options()
        .write(true)
        .open(file)
        .expect("it is ours");
    let len = file.metadata().expect("a size").len();
    let lost = bytes.min(len);
    file.set_len(len - lost).expect("cut");
    lost
}
