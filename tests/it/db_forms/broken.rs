//! Broken: the same forms without what protects them. They must be seen overselling.

use std::collections::BTreeMap;

use async_trait::async_trait;
use flashlock::deduct::{Form, Sold, allot, lines_of, skus_of};
use flashlock::order::{CloseReason, NewOrder, Order};
use flashlock::sale::{Activity, Sku};
use flashlock::store::{Store, StoreError, Tx};
use flashlock::strategy::db_for_update::ForUpdate;
use flashlock::strategy::db_version::Version;

use super::{must_hold, must_oversell};

/// `db-for-update` with a plain `SELECT` in place of the one that locks.
#[derive(Debug, Clone)]
struct PlainSelect;

/// `db-version` that writes without looking at the version.
#[derive(Debug, Clone)]
struct VersionIgnored;

/// Inserts the orders of those who are served and writes what is left, whatever is there.
async fn write(
    tx: &mut Tx,
    activity: &Activity,
    batch: &[&NewOrder],
    mut available: BTreeMap<Sku, i64>,
) -> Result<Sold, StoreError> {
    let (endings, sold) = allot(activity, batch, &mut available);
    if !sold.is_empty() {
        tx.insert_orders(activity, &sold).await?;
        for sku in skus_of(lines_of(&sold)) {
            tx.write_available(&activity.id, &sku, available[&sku], None)
                .await?;
        }
    }
    Ok(Sold::Each(endings))
}

async fn end(tx: Tx, sold: Result<Sold, StoreError>) -> Result<Sold, StoreError> {
    match sold {
        Ok(sold) => {
            tx.commit().await?;
            Ok(sold)
        }
        Err(error) => {
            tx.rollback().await;
            Err(error)
        }
    }
}

#[async_trait]
impl Form for PlainSelect {
    async fn sell(
        &self,
        store: &Store,
        activity: &Activity,
        batch: &[&NewOrder],
    ) -> Result<Sold, StoreError> {
        let mut tx = store.begin().await?;
        let mut available = BTreeMap::new();
        for sku in skus_of(lines_of(batch)) {
            match tx.available(&activity.id, &sku).await {
                Ok(Some(units)) => available.insert(sku, units),
                Ok(None) => None,
                Err(error) => return end(tx, Err(error)).await,
            };
        }
        let sold = write(&mut tx, activity, batch, available).await;
        end(tx, sold).await
    }

    async fn give_back(
        &self,
        store: &Store,
        activity: &Activity,
        orders: &[Order],
        why: CloseReason,
    ) -> Result<Vec<bool>, StoreError> {
        ForUpdate.give_back(store, activity, orders, why).await
    }
}

#[async_trait]
impl Form for VersionIgnored {
    async fn sell(
        &self,
        store: &Store,
        activity: &Activity,
        batch: &[&NewOrder],
    ) -> Result<Sold, StoreError> {
        let mut tx = store.begin().await?;
        let mut available = BTreeMap::new();
        for sku in skus_of(lines_of(batch)) {
            match tx.versioned(&activity.id, &sku).await {
                Ok(Some(read)) => available.insert(sku, read.available),
                Ok(None) => None,
                Err(error) => return end(tx, Err(error)).await,
            };
        }
        let sold = write(&mut tx, activity, batch, available).await;
        end(tx, sold).await
    }

    async fn give_back(
        &self,
        store: &Store,
        activity: &Activity,
        orders: &[Order],
        why: CloseReason,
    ) -> Result<Vec<bool>, StoreError> {
        Version.give_back(store, activity, orders, why).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_for_update_it_oversells() {
    for database in ["postgres", "mysql"] {
        must_oversell(database, PlainSelect).await;
    }
}

/// SQLite has no row locks: `BEGIN IMMEDIATE` is what `FOR UPDATE` is elsewhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sqlite_begin_immediate_is_the_row_lock() {
    must_hold("sqlite", PlainSelect).await;
    must_hold("sqlite", VersionIgnored).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_version_it_oversells() {
    for database in ["postgres", "mysql"] {
        must_oversell(database, VersionIgnored).await;
    }
}

/// The same crowds, in the same process, under the forms as they are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_they_are_they_hold() {
    for database in crate::world::DATABASES {
        must_hold(database, ForUpdate).await;
        must_hold(database, Version).await;
    }
}
