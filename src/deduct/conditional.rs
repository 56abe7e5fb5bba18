//! Booking without a lock: the stock row is taken by condition, in one atomic statement, last.

use super::replay::{after_conflict, closed_endings, failed, store_ending};
use super::{Closed, DeductError, Ending};
use crate::order::{CloseReason, NewOrder, Order};
use crate::sale::{Activity, OrderId, Sku};
use crate::store::{Contended, Store, StoreError};
use std::collections::BTreeMap;

/// Tries of one transaction after deadlocks and lost serialization. Not after a full queue: its wait
/// was as long as a buyer may be kept.
const TRIES_MAX: u32 = 4;

/// How one try of a batch came out.
enum Tried {
    Booked(Vec<Ending>),
    /// Too little of this SKU for the whole batch; this much is left.
    Short(Sku, i64),
    UnknownSku(Sku),
}

/// Books the batch in one transaction, the hot row last; where that is not possible for all, one
/// order at a time. One ending per order.
pub async fn book(
    store: &Store,
    activity: &Activity,
    batch: &[NewOrder],
) -> Vec<Result<Ending, DeductError>> {
    if let [order] = batch {
        return vec![book_one(store, activity, order).await];
    }
    let all: Vec<&NewOrder> = batch.iter().collect();
    match book_again(store, activity, &all).await {
        Ok(Tried::Booked(endings)) => endings.into_iter().map(Ok).collect(),
        Ok(Tried::Short(..) | Tried::UnknownSku(_)) | Err(StoreError::Conflict(_)) => {
            let mut endings = Vec::with_capacity(batch.len());
            for order in batch {
                endings.push(book_one(store, activity, order).await);
            }
            endings
        }
        Err(error) => match store_ending(error) {
            Ok(ending) => batch.iter().map(|_| Ok(ending.clone())).collect(),
            Err(error) => failed(batch.len(), error),
        },
    }
}

async fn book_one(
    store: &Store,
    activity: &Activity,
    order: &NewOrder,
) -> Result<Ending, DeductError> {
    match book_again(store, activity, &[order]).await {
        Ok(Tried::Booked(mut endings)) => Ok(endings.remove(0)),
        Ok(Tried::Short(sku, left)) => Ok(Ending::SoldOut { sku, left }),
        Ok(Tried::UnknownSku(sku)) => Ok(Ending::UnknownSku(sku)),
        Err(StoreError::Conflict(_)) => after_conflict(store, activity, order).await,
        Err(error) => store_ending(error),
    }
}

async fn book_again(
    store: &Store,
    activity: &Activity,
    batch: &[&NewOrder],
) -> Result<Tried, StoreError> {
    let mut tries = 1;
    loop {
        match book_once(store, activity, batch).await {
            Err(StoreError::Retry(why @ Contended::Database(_))) if tries < TRIES_MAX => {
                tracing::debug!(%why, tries, "booking again");
                tries += 1;
            }
            done => return done,
        }
    }
}

async fn book_once(
    store: &Store,
    activity: &Activity,
    batch: &[&NewOrder],
) -> Result<Tried, StoreError> {
    let mut wanted: BTreeMap<&Sku, i64> = BTreeMap::new();
    for line in batch.iter().flat_map(|order| &order.lines) {
        *wanted.entry(&line.sku).or_default() += line.quantity;
    }
    let mut tx = store.begin().await?;
    if let Err(error) = tx.insert_orders(activity, batch).await {
        tx.rollback().await;
        return Err(error);
    }
    let first = batch.first().and_then(|order| order.lines.first());
    let mut left = 0;
    for (sku, quantity) in wanted {
        match tx.take(&activity.id, sku, quantity).await {
            Ok(Some(now)) if first.is_some_and(|line| line.sku == *sku) => left = now,
            Ok(Some(_)) => {}
            Ok(None) => {
                let left = tx.available(&activity.id, sku).await;
                tx.rollback().await;
                return Ok(match left? {
                    Some(left) => Tried::Short(sku.clone(), left),
                    None => Tried::UnknownSku(sku.clone()),
                });
            }
            Err(error) => {
                tx.rollback().await;
                return Err(error);
            }
        }
    }
    tx.commit().await?;
    let booked = |order: &&NewOrder| Ending::Booked {
        order: Box::new(order.booked(activity)),
        left,
    };
    Ok(Tried::Booked(batch.iter().map(booked).collect()))
}

/// Closes orders and gives their units back by an atomic statement, in one transaction.
pub async fn close(
    store: &Store,
    activity: &Activity,
    orders: &[OrderId],
    why: CloseReason,
) -> Vec<Result<Closed, DeductError>> {
    closed_endings(store, activity, orders, async |found| {
        let mut tries = 1;
        loop {
            match close_once(store, activity, found, why).await {
                Ok(closed) => return Ok(closed),
                Err(StoreError::Retry(why @ Contended::Database(_))) if tries < TRIES_MAX => {
                    tracing::debug!(%why, tries, "closing again");
                    tries += 1;
                }
                Err(error) => return Err(error.into()),
            }
        }
    })
    .await
}

async fn close_once(
    store: &Store,
    activity: &Activity,
    orders: &[Order],
    why: CloseReason,
) -> Result<Vec<bool>, StoreError> {
    let mut tx = store.begin().await?;
    let orders: Vec<&Order> = orders.iter().collect();
    let closed = match tx.close_orders(activity, &orders, why).await {
        Ok(closed) => closed,
        Err(error) => {
            tx.rollback().await;
            return Err(error);
        }
    };
    let mut back: BTreeMap<&Sku, i64> = BTreeMap::new();
    for (order, _) in orders.iter().zip(&closed).filter(|(_, closed)| **closed) {
        for line in &order.lines {
            *back.entry(&line.sku).or_default() += line.quantity;
        }
    }
    for (sku, quantity) in back {
        if let Err(error) = tx.give_back(&activity.id, sku, quantity).await {
            tx.rollback().await;
            return Err(error);
        }
    }
    tx.commit().await?;
    Ok(closed)
}
