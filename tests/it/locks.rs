//! What every server lock promises, on real servers.

mod db_faults;
mod db_unique_insert;
mod faults;
mod late_calls;
mod majority;
mod redis_set_nx;
mod redlock;
mod relay;
mod waiting;
mod zookeeper;
mod zookeeper_faults;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use flashlock::clock;
use flashlock::keys::LockKey;
use flashlock::lock::{AcquireError, Fence, Guard, Lock, Released, Terms};
use flashlock::sale::{ActivityId, Watchdog};
use futures::FutureExt;

use crate::servers::{self, Server};

const S: Duration = Duration::from_secs(1);

fn key() -> LockKey {
    LockKey::of(&ActivityId::generate())
}

fn terms(ttl_ms: u64, wait_ms: u64, watchdog: Watchdog) -> Terms {
    Terms {
        ttl: Duration::from_millis(ttl_ms),
        wait: Duration::from_millis(wait_ms),
        watchdog,
    }
}

/// Ten seconds of lease, two of waiting, renewed.
fn usual() -> Terms {
    terms(10_000, 2_000, Watchdog::On)
}

async fn within<T>(limit: Duration, what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(limit, work)
        .await
        .unwrap_or_else(|_| panic!("{what} took more than {limit:?}"))
}

async fn redis_command(server: &Server, words: &[&str]) -> redis::Value {
    let client = redis::Client::open(server.url()).expect("a URL");
    let mut connection = client
        .get_multiplexed_async_connection()
        .await
        .expect("the server is up");
    let mut command = redis::cmd(words[0]);
    for word in &words[1..] {
        command.arg(word);
    }
    command.query_async(&mut connection).await.expect("it runs")
}

// === what every lock promises ===

