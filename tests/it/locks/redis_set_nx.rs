//! `redis-set-nx` on one Redis.

use flashlock::strategy::redis_set_nx::RedisSetNxLock;

use super::*;

fn redis_pair(server: &Server) -> (RedisSetNxLock, RedisSetNxLock) {
    let lock = || RedisSetNxLock::new(&server.url()).expect("a URL");
    (lock(), lock())
}

#[tokio::test]
async fn keeps_the_contract() {
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
async fn contenders_exclude_each_other() {
    let server = servers::redis();
    let (a, b) = redis_pair(&server);
    excludes(vec![Arc::new(a), Arc::new(b)]).await;
}

#[tokio::test]
async fn a_deleted_key_is_lost_and_not_created_again() {
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
async fn survives_a_script_flush() {
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
async fn reseeds_its_counter() {
    let server = servers::redis();
    let (a, b) = redis_pair(&server);
    let key = key();
    a.reseed(&key, 41).await.expect("the server is up");
    b.reseed(&key, 7).await.expect("the server is up");
    let held = a.acquire(&key, &usual()).await.expect("free");
    assert_eq!(held.fence(), Fence::Token(42));
}

#[tokio::test]
async fn says_that_its_server_is_away_and_recovers() {
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
async fn a_grant_whose_reply_was_lost_is_given_back() {
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
async fn a_frozen_server_ends_the_lease_at_its_deadline() {
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
