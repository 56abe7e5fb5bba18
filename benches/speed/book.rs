//! How much of the rate of a raw batched insert does booking reach, on PostgreSQL?
//!
//! The raw insert writes the same rows into the same tables with the same durability: one
//! multi-row INSERT per table and one update of the stock row, in one transaction, on sqlx's own
//! PostgreSQL driver.

use flashlock::clock;
use flashlock::deduct::{self, Ending};
use flashlock::order::NewOrder;
use flashlock::sale::Activity;
use flashlock::store::Store;
use sqlx::{Connection, PgConnection, Postgres, QueryBuilder};

use crate::Failed;
use crate::ground::{self, Ground};
use crate::measured::{Measured, Target};

/// Transactions of one round.
const TRANSACTIONS: usize = 20;
/// Orders in one transaction: a full batch of the combiner, and of the booking workers.
const BATCHES: [usize; 2] = [64, 200];

pub(crate) async fn measure(ground: &Ground, rounds: usize) -> Result<Vec<Measured>, Failed> {
    let url = ground.database("postgres").await?;
    let store = ground::store(&url).await?;
    let mut raw = PgConnection::connect(&url).await?;
    let mut all = Vec::new();
    for batch in BATCHES {
        let mut measured = Vec::new();
        // The first round prepares the statements.
        for round in 0..=rounds {
            let activity = ground::activity("db-conditional-update");
            let ours = run(
                &store,
                &activity,
                batch,
                TRANSACTIONS,
                async |activity, orders| book(&store, activity, orders).await,
            )
            .await?;
            let activity = ground::activity("db-conditional-update");
            let reference = run(
                &store,
                &activity,
                batch,
                TRANSACTIONS,
                async |activity, orders| insert(&mut raw, activity, orders).await,
            )
            .await?;
            if round > 0 {
                measured.push((ours, reference));
            }
        }
        all.push(Measured {
            name: format!("booking, {batch} orders in a transaction / raw insert (postgres)"),
            unit: "orders/s",
            rounds: measured,
            target: Target::AtLeast(0.4),
        });
    }
    raw.close().await?;
    store.close().await;
    Ok(all)
}

/// Orders a second, one transaction after the other, on a new activity.
pub(crate) async fn run(
    store: &Store,
    activity: &Activity,
    batch: usize,
    transactions: usize,
    mut write: impl AsyncFnMut(&Activity, &[NewOrder]) -> Result<(), Failed>,
) -> Result<f64, Failed> {
    store.insert_activity(activity).await?;
    let n = batch * transactions;
    let orders = ground::orders(activity, n, store.now_ms().await?)?;
    let begun = clock::now();
    for orders in orders.chunks(batch) {
        write(activity, orders).await?;
    }
    let took = begun.elapsed();
    check(store, activity, n).await?;
    Ok(n as f64 / took.as_secs_f64())
}

/// Whether the database has `n` orders of one unit, and every row that belongs to them.
pub(crate) async fn check(store: &Store, activity: &Activity, n: usize) -> Result<(), Failed> {
    let ledgers = store.ledgers(&activity.id).await?;
    let (held, left) = ledgers.first().map_or((0, 0), |l| (l.held, l.available));
    let state = store.final_state(&activity.id).await?;
    let rows = [state.orders.len(), state.ledger.len(), state.outbox.len()];
    if held != n as i64 || left != ground::STOCK - n as i64 || rows != [n; 3] {
        return Err(format!(
            "{n} orders left {held} units held, {left} available, and {rows:?} rows"
        )
        .into());
    }
    Ok(())
}

async fn book(store: &Store, activity: &Activity, orders: &[NewOrder]) -> Result<(), Failed> {
    for ending in deduct::book(store, activity, orders).await {
        match ending? {
            Ending::Booked { .. } => {}
            other => return Err(format!("an order was not booked: {other:?}").into()),
        }
    }
    Ok(())
}

pub(crate) async fn insert(
    raw: &mut PgConnection,
    activity: &Activity,
    orders: &[NewOrder],
) -> Result<(), Failed> {
    let id = activity.id.as_str();
    let mut tx = raw.begin().await?;
    let mut sql = QueryBuilder::<Postgres>::new(
        "INSERT INTO orders (id, activity_id, user_id, live_key, state, fingerprint, created_at, pay_deadline) ",
    );
    sql.push_values(orders, |mut row, o| {
        row.push_bind(o.rid.to_string())
            .push_bind(id)
            .push_bind(o.user.as_str())
            .push_bind(o.user.as_str())
            .push_bind("PENDING_PAYMENT")
            .push_bind(o.fingerprint.as_str())
            .push_bind(o.admitted_at_ms)
            .push_bind(o.pay_deadline_ms(activity));
    });
    sql.build().execute(&mut *tx).await?;

    let mut sql =
        QueryBuilder::<Postgres>::new("INSERT INTO order_line (order_id, sku, quantity) ");
    sql.push_values(orders, |mut row, o| {
        row.push_bind(o.rid.to_string())
            .push_bind(ground::SKU)
            .push_bind(1_i64);
    });
    sql.build().execute(&mut *tx).await?;

    let mut sql = QueryBuilder::<Postgres>::new(
        "INSERT INTO stock_ledger (activity_id, sku, order_id, kind, quantity, created_at) ",
    );
    sql.push_values(orders, |mut row, o| {
        row.push_bind(id)
            .push_bind(ground::SKU)
            .push_bind(o.rid.to_string())
            .push_bind("DEDUCT")
            .push_bind(1_i64)
            .push_bind(o.admitted_at_ms);
    });
    sql.build().execute(&mut *tx).await?;

    let mut sql = QueryBuilder::<Postgres>::new(
        "INSERT INTO outbox (event_id, activity_id, aggregate_id, kind, payload, created_at, next_at) ",
    );
    sql.push_values(orders, |mut row, o| {
        let payload = format!(
            r#"{{"order_id":"{id}.{}","user_id":"{}","lines":[{{"sku":"{}","quantity":1}}],"reason":null}}"#,
            o.rid, o.user, ground::SKU
        );
        row.push_bind(uuid::Uuid::new_v4().to_string())
            .push_bind(id)
            .push_bind(o.rid.to_string())
            .push_bind("order.created")
            .push_bind(payload)
            .push_bind(o.admitted_at_ms)
            .push_bind(o.admitted_at_ms);
    });
    sql.build().execute(&mut *tx).await?;

    let taken = sqlx::query(
        "UPDATE activity_sku SET available = available - $1 WHERE activity_id = $2 AND sku = $3 AND available >= $1",
    )
    .bind(i64::try_from(orders.len())?)
    .bind(id)
    .bind(ground::SKU)
    .execute(&mut *tx)
    .await?;
    if taken.rows_affected() != 1 {
        return Err("the raw insert found no stock".into());
    }
    Ok(tx.commit().await?)
}
