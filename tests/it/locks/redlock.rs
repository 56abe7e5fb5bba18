//! `redlock` on five Redis.

use flashlock::strategy::redlock::RedlockLock;

use super::*;

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
async fn keeps_the_contract() {
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
async fn contenders_exclude_each_other() {
    let servers = servers::redlock(5);
    let (a, b) = redlock_pair(&servers);
    excludes(vec![Arc::new(a), Arc::new(b)]).await;
}

#[tokio::test]
async fn a_majority_of_deleted_keys_is_lost_and_not_created_again() {
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
async fn works_with_two_of_five_down_and_not_with_three() {
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
        // The first may have been under way during the crash; the second was never sent.
        for _ in 0..2 {
            let answer = within(2 * S, "the answer", lock.acquire(&key, &usual())).await;
            assert!(answer.is_err(), "granted by a minority");
        }
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
async fn a_frozen_majority_is_unavailable_within_the_wait() {
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
    let held = at_last(&a, &key()).await;
    assert_eq!(held.release().await, Released::Released);
}

#[tokio::test]
async fn one_frozen_node_does_not_lose_the_lease() {
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
async fn two_addresses_of_one_server_are_told() {
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
