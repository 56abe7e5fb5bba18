//! Case 24: the holder panics inside its critical section. Its renewals end with it, and the lock is
//! free at once and not after a lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flashlock::clock::Instant;
use flashlock::deduct::Ending;
use flashlock::flow::Answer;
use flashlock::keys::LockKey;
use flashlock::lock::{AcquireError, Fence, Guarantees, Guard, Lock, Released, Terms};
use flashlock::sale::GuardMode;
use flashlock::store::Store;
use flashlock::strategy::db_unique_insert::DbUniqueInsertLock;
use flashlock::strategy::redis_set_nx::RedisSetNxLock;
use flashlock::strategy::redlock::RedlockLock;
use flashlock::strategy::zookeeper::ZookeeperLock;

use crate::embedded::{Shop, purchase};
use crate::world::world;

/// A lock whose first holder panics once it has claimed the stock.
#[derive(Debug)]
struct Panics<L> {
    lock: L,
    armed: Arc<AtomicBool>,
}

#[derive(Debug)]
struct PanicsGuard<G> {
    guard: G,
    armed: Arc<AtomicBool>,
}

impl<L: Lock> Lock for Panics<L> {
    type Guard = PanicsGuard<L::Guard>;

    fn guarantees(&self) -> Guarantees {
        self.lock.guarantees()
    }

    async fn ready(&self) -> Result<(), AcquireError> {
        self.lock.ready().await
    }

    async fn acquire(&self, key: &LockKey, terms: &Terms) -> Result<Self::Guard, AcquireError> {
        let guard = self.lock.acquire(key, terms).await?;
        Ok(PanicsGuard {
            guard,
            armed: Arc::clone(&self.armed),
        })
    }
}

impl<G: Guard> Guard for PanicsGuard<G> {
    fn fence(&self) -> Fence {
        self.guard.fence()
    }

    fn valid_until(&self) -> Instant {
        self.guard.valid_until()
    }

    fn lost(&self) -> impl Future<Output = ()> + Send {
        self.guard.lost()
    }

    fn is_held(&self) -> bool {
        assert!(!self.armed.swap(false, Ordering::SeqCst), "the holder dies");
        self.guard.is_held()
    }

    async fn release(self) -> Released {
        self.guard.release().await
    }
}

async fn frees<L: Lock>(name: &str, lock: impl Fn(&Store) -> L) {
    let armed = Arc::new(AtomicBool::new(true));
    let shop = Shop::open("postgres", 2, |store, _| Panics {
        lock: lock(store),
        armed: Arc::clone(&armed),
    })
    .await;
    let sale = shop.sale(GuardMode::Fence, 2).await;
    let died = shop.flows[0].purchase(purchase(&sale, "alice")).await;
    assert!(died.is_err(), "{name}: {died:?}");
    assert!(!armed.load(Ordering::SeqCst), "{name}: nobody died");
    // The lease is 10 s and would be renewed: another process gets in before the first of it ends.
    let buyer = shop.flows[1].purchase(purchase(&sale, "bob"));
    let ending = tokio::time::timeout(Duration::from_secs(9), buyer).await;
    match ending {
        Ok(Ok(Answer::Ended(Ending::Booked { left: 1, .. }))) => {}
        other => panic!("{name}: {other:?}"),
    }
    // And so does the one it died for: the neighbours of a holder that died do not queue behind it.
    match shop.flows[0].purchase(purchase(&sale, "alice")).await {
        Ok(Answer::Ended(Ending::Booked { left: 0, .. })) => {}
        other => panic!("{name}: {other:?}"),
    }
    shop.books(&sale).await.assert_balanced(name);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_the_critical_section_frees_the_lock() {
    let lab = &world().lab;
    let redis = lab.redis_url().expect("redis runs");
    frees("redis-set-nx", |_| {
        RedisSetNxLock::new(&redis).expect("a Redis URL")
    })
    .await;
    let nodes = lab.redlock_urls().expect("redlock's nodes run");
    frees("redlock", |_| RedlockLock::new(&nodes).expect("five nodes")).await;
    let servers = lab.zookeeper().expect("zookeeper runs");
    frees("zookeeper", |_| ZookeeperLock::new(&servers)).await;
    frees("db-unique-insert", |store| {
        DbUniqueInsertLock::new(store.lock_rows().clone())
    })
    .await;
}
