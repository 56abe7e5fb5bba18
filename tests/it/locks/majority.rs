//! Does RedLock keep its word when nodes are slow, hang, forget or lose something?

use flashlock::strategy::redlock::RedlockLock;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::relay::{Mode, Relay};
use super::*;

async fn relayed(servers: &[Server]) -> (Vec<Relay>, RedlockLock) {
    let mut relays = Vec::new();
    for server in servers {
        relays.push(Relay::to(server.address()).await);
    }
    let urls: Vec<String> = relays.iter().map(Relay::url).collect();
    let lock = RedlockLock::new(&urls).expect("five nodes");
    let held = lock.acquire(&key(), &usual()).await.expect("free");
    assert_eq!(held.release().await, Released::Released);
    (relays, lock)
}

/// Half of the usual lease: it is released, and not expired. Most of it is for a busy machine.
async fn until_held_nowhere(servers: &[Server], key: &LockKey) {
    within(5 * S, "the releases in the background", async {
        for server in servers {
            while redis_command(server, &["EXISTS", &key.redis()]).await != redis::Value::Int(0) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_lock_that_has_expired_on_its_way_is_never_returned() {
    let servers = servers::redlock(5);
    let (relays, lock) = relayed(&servers).await;
    for (ttl_ms, delay_ms) in [(200, 100), (120, 160), (60, 60)] {
        let key = key();
        for relay in &relays {
            relay.set(Mode::Slow(Duration::from_millis(delay_ms)));
        }
        for _ in 0..3 {
            let begun = clock::now();
            let answer = lock.acquire(&key, &terms(ttl_ms, 600, Watchdog::Off)).await;
            match answer {
                Ok(held) => {
                    assert!(held.is_held(), "returned when it had expired");
                    assert!(held.valid_until() < clock::now() + Duration::from_millis(ttl_ms));
                    assert!(delay_ms < ttl_ms, "the answers took longer than the lease");
                    drop(held);
                }
                // The lock is free, so it was the nodes that took too long.
                Err(
                    AcquireError::Busy
                    | AcquireError::Unknown { .. }
                    | AcquireError::Unavailable { .. },
                ) => {}
            }
            assert!(clock::now() - begun < 3 * S);
        }
        for relay in &relays {
            relay.set(Mode::Open);
        }
        until_held_nowhere(&servers, &key).await;
    }
}

#[tokio::test]
async fn a_release_after_the_connections_were_cut_reaches_every_node() {
    let servers = servers::redlock(5);
    let (relays, lock) = relayed(&servers).await;
    let key = key();
    let held = lock.acquire(&key, &usual()).await.expect("free");
    for relay in &relays {
        relay.cut();
    }
    let released = within(3 * S, "the answer", held.release()).await;
    assert_ne!(released, Released::NotOwner);
    until_held_nowhere(&servers, &key).await;
}

#[tokio::test]
async fn a_node_that_hung_gets_the_releases_that_it_missed() {
    let servers = servers::redlock(5);
    let (relays, lock) = relayed(&servers).await;
    let key = key();
    let held = lock.acquire(&key, &usual()).await.expect("free");
    // The fifth got the lock, and does not hear of the release.
    relays[4].set(Mode::BlackHole);
    assert_eq!(held.release().await, Released::Released);
    for _ in 0..20 {
        let held = within(S, "the acquire", lock.acquire(&key, &usual())).await;
        let held = held.expect("four answer");
        let released = within(S, "the release", held.release()).await;
        assert_eq!(released, Released::Released);
    }
    relays[4].set(Mode::Open);
    until_held_nowhere(&servers, &key).await;
}

#[tokio::test]
async fn a_frozen_node_costs_a_bound_at_most() {
    let servers = servers::redlock(5);
    let lock = RedlockLock::new(&servers::urls(&servers)).expect("five nodes");
    let (key, usual) = (key(), usual());
    let held = lock.acquire(&key, &usual).await.expect("free");
    assert_eq!(held.release().await, Released::Released);
    servers[0].freeze();
    let begun = clock::now();
    for _ in 0..100 {
        let held = lock.acquire(&key, &usual).await.expect("four answer");
        assert_eq!(held.release().await, Released::Released);
    }
    // Each of the 200 calls by itself would have cost a bound of 250 ms.
    let took = clock::now() - begun;
    assert!(took < 10 * S, "{took:?}");
    servers[0].thaw();
    until_held_nowhere(&servers, &key).await;
}

#[tokio::test]
async fn a_forgotten_script_is_sent_again() {
    let servers = servers::redlock(5);
    let lock = RedlockLock::new(&servers::urls(&servers)).expect("five nodes");
    let key = key();
    for _ in 0..3 {
        let held = lock.acquire(&key, &usual()).await.expect("free");
        for server in &servers {
            redis_command(server, &["SCRIPT", "FLUSH"]).await;
        }
        assert_eq!(held.release().await, Released::Released);
    }
    until_held_nowhere(&servers, &key).await;
}

/// What clients send to a node, as its MONITOR tells; what scripts do is left out.
async fn monitor(server: &Server) -> mpsc::UnboundedReceiver<String> {
    let stream = TcpStream::connect(server.address())
        .await
        .expect("it is up");
    let mut stream = BufReader::new(stream);
    stream.write_all(b"MONITOR\r\n").await.expect("it reads");
    let mut line = String::new();
    stream.read_line(&mut line).await.expect("it answers");
    assert_eq!(line.trim(), "+OK");
    let (said, heard) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut lines = stream.lines();
        while let Ok(Some(line)) = lines.next_line().await {
            if !line.contains(" lua] ") && said.send(line).is_err() {
                return;
            }
        }
    });
    heard
}

/// The words of what has been heard until `mark` was.
async fn heard_until(heard: &mut mpsc::UnboundedReceiver<String>, mark: &str) -> Vec<String> {
    let mut lines = Vec::new();
    loop {
        let line = within(10 * S, "the mark", heard.recv())
            .await
            .expect("open");
        if line.contains(mark) {
            return lines;
        }
        lines.push(line.to_lowercase());
    }
}

#[tokio::test]
async fn an_acquire_and_a_release_are_one_command_each_on_every_node() {
    let servers = servers::redlock(5);
    let lock = RedlockLock::new(&servers::urls(&servers)).expect("five nodes");
    let key = key();
    let warm = lock.acquire(&key, &usual()).await.expect("free");
    assert_eq!(warm.release().await, Released::Released);
    until_held_nowhere(&servers, &key).await;
    let mut monitors = Vec::new();
    for server in &servers {
        monitors.push(monitor(server).await);
    }
    // A node which says no: the release goes to it all the same.
    redis_command(&servers[3], &["SET", &key.redis(), "another"]).await;
    let held = lock
        .acquire(&key, &usual())
        .await
        .expect("four vote for it");
    assert_eq!(held.release().await, Released::Released);
    // The slower nodes get theirs, too; a deadline for all that is on its way.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let wanted = key.redis().to_lowercase();
    for (index, heard) in monitors.iter_mut().enumerate() {
        redis_command(&servers[index], &["ECHO", "that-was-it"]).await;
        let lines = heard_until(heard, "that-was-it").await;
        let ours: Vec<&String> = lines
            .iter()
            .filter(|line| line.contains(&wanted) && line.contains("\"evalsha\""))
            .collect();
        assert_eq!(ours.len(), 2, "node {index}: {lines:#?}");
    }
}
