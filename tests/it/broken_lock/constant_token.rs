//! Broken: every owner uses one token, so that a release which is sent again frees another's lock.
//! With a random token per acquisition the same client is sound, which is tested beside it.

use std::future::{Future, pending};
use std::time::Duration;

use flashlock::clock::{self, Instant};
use flashlock::keys::LockKey;
use flashlock::lock::{AcquireError, Fence, Guarantees, Guard, Lock, Released, Terms};
use flashlock::sale::GuardMode;
use flashlock::store::{LockRows, RowGrant, Store};
use redis::aio::ConnectionManager;

use super::{AGAIN, connections, must_hold, must_oversell};
use crate::world::world;

/// Deletes the key if it holds the owner's token: the textbook's release.
const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
/// A held lock is asked for again after this.
const POLL: Duration = Duration::from_millis(2);

/// Who a holder says it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    Constant,
    Random,
}

/// A textbook's client of a lock.
#[derive(Debug)]
struct Textbook<S> {
    seat: S,
    token: Token,
}

#[derive(Debug)]
struct TextbookGuard<S> {
    seat: S,
    key: LockKey,
    owner: String,
    fence: Fence,
    valid_until: Instant,
}

/// Where the lock is kept.
trait Seat: std::fmt::Debug + Clone + Send + Sync + 'static {
    /// Asks once.
    fn take(
        &self,
        key: &LockKey,
        owner: &str,
        ttl: Duration,
    ) -> impl Future<Output = Option<Fence>> + Send;

    /// Frees the lock if it is the owner's.
    fn free(&self, key: &LockKey, owner: &str) -> impl Future<Output = ()> + Send;
}

/// `SET NX PX` on one Redis, or on a majority of several.
#[derive(Clone)]
struct RedisSeat(Vec<ConnectionManager>);

/// Unique rows of the database.
#[derive(Debug, Clone)]
struct RowSeat(LockRows);

// === impl Textbook ===

impl<S: Seat> Lock for Textbook<S> {
    type Guard = TextbookGuard<S>;

    fn guarantees(&self) -> Guarantees {
        Guarantees {
            protects_by: "a textbook's lock",
            stock_lives_in: "database",
            fair: false,
            fenced: true,
            survives_failover: false,
            frees_after_crash: "lease",
            note: "for tests",
        }
    }

    async fn ready(&self) -> Result<(), AcquireError> {
        Ok(())
    }

    async fn acquire(
        &self,
        key: &LockKey,
        terms: &Terms,
    ) -> Result<TextbookGuard<S>, AcquireError> {
        let owner = match self.token {
            Token::Constant => "everyone".to_string(),
            Token::Random => uuid::Uuid::new_v4().simple().to_string(),
        };
        let deadline = clock::now() + terms.wait;
        loop {
            let valid_until = clock::now() + terms.ttl;
            if let Some(fence) = self.seat.take(key, &owner, terms.ttl).await {
                let (seat, key) = (self.seat.clone(), key.clone());
                return Ok(TextbookGuard {
                    seat,
                    key,
                    owner,
                    fence,
                    valid_until,
                });
            }
            if clock::now() + POLL >= deadline {
                return Err(AcquireError::Busy);
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

impl<S: Seat> Guard for TextbookGuard<S> {
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
        clock::now() < self.valid_until
    }

    async fn release(self) -> Released {
        self.seat.free(&self.key, &self.owner).await;
        tokio::spawn(async move {
            for pause in AGAIN {
                tokio::time::sleep(pause).await;
                self.seat.free(&self.key, &self.owner).await;
            }
        });
        Released::Released
    }
}

// === impl RedisSeat ===

impl std::fmt::Debug for RedisSeat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RedisSeat of {}", self.0.len())
    }
}

impl Seat for RedisSeat {
    async fn take(&self, key: &LockKey, owner: &str, ttl: Duration) -> Option<Fence> {
        let mut votes = 0;
        for node in &self.0 {
            let mut set = redis::cmd("SET");
            set.arg(key.redis()).arg(owner).arg("NX").arg("PX");
            set.arg(u64::try_from(ttl.as_millis()).expect("a short lease"));
            let voted: Option<String> = set
                .query_async(&mut node.clone())
                .await
                .expect("redis answers");
            votes += usize::from(voted.is_some());
        }
        if votes <= self.0.len() / 2 {
            if votes > 0 {
                self.free(key, owner).await;
            }
            return None;
        }
        let [only] = self.0.as_slice() else {
            return Some(Fence::IssuedByStore);
        };
        let incr = redis::cmd("INCR").arg(key.redis_fence()).to_owned();
        let token = incr.query_async(&mut only.clone()).await;
        Some(Fence::Token(token.expect("redis counts")))
    }

