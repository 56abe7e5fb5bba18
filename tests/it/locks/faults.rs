//! Does `redis-set-nx` keep its word when the network loses something?

use flashlock::strategy::redis_set_nx::RedisSetNxLock;

use super::relay::{Once, Relay};
use super::*;

fn lock(url: &str) -> RedisSetNxLock {
    RedisSetNxLock::new(url).expect("a URL")
}

async fn holds(server: &Server, key: &LockKey) -> bool {
    redis_command(server, &["EXISTS", &key.redis()]).await == redis::Value::Int(1)
}

async fn until_free(server: &Server, key: &LockKey) {
    within(S, "the release in the background", async {
        while holds(server, key).await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// A lock behind a relay, connected, whose scripts the server knows.
async fn relayed(server: &Server) -> (Relay, RedisSetNxLock) {
    let relay = Relay::to(server.address()).await;
    let lock = lock(&relay.url());
    let key = key();
    let held = lock
        .acquire(&key, &terms(300, 2_000, Watchdog::On))
        .await
        .expect("free");
    // Long enough to have been renewed once.
    tokio::time::sleep(Duration::from_millis(250)).await;
    assert_eq!(held.release().await, Released::Released);
    (relay, lock)
}

#[tokio::test]
async fn one_failed_renewal_ends_nothing() {
    let server = servers::redis();
    let (relay, lock) = relayed(&server).await;
    for what in [Once::CutBefore, Once::CutAfter] {
        let key = key();
        let held = lock
            .acquire(&key, &terms(1_500, 1_000, Watchdog::On))
            .await
            .expect("free");
        // Nobody else asks: the next call is the first renewal.
        relay.once(b"EVALSHA", what);
        let lost = tokio::time::timeout(Duration::from_millis(3_500), held.lost()).await;
        assert!(lost.is_err(), "lost after one failed renewal");
        assert!(relay.has_come(), "no renewal was cut");
        assert!(held.is_held() && holds(&server, &key).await);
        assert_eq!(held.release().await, Released::Released);
    }
}

#[tokio::test]
async fn a_grant_whose_reply_was_dropped_is_asked_for_again_and_counts_from_the_first_call() {
    let server = servers::redis();
    let (relay, lock) = relayed(&server).await;
    let key = key();
    relay.once(key.redis().as_bytes(), Once::CutAfter);
    let begun = clock::now();
    let ttl = Duration::from_secs(20);
    let held = within(
        5 * S,
        "the grant",
        lock.acquire(&key, &terms(20_000, 4_000, Watchdog::Off)),
    )
    .await
    .expect("it was granted the first time");
    assert!(relay.has_come(), "no reply was dropped");
    // The server's lease runs from the call whose reply was lost, and ours ends no later.
    let left = redis_command(&server, &["PTTL", &key.redis()]).await;
    let redis::Value::Int(left_ms) = left else {
        panic!("{left:?}")
    };
    let server_until = clock::now() + Duration::from_millis(u64::try_from(left_ms).expect("held"));
    assert!(
        held.valid_until() <= server_until,
        "it outlives the server's"
    );
    assert!(held.valid_until() <= begun + ttl);
    assert_eq!(held.release().await, Released::Released);
    until_free(&server, &key).await;
}

#[tokio::test]
async fn a_release_after_the_connections_were_cut_reaches_the_server() {
    let server = servers::redis();
    let (relay, lock) = relayed(&server).await;
    let key = key();
    let held = lock.acquire(&key, &usual()).await.expect("free");
    relay.cut();
    let released = within(3 * S, "the answer", held.release()).await;
    assert_ne!(
        released,
        Released::NotOwner,
        "it was the owner's all the time"
    );
    until_free(&server, &key).await;

    // And when the release itself is cut, before and after it was executed.
    for what in [Once::CutBefore, Once::CutAfter] {
        let held = lock.acquire(&key, &usual()).await.expect("free");
        relay.once(b"EVALSHA", what);
        let released = within(3 * S, "the answer", held.release()).await;
        assert_eq!(released, Released::Pending, "nobody confirmed it");
        until_free(&server, &key).await;
    }
}

#[tokio::test]
async fn a_cut_pass_loses_neither_the_lock_nor_the_heir() {
    let server = servers::redis();
    let (relay, lock) = relayed(&server).await;
    let (key, usual) = (key(), usual());
    for what in [Once::CutBefore, Once::CutAfter] {
        let held = lock.acquire(&key, &usual).await.expect("free");
        let mut waiting = Box::pin(lock.acquire(&key, &usual));
        assert!((&mut waiting).now_or_never().is_none());
        relay.once(b"EVALSHA", what);
        let released = within(3 * S, "the answer", held.release()).await;
        assert_eq!(released, Released::Pending, "nobody confirmed it");
        let next = within(3 * S, "the heir", waiting).await.expect("its turn");
        assert!(next.is_held());
        assert_eq!(next.release().await, Released::Released);
        until_free(&server, &key).await;
    }
}

#[tokio::test]
async fn after_a_dropped_acquire_the_server_holds_nothing_and_nothing_is_renewed() {
    let server = servers::redis();
    let lock = lock(&server.url());
    let warm = lock.acquire(&key(), &usual()).await.expect("free");
    assert_eq!(warm.release().await, Released::Released);
    let short = terms(1_500, 1_000, Watchdog::On);
    for polls in 0..=20 {
        let key = key();
        let mut acquiring = Box::pin(lock.acquire(&key, &short));
        let mut granted = None;
        for _ in 0..polls {
            granted = (&mut acquiring).now_or_never();
            if granted.is_some() {
                break;
            }
            tokio::time::sleep(Duration::from_micros(20 * polls)).await;
        }
        drop((granted, acquiring));
        // What was on its way may arrive yet: it is gone within a second, and stays so.
        tokio::time::sleep(Duration::from_millis(20)).await;
        until_free(&server, &key).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(
            !holds(&server, &key).await,
            "it came back after {polls} polls"
        );
    }
}

#[tokio::test]
async fn a_waiter_that_died_at_the_head_blocks_nobody_longer_than_its_lease() {
    let server = servers::redis();
    let key = key();
    // A process that was granted the lock, and hears of nothing any more.
    let taken = ["SET", &key.redis(), "dead", "NX", "PX", "700"];
    redis_command(&server, &taken).await;
    let begun = clock::now();
    let held = lock(&server.url())
        .acquire(&key, &terms(10_000, 10_000, Watchdog::On))
        .await
        .expect("its lease ends");
    assert!(clock::now() - begun >= Duration::from_millis(500));
    assert_eq!(held.release().await, Released::Released);
}
