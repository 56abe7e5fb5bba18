//! Does the store keep its word on every database?

mod claims;
mod closing;
mod errors;
mod lock_rows;
mod payment;
mod schema;

use flashlock::clock;
use flashlock::order::{Fingerprint, NewOrder, Order};
use flashlock::sale::{Activity, Allocation, GuardMode, Line, Purchase, Sku};
use flashlock::store::{Store, StoreOptions};
use sqlx::AnyPool;

use crate::books::Books;
use crate::embedded;
use crate::world::world;

/// A fresh database with its tables.
struct Db {
    kind: &'static str,
    url: String,
    store: Store,
}

impl Db {
    async fn new(kind: &'static str) -> Self {
        let url = world().database(kind).await;
        let store = open(&url).await;
        store.migrate().await.expect("the tables are made");
        Self { kind, url, store }
    }

    /// Another process on the same database.
    async fn other(&self) -> Store {
        open(&self.url).await
    }

    /// Connections that know nothing of the store.
    async fn raw(&self) -> AnyPool {
        AnyPool::connect(&self.url)
            .await
            .expect("the database answers")
    }

    /// An activity that sells A and B.
    async fn activity(&self, stock: i64) -> Activity {
        let mut activity = embedded::activity(GuardMode::Fence, stock);
        activity.skus = ["A", "B"]
            .map(|name| Allocation {
                sku: sku(name),
                total: stock,
            })
            .to_vec();
        self.store
            .insert_activity(&activity)
            .await
            .expect("a new activity");
        activity
    }

    /// The order of `user` for one A, booked.
    async fn booked(&self, activity: &Activity, user: &str) -> Order {
        let order = new_order(activity, user);
        let endings =
            flashlock::deduct::book(&self.store, activity, std::slice::from_ref(&order)).await;
        assert!(
            endings.iter().all(Result::is_ok),
            "{}: {endings:?}",
            self.kind
        );
        let booked = self
            .store
            .order(order.rid)
            .await
            .expect("the database answers");
        booked.unwrap_or_else(|| panic!("{}: {endings:?}", self.kind))
    }

    async fn books(&self, activity: &Activity) -> Books {
        let books = Books::read(&self.store, activity.id.as_str()).await;
        books.assert_balanced(self.kind);
        books
    }
}

async fn open(url: &str) -> Store {
    let options = StoreOptions {
        url: url.to_string(),
        connections_max: 4,
    };
    Store::open(&options).await.expect("the database answers")
}

fn sku(name: &str) -> Sku {
    name.parse().expect("a SKU")
}

/// What dedupe makes of a purchase of one A.
fn new_order(activity: &Activity, user: &str) -> NewOrder {
    let line = Line {
        sku: sku("A"),
        quantity: 1,
    };
    let (user, key) = (user.parse().expect("a user"), "k".parse().expect("a key"));
    let purchase = Purchase::new(activity.id.clone(), user, key, [line]).expect("a purchase");
    NewOrder {
        rid: purchase.rid(),
        user: purchase.user.clone(),
        fingerprint: Fingerprint::of(&purchase),
        lines: purchase.lines().to_vec(),
        admitted_at_ms: clock::wall_ms(),
    }
}