/// A plain read-check-write by 16 contenders over several instances loses no update, and every
/// later grant has a higher token.
async fn excludes<L: Lock>(instances: Vec<Arc<L>>) {
    const ROUNDS: i64 = 10;
    let key = key();
    let counter = Arc::new(AtomicI64::new(0));
    let last_token = Arc::new(AtomicI64::new(0));
    let contenders: Vec<_> = (0..16)
        .map(|n| {
            let lock = instances[n % instances.len()].clone();
            let (key, counter, last) = (key.clone(), counter.clone(), last_token.clone());
            tokio::spawn(async move {
                for _ in 0..ROUNDS {
                    let guard = lock
                        .acquire(&key, &terms(10_000, 30_000, Watchdog::On))
                        .await
                        .expect("granted in time");
                    let read = counter.load(Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    counter.store(read + 1, Ordering::SeqCst);
                    if let Fence::Token(token) = guard.fence() {
                        let before = last.swap(token, Ordering::SeqCst);
                        assert!(token > before, "token {token} after {before}");
                    }
                    assert_eq!(guard.release().await, Released::Released);
                }
            })
        })
        .collect();
    for contender in contenders {
        contender.await.expect("no contender failed");
    }
    assert_eq!(counter.load(Ordering::SeqCst), 16 * ROUNDS);
}

/// Who waits for a lock that stays held is told so when the wait is over, and not before.
async fn busy_after_the_wait<L: Lock>(a: &L, b: &L) {
    let key = key();
    let held = a.acquire(&key, &usual()).await.expect("free");
    for lock in [a, b] {
        let begun = clock::now();
        busy(lock, &key, 300).await;
        let waited = clock::now() - begun;
        assert!(waited >= Duration::from_millis(200), "{waited:?}");
        assert!(waited <= Duration::from_millis(900), "{waited:?}");
    }
    assert_eq!(held.release().await, Released::Released);
    let next = b.acquire(&key, &usual()).await.expect("free again");
    assert_eq!(next.release().await, Released::Released);
}

/// A future dropped after any number of polls leaves nothing for longer than a second.
async fn dropped_acquire_leaves_nothing<L: Lock>(a: &L, b: &L) {
    let (key, usual) = (key(), usual());
    for polls in 0..=20 {
        let mut acquiring = Box::pin(a.acquire(&key, &usual));
        let mut granted = None;
        for _ in 0..polls {
            granted = (&mut acquiring).now_or_never();
            if granted.is_some() {
                break;
            }
            tokio::time::sleep(Duration::from_micros(100 * polls)).await;
        }
        drop(granted);
        drop(acquiring);
        let next = within(S, "the next acquire", b.acquire(&key, &usual))
            .await
            .unwrap_or_else(|e| panic!("after {polls} polls: {e}"));
        assert_eq!(next.release().await, Released::Released);
    }
    // The same while another holds it: a dropped waiter leaves the queue.
    let held = b.acquire(&key, &usual).await.expect("free");
    for polls in 1..=20 {
        let mut waiting = Box::pin(a.acquire(&key, &usual));
        for _ in 0..polls {
            assert!((&mut waiting).now_or_never().is_none());
            tokio::time::sleep(Duration::from_micros(100 * polls)).await;
        }
    }
    assert_eq!(held.release().await, Released::Released);
    let next = within(S, "the next acquire", b.acquire(&key, &usual)).await;
    assert_eq!(next.expect("free").release().await, Released::Released);
}

/// A guard that is dropped gives the lock back in the background.
async fn dropped_guard_releases<L: Lock>(a: &L, b: &L) {
    let key = key();
    drop(a.acquire(&key, &usual()).await.expect("free"));
    let next = within(S, "the next acquire", b.acquire(&key, &usual())).await;
    assert_eq!(next.expect("free").release().await, Released::Released);
}

/// Without a watchdog a lease ends; its late release neither succeeds nor frees the successor's.
async fn late_release_is_refused<L: Lock>(a: &L, b: &L) {
    let key = key();
    let late = a
        .acquire(&key, &terms(300, 1_000, Watchdog::Off))
        .await
        .expect("free");
    within(S, "the loss", late.lost()).await;
    assert!(!late.is_held());
    let successor = b.acquire(&key, &usual()).await.expect("the lease ended");
    assert_eq!(late.release().await, Released::NotOwner);
    busy(a, &key, 100).await;
    assert!(successor.is_held());
    assert_eq!(successor.release().await, Released::Released);
}

/// A waiter of the same process is not kept waiting by a neighbour whose lease has ended.
async fn a_lost_holder_does_not_block_its_neighbours<L: Lock>(lock: &L) {
    let key = key();
    let _late = lock
        .acquire(&key, &terms(300, 1_000, Watchdog::Off))
        .await
        .expect("free");
    let next = lock.acquire(&key, &usual()).await.expect("the lease ended");
    assert_eq!(next.release().await, Released::Released);
}

/// With a watchdog a lease outlives its time to live.
async fn watchdog_keeps_the_lease<L: Lock>(a: &L, b: &L) {
    let key = key();
    let held = a
        .acquire(&key, &terms(300, 1_000, Watchdog::On))
        .await
        .expect("free");
    // Until three leases have passed, a rival does not get it.
    busy(b, &key, 900).await;
    assert!(held.is_held());
    assert!(held.lost().now_or_never().is_none());
    assert_eq!(held.release().await, Released::Released);
}

/// A server that was killed is named, well within the wait.
async fn away<L: Lock>(lock: &L, key: &LockKey, name: &str) {
    // A call that crossed the crash may have been granted; those after it were never sent.
    let first = within(3 * S, "the answer", lock.acquire(key, &usual())).await;
    assert!(matches!(
        first.err(),
        Some(AcquireError::Unknown { .. } | AcquireError::Unavailable { .. })
    ));
    for _ in 0..3 {
        let answer = within(3 * S, "the answer", lock.acquire(key, &usual())).await;
        match answer.err() {
            Some(AcquireError::Unavailable { server, .. }) => assert_eq!(server, name),
            other => panic!("{other:?}"),
        }
    }
}

/// Asks until the server has started, or is back.
async fn at_last<L: Lock>(lock: &L, key: &LockKey) -> L::Guard {
    within(20 * S, "the server's start", async {
        loop {
            if let Ok(held) = lock.acquire(key, &usual()).await {
                return held;
            }
        }
    })
    .await
}

/// Asks for a lock that stays held.
async fn busy<L: Lock>(lock: &L, key: &LockKey, wait_ms: u64) {
    let answer = lock
        .acquire(key, &terms(10_000, wait_ms, Watchdog::On))
        .await;
    match answer.err() {
        Some(AcquireError::Busy) => {}
        other => panic!("{other:?}"),
    }
}
