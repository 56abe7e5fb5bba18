//! Are the database's own forms what they claim to be: locked before read, or written only as read?

mod broken;
mod halves;
mod optimistic;
mod pessimistic;

use std::sync::Arc;

use flashlock::deduct::{Form, Transacted};
use flashlock::lock::Lock;
use flashlock::sale::GuardMode;
use flashlock::strategy::no_lock::NoLock;

use crate::embedded::Shop;

/// Flows in this process that stand for as many service processes.
const PROCESSES: usize = 3;
const STOCK: i64 = 20;
const BUYERS: usize = 60;
/// Fresh activities in which a broken form may be seen to oversell.
const BROKEN_TRIES_MAX: u32 = 15;

async fn shop(database: &str, form: impl Form + Clone) -> Shop {
    Shop::open_selling(database, PROCESSES, |store, _| {
        let strategy = Transacted::new(form.clone(), NoLock.guarantees(), store.clone());
        Arc::new(strategy)
    })
    .await
}

/// Asserts that a crowd served by this form buys more than there is.
async fn must_oversell(database: &str, form: impl Form + Clone) {
    let shop = shop(database, form).await;
    for _try in 0..BROKEN_TRIES_MAX {
        let sale = shop.sale(GuardMode::None, STOCK).await;
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

/// Asserts that it sells what there is, to the last unit.
async fn must_hold(database: &str, form: impl Form + Clone) {
    let shop = shop(database, form).await;
    let sale = shop.sale(GuardMode::None, STOCK).await;
    shop.crowd(&sale, BUYERS).await;
    let books = shop.books(&sale).await;
    books.assert_balanced(database);
    assert_eq!(books.live().count() as i64, STOCK, "{database}");
}
