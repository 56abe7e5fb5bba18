//! Booking without a lock: the stock row is taken by condition, in one atomic statement, last.

use std::collections::BTreeMap;

use async_trait::async_trait;

use super::transacted::{self, Form, Sold};
use super::{Closed, DeductError, Ending};
use crate::order::{CloseReason, NewOrder, Order};
use crate::sale::{Activity, OrderId, Sku};
use crate::store::{Store, StoreError, Tx};

/// Takes units where that many are left; the hot row last, so that it is locked for two round trips.
#[derive(Debug, Clone, Copy)]
pub struct Conditional;

/// Books the batch in one transaction, the hot row last; where that is not possible for all, one
/// order at a time. One ending per order.
pub async fn book(
    store: &Store,
    activity: &Activity,
    batch: &[NewOrder],
) -> Vec<Result<Ending, DeductError>> {
    transacted::sell(&Conditional, store, activity, batch).await
}

/// Closes orders and gives their units back by an atomic statement, in one transaction.
pub async fn close(
    store: &Store,
    activity: &Activity,
    orders: &[OrderId],
    why: CloseReason,
) -> Vec<Result<Closed, DeductError>> {
    transacted::give_back(&Conditional, store, activity, orders, why).await
}

#[async_trait]
impl Form for Conditional {
    async fn sell(
        &self,
        store: &Store,
        activity: &Activity,
        batch: &[&NewOrder],
    ) -> Result<Sold, StoreError> {
        let mut tx = store.begin().await?;
        match sell_within(&mut tx, activity, batch).await {
            Ok(Taken::All { left }) => {
                tx.commit().await?;
                let booked = |order: &&NewOrder| Ending::Booked {
                    order: Box::new(order.booked(activity)),
                    left,
                };
                Ok(Sold::Each(batch.iter().map(booked).collect()))
            }
            Ok(Taken::Short(ending)) => {
                tx.rollback().await;
                Ok(match batch {
                    [_one] => Sold::Each(vec![ending]),
                    _several => Sold::TooLittleForAll,
                })
            }
            Err(error) => {
                tx.rollback().await;
                Err(error)
            }
        }
    }

    async fn give_back(
        &self,
        store: &Store,
        activity: &Activity,
        orders: &[Order],
        why: CloseReason,
    ) -> Result<Vec<bool>, StoreError> {
        let mut tx = store.begin().await?;
        match give_back_within(&mut tx, activity, orders, why).await {
            Ok(closed) => {
                tx.commit().await?;
                Ok(closed)
            }
            Err(error) => {
                tx.rollback().await;
                Err(error)
            }
        }
    }
}

/// What the statements found.
enum Taken {
    /// Everything; so much of the first order's first SKU is left.
    All {
        left: i64,
    },
    Short(Ending),
}

async fn sell_within(
    tx: &mut Tx,
    activity: &Activity,
    batch: &[&NewOrder],
) -> Result<Taken, StoreError> {
    let mut wanted: BTreeMap<&Sku, i64> = BTreeMap::new();
    for line in batch.iter().flat_map(|order| &order.lines) {
        *wanted.entry(&line.sku).or_default() += line.quantity;
    }
    tx.insert_orders(activity, batch).await?;
    let first = batch.first().and_then(|order| order.lines.first());
    let mut left = 0;
    for (sku, quantity) in wanted {
        match tx.take(&activity.id, sku, quantity).await? {
            Some(now) if first.is_some_and(|line| line.sku == *sku) => left = now,
            Some(_) => {}
            None => {
                return Ok(Taken::Short(
                    match tx.available(&activity.id, sku).await? {
                        Some(left) => Ending::SoldOut {
                            sku: sku.clone(),
                            left,
                        },
                        None => Ending::UnknownSku(sku.clone()),
                    },
                ));
            }
        }
    }
    Ok(Taken::All { left })
}

async fn give_back_within(
    tx: &mut Tx,
    activity: &Activity,
    orders: &[Order],
    why: CloseReason,
) -> Result<Vec<bool>, StoreError> {
    let orders: Vec<&Order> = orders.iter().collect();
    let closed = tx.close_orders(activity, &orders, why).await?;
    let mut back: BTreeMap<&Sku, i64> = BTreeMap::new();
    for (order, _) in orders.iter().zip(&closed).filter(|(_, closed)| **closed) {
        for line in &order.lines {
            *back.entry(&line.sku).or_default() += line.quantity;
        }
    }
    for (sku, quantity) in back {
        tx.give_back(&activity.id, sku, quantity).await?;
    }
    Ok(closed)
}
