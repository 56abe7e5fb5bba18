//! Does a call that its caller has given up take a lock afterwards? It lies in a socket, or on its way,
//! while the release that follows it goes over a new connection.

use flashlock::strategy::redis_set_nx::RedisSetNxLock;
use flashlock::strategy::redlock::RedlockLock;

use super::relay::{Mode, Once, Relay};
use super::*;

/// Far above what any of these tests takes: a key that is gone was released, and has not expired.
const LONG: u64 = 60_000;
/// A call of which nothing is seen for so long was not carried out, or will not be.
const QUIET: Duration = Duration::from_millis(500);

async fn holder(server: &Server, key: &LockKey) -> redis::Value {
    redis_command(server, &["GET", &key.redis()]).await
}

async fn until_free(server: &Server, key: &LockKey) {
    within(10 * S, "the release in the background", async {
        while holder(server, key).await != redis::Value::Nil {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

async fn stays_free(server: &Server, key: &LockKey) {
    until_free(server, key).await;
    tokio::time::sleep(QUIET).await;
    assert_eq!(
        holder(server, key).await,
        redis::Value::Nil,
        "the late call took it"
    );
}

async fn until(what: &str, done: impl Fn() -> bool) {
    within(10 * S, what, async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

/// Five nodes of which the last is behind a relay; connected.
async fn last_relayed(servers: &[Server]) -> (Relay, RedlockLock) {
    let relay = Relay::to(servers[4].address()).await;
    let mut urls = servers::urls(servers);
    urls[4] = relay.url();
    let lock = RedlockLock::new(&urls).expect("five nodes");
    let warm = lock.acquire(&key(), &usual()).await.expect("free");
    assert_eq!(warm.release().await, Released::Released);
    (relay, lock)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vote_that_lay_in_a_frozen_node_is_taken_back_when_it_thaws() {
    let servers = servers::redlock(5);
    let lock = RedlockLock::new(&servers::urls(&servers)).expect("five nodes");
    let warm = lock.acquire(&key(), &usual()).await.expect("free");
    assert_eq!(warm.release().await, Released::Released);
    let long = terms(LONG, 2_000, Watchdog::Off);
    for given_up in [Duration::ZERO, Duration::from_millis(400)] {
        let key = key();
        servers[4].freeze();
        let held = lock.acquire(&key, &long).await.expect("four vote for it");
        // At once, with the vote still waited for, or when that is over and the node is suspected.
        tokio::time::sleep(given_up).await;
        assert_eq!(held.release().await, Released::Released);
        // Probes lie in its sockets besides.
        tokio::time::sleep(QUIET).await;
        servers[4].thaw();
        for server in &servers {
            stays_free(server, &key).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vote_that_arrives_after_its_release_is_not_cast() {
    let servers = servers::redlock(5);
    let (relay, lock) = last_relayed(&servers).await;
    let key = key();
    let name = key.redis();
    relay.once(name.as_bytes(), Once::Hold);
    let long = terms(LONG, 2_000, Watchdog::Off);
    let held = lock.acquire(&key, &long).await.expect("four vote for it");
    until("the vote", || relay.has_come()).await;
    // Until it has been given up: the release goes over another connection.
    tokio::time::sleep(QUIET).await;
    let later = relay.count(name.as_bytes());
    assert_eq!(held.release().await, Released::Released);
    until("the release", || later.load(Ordering::SeqCst) > 0).await;
    relay.set(Mode::Open);
    stays_free(&servers[4], &key).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_try_that_arrives_after_the_release_of_the_second_takes_nothing() {
    let server = servers::redis();
    let relay = Relay::to(server.address()).await;
    let lock = RedisSetNxLock::new(&relay.url()).expect("a URL");
    let warm = lock.acquire(&key(), &usual()).await.expect("free");
    assert_eq!(warm.release().await, Released::Released);
    let key = key();
    relay.once(key.redis().as_bytes(), Once::Hold);
    let held = lock
        .acquire(&key, &terms(LONG, 10_000, Watchdog::Off))
        .await
        .expect("granted to the second try");
    assert!(relay.has_come(), "no try was held");
    assert_eq!(held.release().await, Released::Released);
    relay.set(Mode::Open);
    stays_free(&server, &key).await;
}

/// Nothing depends on the server's leave to end a connection: what it refuses is done without.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_who_may_not_end_connections_has_locks_all_the_same() {
    let server = servers::redis();
    for refused in ["-client", "-client|kill", "-client|info"] {
        let user = format!("ACL SETUSER plain reset on >secret ~* &* +@all {refused}");
        redis_command(&server, &user.split(' ').collect::<Vec<_>>()).await;
        let relay = Relay::to(server.address()).await;
        let url = format!("redis://plain:secret@{}", relay.address());
        let lock = RedisSetNxLock::new(&url).expect("a URL");
        let key = key();
        for _ in 0..2 {
            let held = lock.acquire(&key, &usual()).await.expect("free");
            relay.cut();
            let released = within(5 * S, "the answer", held.release()).await;
            assert_ne!(released, Released::NotOwner, "{refused}");
            until_free(&server, &key).await;
        }
    }
}
