//! Case 32: a Redis that has not replicated the lock is replaced by its replica. Two hold the lock,
//! and only the token keeps them apart.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flashlock::clock::{self, Instant};
use flashlock::deduct::{Contention, Ending};
use flashlock::flow::Answer;
use flashlock::keys::LockKey;
use flashlock::lock::{AcquireError, Fence, Guarantees, Guard, Lock, Released, Terms};
use flashlock::sale::{ActivityId, GuardMode};
use flashlock::strategy::redis_set_nx::RedisSetNxLock;

use crate::books::Books;
use crate::embedded::{Shop, purchase};
use crate::servers::{self, Server};
use crate::world::DATABASES;

/// Far above what a replica needs to follow on a busy machine.
const FOLLOWS: Duration = Duration::from_secs(30);

/// A Redis and its replica.
struct Replicated {
    primary: Server,
    replica: Server,
}

impl Replicated {
    async fn start() -> Self {
        let (primary, replica) = (servers::redis(), servers::redis());
        let address = primary.address();
        let (host, port) = address.split_once(':').expect("host:port");
        command(&replica, &["REPLICAOF", host, port]).await;
        let deadline = clock::now() + FOLLOWS;
        loop {
            let said = command(&replica, &["INFO", "replication"]).await;
            if said.contains("master_link_status:up") {
                return Self { primary, replica };
            }
            assert!(clock::now() < deadline, "{said}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// From now on the replica hears nothing: it follows an address where nobody is.
    async fn cut_off(&self) {
        command(&self.replica, &["REPLICAOF", "127.0.0.1", "1"]).await;
    }

    /// The primary dies, and its replica serves at its address.
    async fn fail_over(&mut self) {
        let address = self.primary.address();
        let (_, port) = address.split_once(':').expect("host:port");
        self.primary.kill();
        command(&self.replica, &["REPLICAOF", "NO", "ONE"]).await;
        command(&self.replica, &["CONFIG", "SET", "port", port]).await;
    }
}

async fn command(server: &Server, words: &[&str]) -> String {
    let client = redis::Client::open(server.url()).expect("a URL");
    let mut connection = client
        .get_multiplexed_async_connection()
        .await
        .expect("the server is up");
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    command.query_async(&mut connection).await.expect("it runs")
}

/// A lock whose holder, once told to, stands still right after it has found its lease good: as in a
/// long pause of the process, between the check and the write.
#[derive(Debug)]
struct Pausing {
    lock: RedisSetNxLock,
    pause: Arc<Mutex<Option<Pause>>>,
}

#[derive(Debug)]
struct Pause {
    stands: Sender<()>,
    go_on: Receiver<()>,
}

#[derive(Debug)]
struct PausingGuard<G> {
    guard: G,
    pause: Arc<Mutex<Option<Pause>>>,
}

impl Lock for Pausing {
    type Guard = PausingGuard<<RedisSetNxLock as Lock>::Guard>;

    fn guarantees(&self) -> Guarantees {
        self.lock.guarantees()
    }

    async fn ready(&self) -> Result<(), AcquireError> {
        self.lock.ready().await
    }

    async fn acquire(&self, key: &LockKey, terms: &Terms) -> Result<Self::Guard, AcquireError> {
        let guard = self.lock.acquire(key, terms).await?;
        Ok(PausingGuard {
            guard,
            pause: Arc::clone(&self.pause),
        })
    }

    async fn reseed(&self, key: &LockKey, floor: i64) -> Result<(), AcquireError> {
        self.lock.reseed(key, floor).await
    }
}

impl<G: Guard> Guard for PausingGuard<G> {
    fn fence(&self) -> Fence {
        self.guard.fence()
    }

    fn valid_until(&self) -> Instant {
        self.guard.valid_until()
    }

    fn lost(&self) -> impl Future<Output = ()> + Send {
        self.guard.lost()
    }

    /// A process that is paused as a whole, its watchdog too, and for less than a lease, believes
    /// after it what it believed before.
    fn is_held(&self) -> bool {
        let pause = self.pause.lock().expect("no panic").take();
        if let Some(pause) = pause {
            tokio::task::block_in_place(|| {
                pause.stands.send(()).expect("the test waits");
                pause.go_on.recv().expect("the test goes on");
            });
        }
        true
    }

    async fn release(self) -> Released {
        self.guard.release().await
    }
}

/// A sale of the last unit across a failover: the first buyer's process stands still between check
/// and write meanwhile. How the first buyer ended, and the books.
async fn last_unit_across_a_failover(database: &str, guard: GuardMode) -> (Ending, Books) {
    let mut redis = Replicated::start().await;
    let url = redis.primary.url();
    let (stands, stood) = channel();
    let (go, go_on) = channel();
    let pauses = [Some(Pause { stands, go_on }), None].map(|p| Arc::new(Mutex::new(p)));
    let next = std::sync::atomic::AtomicUsize::new(0);
    let shop = Shop::open(database, 2, |_, _| {
        let n = next.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        Pausing {
            lock: RedisSetNxLock::new(&url).expect("a URL"),
            pause: Arc::clone(&pauses[n]),
        }
    })
    .await;
    let sale: ActivityId = shop.sale(guard, 1).await;
    redis.cut_off().await;

    let (flow, purchase_of_alice) = (Arc::clone(&shop.flows[0]), purchase(&sale, "alice"));
    let alice = tokio::spawn(async move { flow.purchase(purchase_of_alice).await });
    tokio::task::block_in_place(|| stood.recv_timeout(FOLLOWS)).expect("alice's process is inside");
    redis.fail_over().await;
    // Until the other process has found the new server.
    let deadline = clock::now() + FOLLOWS;
    loop {
        match shop.flows[1].purchase(purchase(&sale, "bob")).await {
            Ok(Answer::Ended(Ending::Booked { .. })) => break,
            Ok(Answer::Ended(Ending::Busy(_))) | Err(_) if clock::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            other => panic!("{database}, guard {guard}: {other:?}"),
        }
    }
    go.send(()).expect("alice's process stands still");
    let ending = match alice.await.expect("no panic") {
        Ok(Answer::Ended(ending)) => ending,
        other => panic!("{database}, guard {guard}: {other:?}"),
    };
    (ending, shop.books(&sale).await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_failover_lets_two_in_and_the_lease_does_not_see_it() {
    for database in DATABASES {
        let (alice, books) = last_unit_across_a_failover(database, GuardMode::Lease).await;
        assert!(
            matches!(alice, Ending::Booked { .. }),
            "{database}: {alice:?}"
        );
        assert_eq!(books.oversold(), 1, "{database}: the fault is not seen");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_failover_sells_nothing_twice_where_the_token_is_checked() {
    for database in DATABASES {
        let (alice, books) = last_unit_across_a_failover(database, GuardMode::Fence).await;
        assert!(
            matches!(
                alice,
                Ending::Busy(Contention::FencedOut) | Ending::SoldOut { .. }
            ),
            "{database}: {alice:?}"
        );
        books.assert_balanced(database);
        assert_eq!(books.live().count(), 1, "{database}");
    }
}
