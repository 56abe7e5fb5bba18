//! Does `zookeeper` keep its word when the network loses something?

use flashlock::strategy::zookeeper::ZookeeperLock;
use zookeeper_client::Client;

use super::relay::{Mode, Once, Relay};
use super::*;

async fn direct(server: &Server) -> Client {
    within(20 * S, "the server's start", async {
        loop {
            if let Ok(client) = Client::connect(&server.address()).await {
                return client;
            }
        }
    })
    .await
}

async fn until_nodes(client: &Client, key: &LockKey, count: usize) {
    within(10 * S, "the nodes", async {
        loop {
            let nodes = client.list_children(&key.znode()).await.unwrap_or_default();
            if nodes.len() == count {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

async fn relayed(server: &Server) -> (Relay, ZookeeperLock) {
    let relay = Relay::to(server.address()).await;
    let lock = ZookeeperLock::new(&relay.address());
    let held = at_last(&lock, &key()).await;
    assert_eq!(held.release().await, Released::Released);
    (relay, lock)
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_gives_up_leaves_no_node() {
    let server = servers::zookeeper();
    let client = direct(&server).await;
    let (a, b) = (
        ZookeeperLock::new(&server.address()),
        ZookeeperLock::new(&server.address()),
    );
    let (key, usual) = (key(), usual());
    let held = at_last(&a, &key).await;
    busy(&b, &key, 400).await;
    until_nodes(&client, &key, 1).await;
    for polls in 1..=20 {
        let mut waiting = Box::pin(b.acquire(&key, &usual));
        for _ in 0..polls {
            assert!((&mut waiting).now_or_never().is_none());
            tokio::time::sleep(Duration::from_micros(100 * polls)).await;
        }
        drop(waiting);
        until_nodes(&client, &key, 1).await;
    }
    assert_eq!(held.release().await, Released::Released);
    // The same for one that finds nobody: dropped while its node is being created.
    for polls in 1..=20 {
        let mut acquiring = Box::pin(b.acquire(&key, &usual));
        for _ in 0..polls {
            if (&mut acquiring).now_or_never().is_some() {
                break;
            }
            tokio::time::sleep(Duration::from_micros(20 * polls)).await;
        }
        drop(acquiring);
        until_nodes(&client, &key, 0).await;
    }
}

/// Case 36. The server has made the node, and says so on a connection that is cut; the session goes
/// on over another.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_creation_was_not_answered_is_found_again() {
    const TRIES_MAX: u32 = 5;
    let server = servers::zookeeper();
    let client = direct(&server).await;
    let (relay, lock) = relayed(&server).await;
    for _ in 0..TRIES_MAX {
        let key = key();
        let held = lock.acquire(&key, &usual()).await.expect("free");
        assert_eq!(held.release().await, Released::Released);
        // There is the directory already: what names a contender first is its creation.
        let path = format!("{}/lk-", key.znode());
        relay.once(path.as_bytes(), Once::CutAfter);
        let long = terms(10_000, 8_000, Watchdog::On);
        let acquiring = tokio::spawn({
            let (lock, key) = (lock.clone(), key.clone());
            async move { lock.acquire(&key, &long).await }
        });
        until_nodes(&client, &key, 1).await;
        assert!(relay.has_come(), "no creation was cut");
        let made = client.list_children(&key.znode()).await.expect("a line");
        match acquiring.await.expect("no panic") {
            // It is the one that was made before, and the only one.
            Ok(held) => {
                let now = client.list_children(&key.znode()).await.expect("a line");
                assert_eq!(now, made);
                assert_eq!(held.release().await, Released::Released);
                until_nodes(&client, &key, 0).await;
                return;
            }
            // The session was not there again in time: it is given up, and deleted.
            Err(AcquireError::Unknown { .. }) => {}
            Err(other @ (AcquireError::Busy | AcquireError::Unavailable { .. })) => {
                panic!("{other:?}")
            }
        }
        until_nodes(&client, &key, 0).await;
        let next = at_last(&lock, &key).await;
        assert_eq!(next.release().await, Released::Released);
    }
    panic!("not found again in {TRIES_MAX} tries");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_in_a_black_hole_stops_before_a_rival_is_granted() {
    let server = servers::zookeeper();
    let (relay, lock) = relayed(&server).await;
    let rival = ZookeeperLock::new(&server.address());
    let key = key();
    let held = at_last(&lock, &key).await;
    relay.set(Mode::BlackHole);
    let waiting = {
        let key = key.clone();
        tokio::spawn(async move {
            let terms = terms(10_000, 20_000, Watchdog::On);
            let guard = rival.acquire(&key, &terms).await.expect("the session ends");
            (clock::now(), guard)
        })
    };
    within(6 * S, "the loss", held.lost()).await;
    assert!(!held.is_held());
    let lost_at = clock::now();
    let (granted_at, guard) = within(20 * S, "the rival", waiting)
        .await
        .expect("no panic");
    assert!(lost_at < granted_at, "two held it at once");
    relay.set(Mode::Open);
    drop(held);
    assert_eq!(guard.release().await, Released::Released);
    // Its session has ended: it gets another.
    let held = at_last(&lock, &key).await;
    assert_eq!(held.release().await, Released::Released);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_whose_link_was_lost_is_made_up_for() {
    let server = servers::zookeeper();
    let client = direct(&server).await;
    let (relay, lock) = relayed(&server).await;
    let key = key();
    for what in [Once::CutBefore, Once::CutAfter] {
        let held = at_last(&lock, &key).await;
        // Its own node is what a release names.
        relay.once(b"/lk-", what);
        let released = within(5 * S, "the answer", held.release()).await;
        assert_ne!(released, Released::Released, "nobody confirmed it");
        until_nodes(&client, &key, 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_passes_the_lock_on_in_one_transaction_and_others_get_their_turn() {
    let server = servers::zookeeper();
    let client = direct(&server).await;
    let (a, b) = (
        ZookeeperLock::new(&server.address()),
        ZookeeperLock::new(&server.address()),
    );
    let (key, usual) = (key(), usual());
    let first = at_last(&a, &key).await;
    let mut mine = Box::pin(a.acquire(&key, &usual));
    assert!((&mut mine).now_or_never().is_none());
    let theirs = {
        let (b, key) = (b.clone(), key.clone());
        tokio::spawn(async move { b.acquire(&key, &self::usual()).await })
    };
    until_nodes(&client, &key, 2).await;
    // Ours goes to the end of the line: the other process waits already.
    assert_eq!(first.release().await, Released::Released);
    let theirs = within(5 * S, "the other's turn", theirs).await;
    let theirs = theirs.expect("no panic").expect("granted");
    assert!((&mut mine).now_or_never().is_none());
    until_nodes(&client, &key, 2).await;
    assert_eq!(theirs.release().await, Released::Released);
    let last = within(5 * S, "our turn", mine).await.expect("granted");
    assert_eq!(last.release().await, Released::Released);
    until_nodes(&client, &key, 0).await;
}

/// A holder sets its watch 20 ms after the grant: a node that has gone by then is found gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_deleted_before_it_is_watched_is_lost_as_soon() {
    const TRIES_MAX: u32 = 20;
    const WATCH_AFTER: Duration = Duration::from_millis(20);
    let server = servers::zookeeper();
    let client = direct(&server).await;
    let (relay, lock) = relayed(&server).await;
    for _ in 0..TRIES_MAX {
        let key = key();
        let begun = clock::now();
        let held = at_last(&lock, &key).await;
        // What names its node next is the watch, which reaches the server after the deletion.
        relay.once(b"/lk-", Once::Hold);
        let in_time = begun.elapsed() < WATCH_AFTER;
        within(5 * S, "the watch", async {
            while !relay.has_come() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
        let nodes = client.list_children(&key.znode()).await.expect("a line");
        let path = format!("{}/{}", key.znode(), nodes[0]);
        client.delete(&path, None).await.expect("it is there");
        relay.set(Mode::Open);
        within(S, "the loss", held.lost()).await;
        assert!(clock::now() < held.valid_until(), "it ran out");
        assert!(!held.is_held());
        assert_eq!(held.release().await, Released::NotOwner);
        if in_time {
            return;
        }
    }
    panic!("its watch was always set before");
}

/// Case 25: what is cut off is a look at its own node, by the watch or by a renewal.
#[tokio::test(flavor = "multi_thread")]
async fn one_failed_look_at_its_node_ends_nothing() {
    let server = servers::zookeeper();
    let (relay, lock) = relayed(&server).await;
    let rival = ZookeeperLock::new(&server.address());
    for what in [Once::CutBefore, Once::CutAfter] {
        let key = key();
        let held = at_last(&lock, &key).await;
        relay.once(b"/lk-", what);
        busy(&rival, &key, 5_000).await;
        assert!(relay.has_come(), "no look was cut off");
        assert!(held.is_held(), "lost after {what:?}");
        assert!(held.lost().now_or_never().is_none());
        assert_eq!(held.release().await, Released::Released);
    }
}