    async fn free(&self, key: &LockKey, owner: &str) {
        for node in &self.0 {
            let freed: Result<i64, _> = redis::Script::new(COMPARE_AND_DELETE)
                .key(key.redis())
                .arg(owner)
                .invoke_async(&mut node.clone())
                .await;
            freed.expect("redis answers");
        }
    }
}

// === impl RowSeat ===

impl Seat for RowSeat {
    async fn take(&self, key: &LockKey, owner: &str, ttl: Duration) -> Option<Fence> {
        match self.0.try_acquire(&key.row(), owner, ttl).await {
            Ok(RowGrant::Mine { fence }) => Some(Fence::Token(fence)),
            // A deadlock of two inserts is another contender.
            Ok(RowGrant::Held { .. }) | Err(_) => None,
        }
    }

    async fn free(&self, key: &LockKey, owner: &str) {
        let _freed = self.0.release(&key.row(), owner).await;
    }
}

// === the cells ===

async fn one_redis(token: Token) -> impl Fn(&Store, &str) -> Textbook<RedisSeat> {
    let url = world().lab.redis_url().expect("redis runs");
    let seat = RedisSeat(connections(&[url]).await);
    move |_, _| Textbook {
        seat: seat.clone(),
        token,
    }
}

async fn five_redis(token: Token) -> impl Fn(&Store, &str) -> Textbook<RedisSeat> {
    let urls = world().lab.redlock_urls().expect("redlock's nodes run");
    let seat = RedisSeat(connections(&urls).await);
    move |_, _| Textbook {
        seat: seat.clone(),
        token,
    }
}

async fn lock_rows(token: Token) -> impl Fn(&Store, &str) -> Textbook<RowSeat> {
    move |store, _| Textbook {
        seat: RowSeat(store.lock_rows().clone()),
        token,
    }
}

macro_rules! cells {
    ($($lock:ident: $database:literal as $module:ident),+ $(,)?) => {$(
        mod $module {
            use super::*;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn oversells() {
                must_oversell($database, GuardMode::None, $lock(Token::Constant).await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn with_a_random_token_holds() {
                must_hold($database, GuardMode::None, $lock(Token::Random).await).await;
            }
        }
    )+};
}

cells! {
    one_redis: "sqlite" as one_redis_for_sqlite,
    one_redis: "postgres" as one_redis_for_postgres,
    five_redis: "sqlite" as five_redis_for_sqlite,
    five_redis: "postgres" as five_redis_for_postgres,
    lock_rows: "sqlite" as lock_rows_of_sqlite,
    lock_rows: "postgres" as lock_rows_of_postgres,
}

/// Where each grant has a fencing token of its own. (Lock rows answer an owner that asks again what
/// they answered before, so that owners of one name have one token, and no fence can tell them apart.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_constant_token_is_fenced() {
    for database in ["sqlite", "postgres"] {
        must_hold(database, GuardMode::Fence, one_redis(Token::Constant).await).await;
        must_hold(
            database,
            GuardMode::Fence,
            five_redis(Token::Constant).await,
        )
        .await;
    }
}
