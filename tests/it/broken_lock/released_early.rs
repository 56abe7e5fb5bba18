//! Broken: the lock is given back as soon as it is granted, and its holder works on.

use std::future::{Future, pending};

use flashlock::clock::Instant;
use flashlock::keys::LockKey;
use flashlock::lock::{AcquireError, Fence, Guarantees, Guard, Lock, Released, Terms};
use flashlock::sale::GuardMode;
use flashlock::strategy::db_unique_insert::DbUniqueInsertLock;
use flashlock::strategy::redis_set_nx::RedisSetNxLock;
use flashlock::strategy::redlock::RedlockLock;
use flashlock::strategy::zookeeper::ZookeeperLock;

use super::{must_hold, must_oversell};
use crate::world::world;

#[derive(Debug)]
struct ReleasedEarly<L>(L);

/// Believes in a lease that it gave back. The token is the grant's own.
#[derive(Debug)]
struct Believer {
    fence: Fence,
    valid_until: Instant,
}

impl<L: Lock> Lock for ReleasedEarly<L> {
    type Guard = Believer;

    fn guarantees(&self) -> Guarantees {
        self.0.guarantees()
    }

    async fn ready(&self) -> Result<(), AcquireError> {
        self.0.ready().await
    }

    async fn acquire(&self, key: &LockKey, terms: &Terms) -> Result<Believer, AcquireError> {
        let guard = self.0.acquire(key, terms).await?;
        let believer = Believer {
            fence: guard.fence(),
            valid_until: guard.valid_until(),
        };
        guard.release().await;
        Ok(believer)
    }
}

impl Guard for Believer {
    fn fence(&self) -> Fence {
        self.fence
    }

    fn valid_until(&self) -> Instant {
        self.valid_until
    }

    fn lost(&self) -> impl Future<Output = ()> + Send {
        pending()
    }

    fn is_held(&self) -> bool {
        true
    }

    async fn release(self) -> Released {
        Released::Released
    }
}

macro_rules! cells {
    ($($module:ident = $lock:expr),+ $(,)?) => {$(
        mod $module {
            use super::*;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn oversells_on_sqlite() {
                must_oversell("sqlite", GuardMode::None, $lock).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn oversells_on_postgres() {
                must_oversell("postgres", GuardMode::None, $lock).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn oversells_on_mysql() {
                must_oversell("mysql", GuardMode::None, $lock).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn is_fenced_on_sqlite() {
                must_hold("sqlite", GuardMode::Fence, $lock).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn is_fenced_on_postgres() {
                must_hold("postgres", GuardMode::Fence, $lock).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn is_fenced_on_mysql() {
                must_hold("mysql", GuardMode::Fence, $lock).await;
            }
        }
    )+};
}

cells! {
    redis_set_nx = |_, _| {
        let url = world().lab.redis_url().expect("redis runs");
        ReleasedEarly(RedisSetNxLock::new(&url).expect("a Redis URL"))
    },
    redlock = |_, _| {
        let urls = world().lab.redlock_urls().expect("redlock's nodes run");
        ReleasedEarly(RedlockLock::new(&urls).expect("five nodes"))
    },
    zookeeper = |_, _| ReleasedEarly(ZookeeperLock::new(&world().lab.zookeeper().expect("zookeeper runs"))),
    db_unique_insert = |store, _| ReleasedEarly(DbUniqueInsertLock::new(store.lock_rows().clone())),
}
