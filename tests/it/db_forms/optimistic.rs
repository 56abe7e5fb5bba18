//! `db-version`: writes what it read or nothing, tries so often and no more, and counts.

use std::collections::BTreeSet;

use flashlock::sale::GuardMode;
use flashlock::store::{Store, StoreError, StoreOptions, Tx};
use serde_json::json;
use sqlx::AnyPool;
use tokio::task::JoinSet;

use crate::books::Books;
use crate::embedded;
use crate::world::{Api, DATABASES, Service, world};

/// The value of a counter in `/metrics`.
async fn counter(api: &Api, name: &str) -> u64 {
    let answer = api.get("/metrics").await;
    let text = answer.body.as_str().expect("text").to_string();
    let line = text.lines().find(|line| line.starts_with(name));
    let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
    value.unwrap_or_else(|| panic!("no {name} in {text}"))
}

/// (conflicts, give-ups)
async fn counted(api: &Api) -> (u64, u64) {
    (
        counter(api, "flashlock_version_conflicts_total ").await,
        counter(api, "flashlock_version_give_ups_total ").await,
    )
}

/// No write finds the version that was read: by a trigger, so that it is no matter of luck.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_others_keep_writing_is_given_up_and_counted() {
    let url = world().database("sqlite").await;
    let env = [("FLASHLOCK_DATABASE_URL".to_string(), url.clone())];
    let service = Service::start(&env).await;
    let api = &service.api;
    let sale = json!({"strategy": "db-version", "skus": [{"sku": "phone", "stock": 2}]});
    let sale = api.open(sale).await;
    let pool = AnyPool::connect(&url).await.expect("the database answers");
    let run = async |sql: &'static str| {
        sqlx::query(sql).execute(&pool).await.expect("it runs");
    };
    assert_eq!(counted(api).await, (0, 0));
    let help = api.get("/metrics").await;
    for name in ["conflicts", "give_ups"] {
        let help = help.body.as_str().expect("text");
        assert!(
            help.contains(&format!("# HELP flashlock_version_{name}_total ")),
            "{help}"
        );
    }

    const OUTRUN: &str = "CREATE TRIGGER outrun BEFORE UPDATE OF version ON activity_sku \
                          BEGIN SELECT RAISE(IGNORE); END";
    run(OUTRUN).await;
    let answer = api.buy(&sale, "alice", "k", &[("phone", 1)]).await;
    answer.assert_problem(503, "busy", "nothing was sold");
    assert_eq!(answer.body["retry_with_same_key"], true);
    assert_eq!(counted(api).await, (16, 1));
    assert_eq!(api.stock(&sale, "phone").await, (2, 2, 0, 0));
    run("DROP TRIGGER outrun").await;
    let booked = api.buy(&sale, "alice", "k", &[("phone", 1)]).await;
    assert_eq!(booked.status, 201, "{booked:?}");

    run(OUTRUN).await;
    let cancel = format!("/v1/orders/{}/cancel", booked.order_id());
    let answer = api.post(&cancel, json!(null)).await;
    assert_eq!(answer.status, 503, "{answer:?}");
    assert_eq!(counted(api).await, (32, 2));
    assert_eq!(api.stock(&sale, "phone").await, (2, 1, 1, 0));
    run("DROP TRIGGER outrun").await;
    let answer = api.post(&cancel, json!(null)).await;
    assert_eq!(answer.body["status"], "CLOSED", "{answer:?}");
    assert_eq!(api.stock(&sale, "phone").await, (2, 2, 0, 0));
}

/// Buyers of one row, over two processes: some of them are outrun, all of them are served.
#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_is_outrun_and_served_all_the_same() {
    for database in ["postgres", "mysql"] {
        let url = world().database(database).await;
        let env = [("FLASHLOCK_DATABASE_URL".to_string(), url.clone())];
        let (one, two) = tokio::join!(Service::start(&env), Service::start(&env));
        let sale = json!({"strategy": "db-version", "skus": [{"sku": "phone", "stock": 40}]});
        let sale = one.api.open(sale).await;
        let mut crowd = JoinSet::new();
        for n in 0..40 {
            let api = [&one, &two][n % 2].api.clone();
            let sale = sale.clone();
            crowd.spawn(async move {
                api.buy_surely(&sale, &format!("u-{n}"), "k", &[("phone", 1)])
                    .await
            });
        }
        for answer in crowd.join_all().await {
            assert!(matches!(answer.status, 200 | 201), "{database}: {answer:?}");
        }
        let conflicts = counted(&one.api).await.0 + counted(&two.api).await.0;
        assert!(conflicts > 0, "{database}: nobody was ever outrun");
        assert_eq!(one.api.stock(&sale, "phone").await, (40, 0, 40, 0));
    }
}

/// Whichever strategy writes the stock, who read it before without a lock is refused: so a reader
/// that was paused while the activity changed its strategy cannot write what it read.
#[tokio::test(flavor = "multi_thread")]
async fn every_write_of_the_stock_raises_its_version() {
    for database in DATABASES {
        let options = StoreOptions {
            url: world().database(database).await,
            connections_max: 4,
        };
        let store = Store::open(&options).await.expect("the database answers");
        store.migrate().await.expect("the tables are made");
        let activity = embedded::activity(GuardMode::Fence, 5);
        store.insert_activity(&activity).await.expect("inserted");
        let (id, sku) = (&activity.id, &activity.skus[0].sku);
        let version = async || {
            let mut tx = store.begin().await.expect("a transaction");
            let read = tx.versioned(id, sku).await.expect("an answer");
            tx.rollback().await;
            read.expect("it is sold").version
        };
        let skus = std::slice::from_ref(sku);
        let fence = flashlock::store::Fence::Token(7);
        let claimed = store
            .claim(id, skus, 0, fence, &mut BTreeSet::new())
            .await
            .expect("an answer");
        let flashlock::store::Claimed::Mine(claimed) = claimed else {
            panic!("{database}: {claimed:?}");
        };
        let claim = claimed[sku].claim;
        let mut before = version().await;

        for write in 0..5 {
            let mut tx = store.begin().await.expect("a transaction");
            let wrote: Result<bool, StoreError> = match write {
                0 => tx.take(id, sku, 2).await.map(|left| left.is_some()),
                1 => tx.give_back(id, sku, 1).await,
                2 => tx.write_available(id, sku, 3, None).await,
                3 => tx.write_available(id, sku, 2, Some(claim)).await,
                _ => tx.write_versioned(id, sku, 1, before).await,
            };
            assert!(wrote.expect("an answer"), "{database}: write {write}");
            tx.commit().await.expect("committed");
            let after = version().await;
            assert_eq!(after, before + 1, "{database}: write {write}");
            refused(&store, async |tx: &mut Tx| {
                tx.write_versioned(id, sku, 5, before).await
            })
            .await;
            before = after;
        }
        let books = Books::read(&store, id.as_str()).await;
        assert_eq!(books.ledger(sku.as_str()).available, 1, "{database}");
    }
}

async fn refused(store: &Store, write: impl AsyncFnOnce(&mut Tx) -> Result<bool, StoreError>) {
    let mut tx = store.begin().await.expect("a transaction");
    let written = write(&mut tx).await.expect("an answer");
    assert!(!written, "a version that is gone was written");
    tx.rollback().await;
}
