//! Is a broken lock seen? Each lock is broken in turn; trusted (`guard = none`) it must oversell,
//! and fenced it must not.
//!
//! Nothing here makes a critical section longer. What a test adds is what a lock's client does in
//! earnest: it lets go too early, or it sends its release again because the answer was lost.

mod constant_token;
mod lapsing;
mod no_release_check;
mod released_early;

use std::time::Duration;

use flashlock::lock::Lock;
use flashlock::sale::GuardMode;
use flashlock::store::Store;

use redis::aio::ConnectionManager;

use crate::embedded::Shop;

/// Flows in this process that stand for as many service processes.
const PROCESSES: usize = 3;
const STOCK: i64 = 20;
const BUYERS: usize = 60;
/// Fresh activities in which a broken lock may be seen to oversell.
const BROKEN_TRIES_MAX: u32 = 15;
/// Activities in which a sound lock, or a fenced one, must not.
const SOUND_TRIES: u32 = 2;
/// When a release is sent again: a critical section takes some milliseconds.
const AGAIN: [Duration; 3] = [
    Duration::from_millis(1),
    Duration::from_millis(2),
    Duration::from_millis(4),
];

/// Asserts that a crowd under this lock buys more than there is.
async fn must_oversell<L: Lock>(
    database: &str,
    guard: GuardMode,
    lock: impl Fn(&Store, &str) -> L,
) {
    let shop = Shop::open(database, PROCESSES, lock).await;
    for _try in 0..BROKEN_TRIES_MAX {
        let sale = shop.sale(guard, STOCK).await;
        shop.crowd(&sale, BUYERS).await;
        let books = shop.books(&sale).await;
        if books.oversold() > 0 {
            assert!(!books.breaches().is_empty(), "the law must see it too");
            return;
        }
    }
    panic!(
        "never oversold on {database} in {BROKEN_TRIES_MAX} activities: the suite would not see it"
    );
}

/// Asserts that it does not, and that something is sold at all.
async fn must_hold<L: Lock>(database: &str, guard: GuardMode, lock: impl Fn(&Store, &str) -> L) {
    let shop = Shop::open(database, PROCESSES, lock).await;
    for _try in 0..SOUND_TRIES {
        let sale = shop.sale(guard, STOCK).await;
        shop.crowd(&sale, BUYERS).await;
        let books = shop.books(&sale).await;
        books.assert_balanced(database);
        assert!(books.live().count() > 0, "nothing was sold on {database}");
    }
}

async fn connections(urls: &[String]) -> Vec<ConnectionManager> {
    let mut nodes = Vec::new();
    for url in urls {
        let client = redis::Client::open(url.as_str()).expect("a Redis URL");
        nodes.push(
            client
                .get_connection_manager()
                .await
                .expect("redis answers"),
        );
    }
    nodes
}
