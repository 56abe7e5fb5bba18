//! What every server lock promises, on real servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use flashlock::clock;
use flashlock::keys::LockKey;
use flashlock::lock::{AcquireError, Fence, Guard, Lock, Released, Terms};
use flashlock::sale::{ActivityId, Watchdog};
use flashlock::strategy::redis_set_nx::RedisSetNxLock;
use flashlock::strategy::redlock::RedlockLock;
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

// === redis-set-nx ===

fn redis_pair(server: &Server) -> (RedisSetNxLock, RedisSetNxLock) {
    let lock = || RedisSetNxLock::new(&server.url()).expect("a URL");
    (lock(), lock())
}

#[tokio::test]
async fn redis_set_nx_keeps_the_contract() {
    let server = servers::redis();
    let (a, b) = redis_pair(&server);
    busy_after_the_wait(&a, &b).await;
    dropped_acquire_leaves_nothing(&a, &b).await;
    dropped_guard_releases(&a, &b).await;
    late_release_is_refused(&a, &b).await;
    a_lost_holder_does_not_block_its_neighbours(&a).await;
    watchdog_keeps_the_lease(&a, &b).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_set_nx_excludes() {
    let server = servers::redis();
    let (a, b) = redis_pair(&server);
    excludes(vec![Arc::new(a), Arc::new(b)]).await;
}

#[tokio::test]
async fn redis_set_nx_a_deleted_key_is_lost_and_not_created_again() {
    let server = servers::redis();
    let (a, _) = redis_pair(&server);
    let key = key();
    let held = a
        .acquire(&key, &terms(600, 1_000, Watchdog::On))
        .await
        .expect("free");
    redis_command(&server, &["DEL", &key.redis()]).await;
    within(S, "the loss", held.lost()).await;
    assert!(!held.is_held());
    let exists = redis_command(&server, &["EXISTS", &key.redis()]).await;
    assert_eq!(exists, redis::Value::Int(0));
    assert_eq!(held.release().await, Released::NotOwner);
}

#[tokio::test]
async fn redis_set_nx_survives_a_script_flush() {
    let server = servers::redis();
    let (a, _) = redis_pair(&server);
    let key = key();
    for _ in 0..3 {
        let held = a.acquire(&key, &usual()).await.expect("free");
        redis_command(&server, &["SCRIPT", "FLUSH"]).await;
        assert_eq!(held.release().await, Released::Released);
        redis_command(&server, &["SCRIPT", "FLUSH"]).await;
    }
}

#[tokio::test]
async fn redis_set_nx_reseeds_its_counter() {
    let server = servers::redis();
    let (a, b) = redis_pair(&server);
    let key = key();
    a.reseed(&key, 41).await.expect("the server is up");
    b.reseed(&key, 7).await.expect("the server is up");
    let held = a.acquire(&key, &usual()).await.expect("free");
    assert_eq!(held.fence(), Fence::Token(42));
}

#[tokio::test]
async fn redis_set_nx_says_that_its_server_is_away_and_recovers() {
    let mut server = servers::redis();
    let (a, _) = redis_pair(&server);
    let key = key();
    let held = a.acquire(&key, &usual()).await.expect("free");
    assert_eq!(held.release().await, Released::Released);
    server.kill();
    away(&a, &key, "redis").await;
    server.start_again();
    let held = a.acquire(&key, &usual()).await.expect("it is back");
    assert_eq!(held.release().await, Released::Released);
}

#[tokio::test]
async fn redis_set_nx_a_grant_whose_reply_was_lost_is_given_back() {
    let server = servers::redis();
    let (a, b) = redis_pair(&server);
    let key = key();
    let held = a.acquire(&key, &usual()).await.expect("free");
    assert_eq!(held.release().await, Released::Released);
    server.freeze();
    let answer = within(
        S,
        "the answer",
        a.acquire(&key, &terms(10_000, 500, Watchdog::On)),
    )
    .await;
    assert!(
        matches!(
            answer,
            Err(AcquireError::Unknown {
                server: "redis",
                ..
            })
        ),
        "{:?}",
        answer.err()
    );
    server.thaw();
    let next = within(2 * S, "the next acquire", b.acquire(&key, &usual())).await;
    assert_eq!(next.expect("free").release().await, Released::Released);
}

#[tokio::test]
async fn redis_set_nx_a_frozen_server_ends_the_lease_at_its_deadline() {
    let server = servers::redis();
    let (a, _) = redis_pair(&server);
    let ttl = Duration::from_millis(700);
    let begun = clock::now();
    let held = a
        .acquire(&key(), &terms(700, 1_000, Watchdog::On))
        .await
        .expect("free");
    server.freeze();
    within(S, "the loss", held.lost()).await;
    assert!(clock::now() - begun <= ttl + Duration::from_millis(300));
    let released = within(3 * S, "the release", held.release()).await;
    assert_eq!(released, Released::Pending);
    server.thaw();
}

// === redlock ===

fn redlock_pair(servers: &[Server]) -> (RedlockLock, RedlockLock) {
    let lock = || RedlockLock::new(&servers::urls(servers)).expect("five nodes");
    (lock(), lock())
}

/// How many nodes hold the key.
async fn nodes_holding(servers: &[Server], key: &LockKey) -> usize {
    let mut holding = 0;
    for server in servers {
        let exists = redis_command(server, &["EXISTS", &key.redis()]).await;
        holding += usize::from(exists == redis::Value::Int(1));
    }
    holding
}

#[tokio::test]
async fn redlock_keeps_the_contract() {
    let servers = servers::redlock(5);
    let (a, b) = redlock_pair(&servers);
    busy_after_the_wait(&a, &b).await;
    dropped_acquire_leaves_nothing(&a, &b).await;
    dropped_guard_releases(&a, &b).await;
    late_release_is_refused(&a, &b).await;
    a_lost_holder_does_not_block_its_neighbours(&a).await;
    watchdog_keeps_the_lease(&a, &b).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redlock_excludes() {
    let servers = servers::redlock(5);
    let (a, b) = redlock_pair(&servers);
    excludes(vec![Arc::new(a), Arc::new(b)]).await;
}

#[tokio::test]
async fn redlock_a_majority_of_deleted_keys_is_lost_and_not_created_again() {
    let servers = servers::redlock(5);
    let (a, _) = redlock_pair(&servers);
    let key = key();
    let held = a
        .acquire(&key, &terms(900, 1_000, Watchdog::On))
        .await
        .expect("free");
    assert_eq!(nodes_holding(&servers, &key).await, 5);
    for server in &servers[..2] {
        redis_command(server, &["DEL", &key.redis()]).await;
    }
    // Two of five are gone: three still hold it, and it is renewed.
    busy(&a, &key, 1_200).await;
    assert!(held.is_held());
    redis_command(&servers[2], &["DEL", &key.redis()]).await;
    within(S, "the loss", held.lost()).await;
    assert!(nodes_holding(&servers, &key).await <= 2);
    assert_eq!(held.release().await, Released::NotOwner);
}

#[tokio::test]
async fn redlock_works_with_two_of_five_down_and_not_with_three() {
    let mut servers = servers::redlock(5);
    let (a, b) = redlock_pair(&servers);
    let key = key();
    let held = a.acquire(&key, &usual()).await.expect("free");
    servers[0].kill();
    servers[4].kill();
    assert_eq!(held.release().await, Released::Released);
    for lock in [&a, &b] {
        let held = lock.acquire(&key, &usual()).await.expect("three are up");
        busy(&b, &key, 300).await;
        assert_eq!(held.release().await, Released::Released);
    }
    let held = a.acquire(&key, &usual()).await.expect("three are up");
    servers[2].kill();
    for lock in [&a, &b] {
        let answer = within(2 * S, "the answer", lock.acquire(&key, &usual())).await;
        if lock
            .acquire(&key, &terms(10_000, 300, Watchdog::On))
            .await
            .is_ok()
        {
            panic!("granted by a minority");
        }
        drop(answer);
    }
    assert_eq!(held.release().await, Released::Pending);
    away(&b, &self::key(), "redlock").await;
    servers[2].start_again();
    servers[4].start_again();
    let held = b
        .acquire(&self::key(), &usual())
        .await
        .expect("four are up");
    assert_eq!(held.release().await, Released::Released);
}

#[tokio::test]
async fn redlock_a_frozen_majority_is_unavailable_within_the_wait() {
    let servers = servers::redlock(5);
    let (a, _) = redlock_pair(&servers);
    let held = a.acquire(&key(), &usual()).await.expect("free");
    assert_eq!(held.release().await, Released::Released);
    for server in &servers[..3] {
        server.freeze();
    }
    let begun = clock::now();
    let answer = a.acquire(&key(), &usual()).await;
    assert!(clock::now() - begun < 2 * S);
    match answer.err() {
        Some(AcquireError::Unavailable { server, source }) => {
            assert_eq!(server, "redlock");
            assert!(
                source.to_string().contains("2 of 5 nodes answer"),
                "{source}"
            );
        }
        other => panic!("{other:?}"),
    }
    for server in &servers[..3] {
        server.thaw();
    }
    let held = within(5 * S, "recovery", async {
        loop {
            if let Ok(held) = a.acquire(&key(), &usual()).await {
                return held;
            }
        }
    })
    .await;
    assert_eq!(held.release().await, Released::Released);
}

#[tokio::test]
async fn redlock_one_frozen_node_does_not_lose_the_lease() {
    let servers = servers::redlock(5);
    let (a, _) = redlock_pair(&servers);
    let held = a
        .acquire(&key(), &terms(800, 1_000, Watchdog::On))
        .await
        .expect("free");
    servers[1].freeze();
    assert!(tokio::time::timeout(2 * S, held.lost()).await.is_err());
    let begun = clock::now();
    assert_eq!(held.release().await, Released::Released);
    assert!(clock::now() - begun < Duration::from_millis(200));
    let held = within(
        3 * S,
        "the acquire",
        a.acquire(&key(), &terms(3_000, 3_000, Watchdog::On)),
    )
    .await
    .expect("four answer");
    assert_eq!(held.release().await, Released::Released);
    servers[1].thaw();
}

#[tokio::test]
async fn redlock_two_addresses_of_one_server_are_told() {
    let servers = servers::redlock(2);
    let mut urls = servers::urls(&servers);
    urls.push(urls[0].replace("127.0.0.1", "localhost"));
    let lock = RedlockLock::new(&urls).expect("three addresses");
    match lock.acquire(&key(), &usual()).await.err() {
        Some(AcquireError::Unavailable { source, .. }) => {
            assert!(
                source.to_string().contains("are the same Redis"),
                "{source}"
            );
        }
        other => panic!("{other:?}"),
    }
}
