//! Does RedLock keep its word when nodes are slow, hang, forget or lose something?

use flashlock::strategy::redlock::RedlockLock;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::relay::{Mode, Once, Relay};
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

/// How many SETs a node has carried out in scripts: its votes.
async fn votes(server: &Server) -> usize {
    let said = redis_command(server, &["INFO", "commandstats"]).await;
    let text: String = redis::from_redis_value(said).expect("a text");
    let set = text
        .lines()
        .find_map(|l| l.strip_prefix("cmdstat_set:calls="));
    let calls = set.and_then(|rest| rest.split(',').next());
    calls.map_or(0, |calls| calls.parse().expect("a number"))
}

/// Tries of a situation that a busy machine may spoil: a node's answer is out of its own time.
const TRIES_MAX: u32 = 10;

/// Case 28. A majority votes for it, and its lease is over when that is heard.
#[tokio::test]
async fn a_lock_that_has_expired_on_its_way_is_never_returned() {
    let servers = servers::redlock(5);
    let (relays, lock) = relayed(&servers).await;
    for _ in 0..TRIES_MAX {
        let key = key();
        for relay in &relays {
            relay.set(Mode::Slow(Duration::from_millis(160)));
        }
        let mut before = Vec::new();
        for server in &servers {
            before.push(votes(server).await);
        }
        // Room for several tries, each of which is granted too late.
        let answer = lock.acquire(&key, &terms(120, 600, Watchdog::Off)).await;
        let Err(told) = answer else {
            panic!("returned when it had expired");
        };
        let mut voted = 0;
        for (server, before) in servers.iter().zip(before) {
            voted += usize::from(votes(server).await > before);
        }
        for relay in &relays {
            relay.set(Mode::Open);
        }
        until_held_nowhere(&servers, &key).await;
        // The last try was cut off, or was too late as well; nobody else had the lock.
        match told {
            AcquireError::Busy | AcquireError::Unknown { .. } if voted >= 3 => return,
            AcquireError::Busy
            | AcquireError::Unknown { .. }
            | AcquireError::Unavailable { .. } => {}
        }
    }
    panic!("a majority never voted in time");
}

/// Case 28. Where it is returned, its lease counts from before the question, and not from the answer.
#[tokio::test]
async fn a_lock_that_was_slow_to_come_is_returned_with_what_is_left_of_its_lease() {
    const TTL: Duration = Duration::from_millis(360);
    const DELAY: Duration = Duration::from_millis(180);
    let servers = servers::redlock(5);
    let (relays, lock) = relayed(&servers).await;
    for relay in &relays {
        relay.set(Mode::Slow(DELAY));
    }
    for _ in 0..TRIES_MAX {
        let key = key();
        let answer = lock.acquire(&key, &terms(360, 2_000, Watchdog::Off)).await;
        let Ok(held) = answer else { continue };
        let returned_at = clock::now();
        // What is returned was good then; a look at it may come late on a busy machine.
        let left = held.valid_until() - returned_at;
        assert!(left <= TTL - DELAY, "{left:?} are left");
        within(S, "the loss", held.lost()).await;
        assert!(!held.is_held());
        return;
    }
    panic!("never granted");
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

/// Case 25.
#[tokio::test]
async fn one_renewal_that_fails_on_every_node_ends_nothing() {
    let servers = servers::redlock(5);
    let (relays, lock) = relayed(&servers).await;
    let rival = RedlockLock::new(&servers::urls(&servers)).expect("five nodes");
    for what in [Once::CutBefore, Once::CutAfter] {
        let key = key();
        let held = lock
            .acquire(&key, &terms(3_000, 1_000, Watchdog::On))
            .await
            .expect("free");
        // Nobody else asks on this side: the next call is the first renewal.
        for relay in &relays {
            relay.once(key.redis().as_bytes(), what);
        }
        busy(&rival, &key, 4_000).await;
        assert!(relays.iter().all(Relay::has_come), "a renewal was not cut");
        assert!(held.is_held(), "lost after {what:?}");
        assert!(held.lost().now_or_never().is_none());
        assert_eq!(held.release().await, Released::Released);
    }
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
