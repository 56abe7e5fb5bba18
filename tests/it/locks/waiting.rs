//! Is a release heard, and how do processes take turns? On one Redis, with locks of their own for
//! processes.

use flashlock::strategy::redis_set_nx::RedisSetNxLock;

use super::relay::{Mode, Once, Relay};
use super::*;

/// Long enough that a test which relied on it would not end in time.
const LONG: u64 = 60_000;

fn lock(url: &str) -> RedisSetNxLock {
    RedisSetNxLock::new(url).expect("a URL")
}

/// Waits until `done`.
async fn until(what: &str, done: impl Fn() -> bool) {
    within(10 * S, what, async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

async fn until_listening(server: &Server, key: &LockKey, count: i64) {
    within(10 * S, "the subscription", async {
        loop {
            let channel = key.redis_channel();
            let said = redis_command(server, &["PUBSUB", "NUMSUB", &channel]).await;
            let listening = match said {
                redis::Value::Array(words) => words.get(1).cloned(),
                other => panic!("{other:?}"),
            };
            if listening == Some(redis::Value::Int(count)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_release_between_the_failed_try_and_the_subscription_is_not_missed() {
    let server = servers::redis();
    let relay = Relay::to(server.address()).await;
    let (holder, waiter) = (lock(&server.url()), lock(&relay.url()));
    let (key, other) = (key(), self::key());
    // Connected, and the scripts are known.
    let warm = waiter.acquire(&other, &usual()).await.expect("free");
    assert_eq!(warm.release().await, Released::Released);
    let held = holder
        .acquire(&key, &terms(LONG, 1_000, Watchdog::Off))
        .await
        .expect("free");
    let asked = relay.count(b"EVALSHA");
    relay.once(b"SUBSCRIBE", Once::Hold);
    let waiting = tokio::spawn(async move {
        let terms = terms(LONG, 10_000, Watchdog::Off);
        let guard = waiter.acquire(&key, &terms).await.expect("released");
        guard.release().await
    });
    until("the subscription", || relay.has_come()).await;
    // It has found the lock held, and does not listen yet: this is what it cannot hear.
    assert_eq!(held.release().await, Released::Released);
    relay.set(Mode::Open);
    let released = within(10 * S, "the grant", waiting)
        .await
        .expect("no panic");
    assert_eq!(released, Released::Released);
    // The first try, one with the subscription, the release: nothing was slept over and asked again.
    assert_eq!(asked.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn a_release_wakes_those_who_wait_elsewhere() {
    let server = servers::redis();
    let relay = Relay::to(server.address()).await;
    let (holder, waiter) = (lock(&server.url()), lock(&relay.url()));
    let key = key();
    for _ in 0..5 {
        let held = holder
            .acquire(&key, &terms(LONG, 1_000, Watchdog::Off))
            .await
            .expect("free");
        let asked = relay.count(b"EVALSHA");
        let begun = clock::now();
        let (waiter, wanted) = (waiter.clone(), key.clone());
        let waiting = tokio::spawn(async move {
            let terms = terms(LONG, 20_000, Watchdog::Off);
            waiter.acquire(&wanted, &terms).await.expect("released")
        });
        until_listening(&server, &key, 1).await;
        assert_eq!(held.release().await, Released::Released);
        let next = within(10 * S, "the grant", waiting)
            .await
            .expect("no panic");
        // It does not poll: a try per half second besides the first, the subscribed, the woken (and
        // loading the script once).
        let halves = usize::try_from(begun.elapsed().as_millis() / 500).expect("seconds");
        assert!(asked.load(Ordering::SeqCst) <= 4 + halves);
        assert_eq!(next.release().await, Released::Released);
        // It does not listen any more.
        until_listening(&server, &key, 0).await;
    }
}

#[tokio::test]
async fn who_cannot_listen_polls_and_is_served() {
    let server = servers::redis();
    for words in [
        "ACL SETUSER mute on >secret ~* +@all -subscribe",
        "ACL SETUSER mute resetchannels",
    ] {
        redis_command(&server, &words.split(' ').collect::<Vec<_>>()).await;
    }
    let url = format!("redis://mute:secret@{}", server.address());
    let (holder, waiter) = (lock(&server.url()), lock(&url));
    let key = key();
    let held = holder.acquire(&key, &usual()).await.expect("free");
    let wanted = key.clone();
    let waiting = tokio::spawn(async move {
        let terms = terms(LONG, 10_000, Watchdog::Off);
        waiter.acquire(&wanted, &terms).await.map(drop)
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(held.release().await, Released::Released);
    within(10 * S, "the grant", waiting)
        .await
        .expect("no panic")
        .expect("released");
}

#[tokio::test]
async fn a_waiter_whose_connection_is_cut_is_served_all_the_same() {
    let server = servers::redis();
    let relay = Relay::to(server.address()).await;
    let (holder, waiter) = (lock(&server.url()), lock(&relay.url()));
    let key = key();
    let held = holder
        .acquire(&key, &terms(LONG, 1_000, Watchdog::Off))
        .await
        .expect("free");
    let wanted = key.clone();
    let waiting = tokio::spawn(async move {
        let terms = terms(LONG, 20_000, Watchdog::Off);
        waiter.acquire(&wanted, &terms).await.map(|_guard| ())
    });
    until_listening(&server, &key, 1).await;
    relay.cut();
    // It has come again.
    until_listening(&server, &key, 1).await;
    assert_eq!(held.release().await, Released::Released);
    within(10 * S, "the grant", waiting)
        .await
        .expect("no panic")
        .expect("released");
}

#[tokio::test(flavor = "multi_thread")]
async fn within_a_process_the_lock_is_passed_on_in_one_call() {
    const ROUNDS: usize = 20;
    const CLIENTS: usize = 8;
    let server = servers::redis();
    let relay = Relay::to(server.address()).await;
    let lock = lock(&relay.url());
    let key = key();
    let first = lock.acquire(&key, &usual()).await.expect("free");
    let asked = relay.count(b"EVALSHA");
    let turns = Arc::new(std::sync::Mutex::new(Vec::new()));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|n| {
            let (lock, key, turns) = (lock.clone(), key.clone(), turns.clone());
            tokio::spawn(async move {
                for _ in 0..ROUNDS {
                    let guard = lock
                        .acquire(&key, &terms(LONG, 30_000, Watchdog::On))
                        .await
                        .expect("passed on");
                    turns.lock().expect("no panic").push((n, guard.fence()));
                    assert!(guard.is_held());
                    assert_eq!(guard.release().await, Released::Released);
                }
            })
        })
        .collect();
    // All have come to wait before the first lets go: one who waits asks nobody.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(first.release().await, Released::Released);
    for client in clients {
        within(30 * S, "the client", client)
            .await
            .expect("no panic");
    }
    let turns = turns.lock().expect("no panic");
    let tokens: Vec<i64> = turns
        .iter()
        .map(|(_, fence)| match fence {
            Fence::Token(token) => *token,
            Fence::IssuedByStore => panic!("redis issues tokens"),
        })
        .collect();
    assert!(tokens.windows(2).all(|two| two[0] < two[1]), "{tokens:?}");
    // A call per turn; towards the end nobody waits any more, and a release and an acquire are two.
    let calls = asked.load(Ordering::SeqCst);
    assert!(calls <= ROUNDS * CLIENTS + 2 * ROUNDS, "{calls}");
    // First come, first served: no client is a whole round ahead of another while all still wait.
    let early = &turns[..CLIENTS * (ROUNDS - 2)];
    for n in 0..CLIENTS {
        let served = early.iter().filter(|(m, _)| *m == n).count();
        assert!((ROUNDS - 4..=ROUNDS).contains(&served), "{n}: {served}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_passes_on_lets_others_have_their_turn() {
    let server = servers::redis();
    let (busy, other) = (lock(&server.url()), lock(&server.url()));
    let key = key();
    let over = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let (lock, key, over) = (busy.clone(), key.clone(), over.clone());
            tokio::spawn(async move {
                let terms = terms(10_000, 30_000, Watchdog::On);
                while !over.load(Ordering::SeqCst) {
                    let guard = lock.acquire(&key, &terms).await.expect("granted");
                    tokio::time::sleep(Duration::from_micros(200)).await;
                    guard.release().await;
                }
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(50)).await;
    for _ in 0..10 {
        let terms = terms(10_000, 20_000, Watchdog::On);
        let guard = other.acquire(&key, &terms).await;
        let guard = guard.expect("its turn comes");
        assert_eq!(guard.release().await, Released::Released);
    }
    over.store(true, Ordering::SeqCst);
    for client in clients {
        within(30 * S, "the client", client)
            .await
            .expect("no panic");
    }
}

#[tokio::test]
async fn a_waiter_that_leaves_while_it_is_served_keeps_nobody_waiting() {
    let server = servers::redis();
    let (a, b) = (lock(&server.url()), lock(&server.url()));
    let (key, usual) = (key(), usual());
    for polls in 1..=20 {
        let held = a.acquire(&key, &usual).await.expect("free");
        let mut leaving = Box::pin(a.acquire(&key, &usual));
        let mut behind = Box::pin(a.acquire(&key, &usual));
        assert!((&mut leaving).now_or_never().is_none());
        assert!((&mut behind).now_or_never().is_none());
        let mut releasing = Box::pin(held.release());
        // The release has chosen its heir, and may have been cut off itself.
        for _ in 0..polls {
            if (&mut releasing).now_or_never().is_some() {
                break;
            }
            tokio::time::sleep(Duration::from_micros(50 * polls)).await;
        }
        drop(leaving);
        drop(releasing);
        let next = within(S, "the one behind", behind).await.expect("its turn");
        assert_eq!(next.release().await, Released::Released);
        let next = within(S, "another process", b.acquire(&key, &usual)).await;
        assert_eq!(next.expect("free").release().await, Released::Released);
    }
}
