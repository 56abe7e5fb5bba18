//! Strategy `db-version`: read without a lock, write `WHERE version = :read`, and read again when
//! another was faster.
//!
//! The optimistic form that everyone knows. Of those who read the same version one writes, and the
//! others have read in vain; many buyers of one row are its worst case. The tries are bounded, and
//! what they come to is counted (`flashlock_version_conflicts_total`,
//! `flashlock_version_give_ups_total`), so that a livelock is seen.
//!
//! This is its best form: the order is inserted first, once, and only the read and the write of the
//! stock are repeated, which READ COMMITTED allows. Repeating the whole transaction, the naive form,
//! makes the time between read and write five round trips instead of one. On SQLite a transaction
//! that writes is alone (`BEGIN IMMEDIATE`), so nobody is ever faster.
//!
//! Source: H. T. Kung and J. T. Robinson, "On Optimistic Methods for Concurrency Control" (1981).

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;

use super::{Entry, Kind, Missing, Servers};
use crate::deduct::{Deduct, Ending, Form, Sold, allot, lines_of};
use crate::lock::Guarantees;
use crate::order::{CloseReason, NewOrder, Order};
use crate::sale::{Activity, ActivityId, Line, Sku};
use crate::store::{Contended, Store, StoreError, Tx};

/// Writes only what nobody has written since it was read.
#[derive(Debug, Clone, Copy)]
pub struct Version;

pub(super) const ENTRY: Entry = Entry {
    kind: Kind::Transaction,
    needs: &[],
    open,
};

const GUARANTEES: Guarantees = Guarantees {
    protects_by: "a version that every write of the stock raises: written only while it is what was read",
    stock_lives_in: "database",
    fair: false,
    fenced: true,
    survives_failover: true,
    frees_after_crash: "transaction",
    note: "nobody waits for a reader, and nobody is promised a turn: of those who read the same version one \
           writes and the others read again, at most 16 times, then busy (the same key may try again); \
           survives a failover as far as the database's commits do",
};

/// Writes tried for one batch. With the pauses between them less than two seconds, and far more than
/// two buyers need; where it is not enough, there are more buyers at once than this form is for.
const TRIES_MAX: u32 = 16;
/// Longest pause after the first try: about the length of another's commit.
const PAUSE_FIRST: Duration = Duration::from_millis(4);
/// Longest pause at all. Each pause is random below its bound, so that losers do not meet again.
const PAUSE_MAX: Duration = Duration::from_millis(128);

const CONFLICTS: &str = "flashlock_version_conflicts_total";
const GIVE_UPS: &str = "flashlock_version_give_ups_total";

fn open(servers: &Servers) -> Result<Box<dyn Deduct>, Missing> {
    metrics::describe_counter!(
        CONFLICTS,
        "Writes of db-version that were in vain, because another wrote the stock after the read."
    );
    metrics::describe_counter!(
        GIVE_UPS,
        "Batches that db-version gave up after its last try; their buyers were told to try again."
    );
    // From the start, so that zero is told apart from unknown.
    metrics::counter!(CONFLICTS).increment(0);
    metrics::counter!(GIVE_UPS).increment(0);
    Ok(servers.transacted(Version, GUARANTEES))
}

/// How many more tries a batch has.
#[derive(Debug)]
struct Tries {
    made: u32,
}

/// What moving the stock came to.
enum Moved {
    /// What each SKU had before.
    Done(BTreeMap<Sku, i64>),
    /// There is less than when it was looked at before the transaction.
    TooLittle,
}

