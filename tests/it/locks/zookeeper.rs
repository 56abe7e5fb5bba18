//! `zookeeper` on one server.

use flashlock::strategy::zookeeper::ZookeeperLock;

use super::*;

fn zookeeper_pair(server: &Server) -> (ZookeeperLock, ZookeeperLock) {
    let lock = || ZookeeperLock::new(&server.address());
    (lock(), lock())
}

/// The nodes in a lock's directory, once the server has one.
async fn contenders(server: &Server, key: &LockKey) -> Vec<String> {
    let client = zookeeper_client::Client::connect(&server.address())
        .await
        .expect("the server is up");
    let nodes = client.list_children(&key.znode()).await.unwrap_or_default();
    nodes
        .into_iter()
        .map(|name| format!("{}/{name}", key.znode()))
        .collect()
}

async fn delete_node(server: &Server, path: &str) {
    let client = zookeeper_client::Client::connect(&server.address())
        .await
        .expect("the server is up");
    client.delete(path, None).await.expect("it is there");
}

#[tokio::test(flavor = "multi_thread")]
async fn keeps_the_contract() {
    let server = servers::zookeeper();
    let (a, b) = zookeeper_pair(&server);
    for lock in [&a, &b] {
        let held = at_last(lock, &key()).await;
        assert_eq!(held.release().await, Released::Released);
    }
    busy_after_the_wait(&a, &b).await;
    dropped_acquire_leaves_nothing(&a, &b).await;
    dropped_guard_releases(&a, &b).await;
    a_deleted_node_is_lost(&server, &a, &b).await;
    a_holder_outlives_its_session_timeout(&a, &b).await;
    excludes(vec![Arc::new(a), Arc::new(b)]).await;
}

async fn a_deleted_node_is_lost(server: &Server, a: &ZookeeperLock, b: &ZookeeperLock) {
    let key = key();
    let late = a.acquire(&key, &usual()).await.expect("free");
    let nodes = contenders(server, &key).await;
    assert_eq!(nodes.len(), 1);
    delete_node(server, &nodes[0]).await;
    within(S, "the loss", late.lost()).await;
    assert!(!late.is_held());
    let successor = b.acquire(&key, &usual()).await.expect("free again");
    assert_eq!(late.release().await, Released::NotOwner);
    busy(a, &key, 300).await;
    assert!(successor.is_held());
    assert_eq!(contenders(server, &key).await.len(), 1);
    assert_eq!(successor.release().await, Released::Released);
}

async fn a_holder_outlives_its_session_timeout(a: &ZookeeperLock, b: &ZookeeperLock) {
    let key = key();
    let held = a.acquire(&key, &usual()).await.expect("free");
    busy(b, &key, 6_000).await;
    assert!(held.is_held());
    assert_eq!(held.release().await, Released::Released);
}

#[tokio::test(flavor = "multi_thread")]
async fn says_that_its_server_is_away_and_recovers() {
    let mut server = servers::zookeeper();
    let (a, b) = zookeeper_pair(&server);
    let key = key();
    let held = at_last(&a, &key).await;
    server.kill();
    // Its connection is broken: within half a session timeout the holder must not write any more.
    within(3 * S, "the loss", held.lost()).await;
    assert!(!held.is_held());
    drop(held);
    // One that had a session, and one that never had.
    away(&a, &self::key(), "zookeeper").await;
    away(&b, &self::key(), "zookeeper").await;
    server.start_again();
    for lock in [&a, &b] {
        let held = at_last(lock, &key).await;
        assert_eq!(held.release().await, Released::Released);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_server_ends_the_lease_before_the_session() {
    let server = servers::zookeeper();
    let (a, _) = zookeeper_pair(&server);
    let held = at_last(&a, &key()).await;
    server.freeze();
    let begun = clock::now();
    within(4 * S, "the loss", held.lost()).await;
    assert!(clock::now() - begun < Duration::from_millis(3_600));
    let answer = within(3 * S, "the answer", a.acquire(&key(), &usual())).await;
    assert!(matches!(
        answer.err(),
        Some(AcquireError::Unavailable { .. } | AcquireError::Unknown { .. })
    ));
    server.thaw();
}
