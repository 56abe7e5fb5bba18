//! `db-for-update`: locks before it reads, and does not wait for ever.

use std::time::Duration;

use flashlock::clock;
use flashlock::store::{Store, StoreOptions};
use serde_json::json;

use crate::books::Books;
use crate::held::Held;
use crate::world::{DATABASES, Service, world};

/// Which statement finds another's lock on the stock row: the read of `db-for-update`, and the write
/// of those that read without a lock or not at all.
#[tokio::test(flavor = "multi_thread")]
async fn it_waits_before_it_reads_and_the_others_when_they_write() {
    let url = world().database("postgres").await;
    let env = [("FLASHLOCK_DATABASE_URL".to_string(), url.clone())];
    let service = Service::start(&env).await;
    for (strategy, says) in [
        ("db-for-update", "FOR UPDATE"),
        ("db-version", "AND version ="),
        ("db-conditional-update", "AND available >="),
    ] {
        let sale = json!({"strategy": strategy, "skus": [{"sku": "phone", "stock": 1}]});
        let sale = service.api.open(sale).await;
        let mut held = Held::take(&url, &sale).await;
        let (api, id) = (service.api.clone(), sale.clone());
        let buyer =
            tokio::spawn(async move { api.buy_surely(&id, "alice", "k", &[("phone", 1)]).await });
        held.until_waiters(1).await;
        let waiting = held.waiting().await;
        assert!(
            waiting.iter().all(|statement| statement.contains(says)),
            "{strategy} waits in {waiting:?}"
        );
        held.let_go().await;
        let answer = buyer.await.expect("no panic");
        assert_eq!(answer.status, 201, "{strategy}: {answer:?}");
    }
}

/// Once, and not once more for each try: a wait that was over was as long as a buyer may be kept.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_stays_locked_is_waited_for_once() {
    for database in DATABASES {
        let url = world().database(database).await;
        let env = [("FLASHLOCK_DATABASE_URL".to_string(), url.clone())];
        let service = Service::start(&env).await;
        let sale = json!({"strategy": "db-for-update", "skus": [{"sku": "phone", "stock": 1}]});
        let sale = service.api.open(sale).await;
        let options = StoreOptions {
            url,
            connections_max: 2,
        };
        let store = Store::open(&options).await.expect("the database answers");
        let mut holder = store.begin().await.expect("a transaction");
        let id = sale.parse().expect("an activity id");
        let sku = "phone".parse().expect("a SKU");
        let read = holder.available_for_update(&id, &sku).await;
        assert_eq!(read.expect("it is free"), Some(1), "{database}");

        let begun = clock::now();
        let answer = service.api.buy(&sale, "alice", "k", &[("phone", 1)]).await;
        let waited = begun.elapsed();
        answer.assert_problem(503, "busy", "nothing was sold");
        assert!(
            (Duration::from_secs(2)..Duration::from_secs(10)).contains(&waited),
            "{database}: {waited:?}"
        );
        holder.rollback().await;
        let answer = service
            .api
            .buy_surely(&sale, "alice", "k", &[("phone", 1)])
            .await;
        assert_eq!(answer.status, 201, "{database}: {answer:?}");
        Books::read(&store, &sale).await.assert_balanced(database);
    }
}