#[async_trait]
impl Form for Version {
    async fn sell(
        &self,
        store: &Store,
        activity: &Activity,
        batch: &[&NewOrder],
    ) -> Result<Sold, StoreError> {
        let mut tries = Tries { made: 0 };
        loop {
            let mut available = store.available(&activity.id).await?;
            let (endings, sold) = allot(activity, batch, &mut available);
            if sold.is_empty() {
                return Ok(Sold::Each(endings));
            }
            let mut tx = store.begin().await?;
            match sell_within(&mut tx, activity, &sold, &mut tries).await {
                Ok(Moved::Done(before)) => {
                    tx.commit().await?;
                    return Ok(Sold::Each(told_what_is_left(
                        activity, &sold, before, endings,
                    )));
                }
                // Others were faster: fewer are served.
                Ok(Moved::TooLittle) => {
                    tx.rollback().await;
                    tries.failed().await?;
                }
                Err(error) => {
                    tx.rollback().await;
                    return Err(error);
                }
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

// === impl Tries ===

impl Tries {
    /// Counts a try that was in vain, and pauses before the next.
    ///
    /// # Errors
    /// `Retry(Contended::Outrun)` after the last.
    async fn failed(&mut self) -> Result<(), StoreError> {
        metrics::counter!(CONFLICTS).increment(1);
        self.made += 1;
        if self.made == TRIES_MAX {
            metrics::counter!(GIVE_UPS).increment(1);
            return Err(StoreError::Retry(Contended::Outrun(TRIES_MAX)));
        }
        let bound = PAUSE_FIRST.saturating_mul(1 << (self.made - 1));
        let pause = bound.min(PAUSE_MAX).mul_f64(rand::random());
        tokio::time::sleep(pause).await;
        Ok(())
    }
}

async fn sell_within(
    tx: &mut Tx,
    activity: &Activity,
    sold: &[&NewOrder],
    tries: &mut Tries,
) -> Result<Moved, StoreError> {
    tx.insert_orders(activity, sold).await?;
    let taken = units(lines_of(sold), -1);
    move_stock(tx, &activity.id, taken, tries).await
}

async fn give_back_within(
    tx: &mut Tx,
    activity: &Activity,
    orders: &[Order],
    why: CloseReason,
) -> Result<Vec<bool>, StoreError> {
    let orders: Vec<&Order> = orders.iter().collect();
    let closed = tx.close_orders(activity, &orders, why).await?;
    let back = orders.iter().zip(&closed).filter(|(_, closed)| **closed);
    let back = units(back.flat_map(|(order, _)| &order.lines), 1);
    move_stock(tx, &activity.id, back, &mut Tries { made: 0 }).await?;
    Ok(closed)
}

/// Units per SKU, `sign` times.
fn units<'a>(lines: impl Iterator<Item = &'a Line>, sign: i64) -> BTreeMap<Sku, i64> {
    let mut units = BTreeMap::new();
    for line in lines {
        *units.entry(line.sku.clone()).or_default() += sign * line.quantity;
    }
    units
}

/// Adds to the stock of each SKU, ascending and last in the transaction: read, check, write what was
/// computed while the version is what was read.
async fn move_stock(
    tx: &mut Tx,
    activity: &ActivityId,
    units: BTreeMap<Sku, i64>,
    tries: &mut Tries,
) -> Result<Moved, StoreError> {
    let mut before = BTreeMap::new();
    for (sku, more) in units {
        loop {
            let Some(read) = tx.versioned(activity, &sku).await? else {
                return Ok(Moved::TooLittle);
            };
            let computed = read.available + more;
            if computed < 0 {
                return Ok(Moved::TooLittle);
            }
            if tx
                .write_versioned(activity, &sku, computed, read.version)
                .await?
            {
                before.insert(sku, read.available);
                break;
            }
            tries.failed().await?;
        }
    }
    Ok(Moved::Done(before))
}

/// The endings of a batch, in which those who were served are told what was left when they were.
fn told_what_is_left(
    activity: &Activity,
    sold: &[&NewOrder],
    mut before: BTreeMap<Sku, i64>,
    endings: Vec<Ending>,
) -> Vec<Ending> {
    let mut served = allot(activity, sold, &mut before).0.into_iter();
    let told = |ending| match ending {
        booked @ Ending::Booked { .. } => served.next().unwrap_or(booked),
        other => other,
    };
    endings.into_iter().map(told).collect()
}
