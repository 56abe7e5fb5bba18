//! Broken: a release, sent again because its answer was lost, deletes the lock whoever holds it.

use std::future::Future;
use std::sync::Arc;

use flashlock::clock::Instant;
use flashlock::keys::LockKey;
use flashlock::lock::{AcquireError, Fence, Guarantees, Guard, Lock, Released, Terms};
use flashlock::sale::GuardMode;
use flashlock::store::Store;
use flashlock::strategy::db_unique_insert::DbUniqueInsertLock;
use flashlock::strategy::redis_set_nx::RedisSetNxLock;
use flashlock::strategy::redlock::RedlockLock;
use flashlock::strategy::zookeeper::ZookeeperLock;
use redis::aio::ConnectionManager;

use super::{AGAIN, connections, must_hold, must_oversell};
use crate::world::world;

#[derive(Debug)]
struct NoReleaseCheck<L> {
    lock: L,
    place: Arc<Place>,
}

/// Its guard: sound, but for what follows the release.
#[derive(Debug)]
struct Careless<G> {
    guard: G,
    key: LockKey,
    place: Arc<Place>,
}

/// Where a lock is kept, and can be deleted by anyone.
enum Place {
    Redis(Vec<ConnectionManager>),
    Znodes(zookeeper_client::Client),
    Rows(sqlx::AnyPool),
}

// === impl Place ===

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Redis(_) => "Redis",
            Self::Znodes(_) => "Znodes",
            Self::Rows(_) => "Rows",
        })
    }
}

impl Place {
    /// The lock rows that belong to the main database `url`.
    fn rows(url: &str) -> Arc<Self> {
        let url = match url.strip_prefix("sqlite:") {
            Some(file) => format!("sqlite:{file}-locks"),
            None => url.to_string(),
        };
        Arc::new(Self::Rows(
            sqlx::AnyPool::connect_lazy(&url).expect("a database URL"),
        ))
    }

    /// Deletes whatever lies at the lock's place. It may be nothing, and others delete too.
    async fn wipe(&self, key: &LockKey) {
        match self {
            Self::Redis(nodes) => {
                for node in nodes {
                    let mut node = node.clone();
                    // A release is announced as well; who waits then looks.
                    let mut release = redis::pipe();
                    release.del(key.redis()).ignore();
                    release.publish(key.redis_channel(), "").ignore();
                    let _deleted: Result<(), _> = release.query_async(&mut node).await;
                }
            }
            Self::Znodes(client) => {
                let Ok(mut children) = client.list_children(&key.znode()).await else {
                    return;
                };
                // The holder is the one with the lowest number, which ends each name.
                children.sort_by_key(|name| name[name.len().saturating_sub(10)..].to_string());
                if let Some(holder) = children.first() {
                    let _deleted = client
                        .delete(&format!("{}/{holder}", key.znode()), None)
                        .await;
                }
            }
            Self::Rows(pool) => {
                let sql = format!(
                    "DELETE FROM distributed_lock WHERE lock_key = '{}'",
                    key.row()
                );
                let _deleted = sqlx::query(sqlx::AssertSqlSafe(sql)).execute(pool).await;
            }
        }
    }
}

// === impl NoReleaseCheck ===

impl<L: Lock> Lock for NoReleaseCheck<L> {
    type Guard = Careless<L::Guard>;

    fn guarantees(&self) -> Guarantees {
        self.lock.guarantees()
    }

    async fn ready(&self) -> Result<(), AcquireError> {
        self.lock.ready().await
    }

    async fn acquire(&self, key: &LockKey, terms: &Terms) -> Result<Self::Guard, AcquireError> {
        let guard = self.lock.acquire(key, terms).await?;
        Ok(Careless {
            guard,
            key: key.clone(),
            place: Arc::clone(&self.place),
        })
    }
}

impl<G: Guard> Guard for Careless<G> {
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
        self.guard.is_held()
    }

    async fn release(self) -> Released {
        let released = self.guard.release().await;
        // Sent again by a task, as by a client's retry.
        tokio::spawn(async move {
            for pause in AGAIN {
                tokio::time::sleep(pause).await;
                self.place.wipe(&self.key).await;
            }
        });
        released
    }
}

// === the cells ===

async fn redis_set_nx() -> impl Fn(&Store, &str) -> NoReleaseCheck<RedisSetNxLock> {
    let url = world().lab.redis_url().expect("redis runs");
    let place = Arc::new(Place::Redis(connections(std::slice::from_ref(&url)).await));
    move |_, _| NoReleaseCheck {
        lock: RedisSetNxLock::new(&url).expect("a Redis URL"),
        place: Arc::clone(&place),
    }
}

async fn redlock() -> impl Fn(&Store, &str) -> NoReleaseCheck<RedlockLock> {
    let urls = world().lab.redlock_urls().expect("redlock's nodes run");
    let place = Arc::new(Place::Redis(connections(&urls).await));
    move |_, _| NoReleaseCheck {
        lock: RedlockLock::new(&urls).expect("five nodes"),
        place: Arc::clone(&place),
    }
}

async fn zookeeper() -> impl Fn(&Store, &str) -> NoReleaseCheck<ZookeeperLock> {
    let servers = world().lab.zookeeper().expect("zookeeper runs");
    let client = zookeeper_client::Client::connect(&servers).await;
    let place = Arc::new(Place::Znodes(client.expect("zookeeper answers")));
    move |_, _| NoReleaseCheck {
        lock: ZookeeperLock::new(&servers),
        place: Arc::clone(&place),
    }
}

async fn db_unique_insert() -> impl Fn(&Store, &str) -> NoReleaseCheck<DbUniqueInsertLock> {
    |store, url| NoReleaseCheck {
        lock: DbUniqueInsertLock::new(store.lock_rows().clone()),
        place: Place::rows(url),
    }
}

macro_rules! cells {
    ($($lock:ident),+ $(,)?) => {$(
        mod $lock {
            use super::{GuardMode, must_hold, must_oversell};

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn oversells_on_sqlite() {
                must_oversell("sqlite", GuardMode::None, super::$lock().await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn oversells_on_postgres() {
                must_oversell("postgres", GuardMode::None, super::$lock().await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn is_fenced_on_sqlite() {
                must_hold("sqlite", GuardMode::Fence, super::$lock().await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn is_fenced_on_postgres() {
                must_hold("postgres", GuardMode::Fence, super::$lock().await).await;
            }
        }
    )+};
}

cells! { redis_set_nx, redlock, zookeeper, db_unique_insert }
