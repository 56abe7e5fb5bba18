//! Strategy `db-for-update`: `SELECT … FOR UPDATE` first, then check and write, in one transaction.
//!
//! The pessimistic form that everyone knows. The row lock carries the load: what is written is
//! computed here from what was read, so with a plain `SELECT` in its place this oversells. The hot
//! row is locked for the whole booking and not for its last two round trips, which is what it costs
//! beside `db-conditional-update`. On SQLite `BEGIN IMMEDIATE` is the row lock.

use std::collections::BTreeMap;

use async_trait::async_trait;

use super::{Entry, Kind, Missing, Servers};
use crate::deduct::{Deduct, Form, Sold, allot, lines_of, skus_of};
use crate::lock::Guarantees;
use crate::order::{CloseReason, NewOrder, Order};
use crate::sale::{Activity, ActivityId, Sku};
use crate::store::{Store, StoreError, Tx};

/// Locks the stock rows before it reads them.
#[derive(Debug, Clone, Copy)]
pub struct ForUpdate;

pub(super) const ENTRY: Entry = Entry {
    kind: Kind::Transaction,
    needs: &[],
    open,
};

const GUARANTEES: Guarantees = Guarantees {
    protects_by: "SELECT … FOR UPDATE on the stock row, then check and write, in one transaction",
    stock_lives_in: "database",
    fair: false,
    fenced: true,
    survives_failover: true,
    frees_after_crash: "transaction",
    note: "no lease that could end too early: the row lock lives and dies with the transaction, and is \
           waited for up to 3 s; the row stays locked for the whole booking; on SQLite the one writer's \
           place is the lock; survives a failover as far as the database's commits do",
};

fn open(servers: &Servers) -> Result<Box<dyn Deduct>, Missing> {
    Ok(servers.transacted(ForUpdate, GUARANTEES))
}

#[async_trait]
impl Form for ForUpdate {
    async fn sell(
        &self,
        store: &Store,
        activity: &Activity,
        batch: &[&NewOrder],
    ) -> Result<Sold, StoreError> {
        let mut tx = store.begin().await?;
        match sell_within(&mut tx, activity, batch).await {
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

/// Locks the rows of `skus` (ascending, so that two buyers of the same things never wait for each
/// other) and reads them.
async fn lock(
    tx: &mut Tx,
    activity: &ActivityId,
    skus: &[Sku],
) -> Result<BTreeMap<Sku, i64>, StoreError> {
    let mut available = BTreeMap::new();
    for sku in skus {
        if let Some(units) = tx.available_for_update(activity, sku).await? {
            available.insert(sku.clone(), units);
        }
    }
    Ok(available)
}

async fn sell_within(
    tx: &mut Tx,
    activity: &Activity,
    batch: &[&NewOrder],
) -> Result<Sold, StoreError> {
    let mut available = lock(tx, &activity.id, &skus_of(lines_of(batch))).await?;
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

async fn give_back_within(
    tx: &mut Tx,
    activity: &Activity,
    orders: &[Order],
    why: CloseReason,
) -> Result<Vec<bool>, StoreError> {
    // Locked before the orders: nobody waits for the stock while holding an order.
    let skus = skus_of(orders.iter().flat_map(|order| &order.lines));
    let mut available = lock(tx, &activity.id, &skus).await?;
    let orders: Vec<&Order> = orders.iter().collect();
    let closed = tx.close_orders(activity, &orders, why).await?;
    for (order, _) in orders.iter().zip(&closed).filter(|(_, closed)| **closed) {
        for line in &order.lines {
            if let Some(units) = available.get_mut(&line.sku) {
                *units += line.quantity;
            }
        }
    }
    for (sku, units) in &available {
        tx.write_available(&activity.id, sku, *units, None).await?;
    }
    Ok(closed)
}
