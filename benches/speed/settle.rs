//! How much of the rate of a raw batched insert do the booking workers of `booking = async` reach?
//!
//! Ours is everything between the hold and the booked order: the stream, the record in the gate,
//! the look-up, the transaction, the commit in the gate, and the acknowledgement. The reference is
//! the raw insert of `book.rs`: the same rows with the same durability.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use flashlock::clock::{self, Instant};
use flashlock::deduct::{Booker, Deduct, Ending};
use flashlock::gate::Gate;
use flashlock::sale::{Activity, Booking};
use flashlock::store::Store;
use flashlock::strategy::redis_lua::RedisLua;
use sqlx::{Connection, PgConnection};
use tokio::task::JoinSet;

use crate::Failed;
use crate::book;
use crate::ground::{self, Ground};
use crate::measured::{Measured, Target};

/// A full batch of a worker.
const BATCH: usize = 256;
/// Batches of one round.
const BATCHES: usize = 20;
/// Workers of one activity in one process, as shipped.
const WORKERS: usize = 2;
/// Orders of one call to the gate.
const HELD_AT_ONCE: usize = 64;

/// How far the workers are, together.
struct Tally {
    left: AtomicUsize,
    begun: Instant,
    took: OnceLock<Duration>,
}

pub(crate) async fn measure(ground: &Ground, rounds: usize) -> Result<Vec<Measured>, Failed> {
    let url = ground.database("postgres").await?;
    let store = ground::store(&url).await?;
    let gate = ground.gate()?;
    let mut raw = PgConnection::connect(&url).await?;
    let mut measured = Vec::new();
    // The first round prepares the statements.
    for round in 0..=rounds {
        let ours = settle(&gate, &store).await?;
        let activity = ground::activity("db-conditional-update");
        let reference = book::run(
            &store,
            &activity,
            BATCH,
            BATCHES,
            async |activity, orders| book::insert(&mut raw, activity, orders).await,
        )
        .await?;
        if round > 0 {
            measured.push((ours, reference));
        }
    }
    raw.close().await?;
    store.close().await;
    Ok(vec![Measured {
        name: "async booking settles / raw insert, 256 orders in a transaction (postgres)"
            .to_string(),
        unit: "orders/s",
        rounds: measured,
        target: Target::AtLeast(0.4),
    }])
}

/// Holds orders, and then counts how many a second the workers book.
async fn settle(gate: &Gate, store: &Store) -> Result<f64, Failed> {
    let activity = Activity {
        booking: Booking::Async,
        ..ground::activity("redis-lua")
    };
    store.insert_activity(&activity).await?;
    let opened = ground::open_gate(gate, store, &activity).await?;
    let n = BATCH * BATCHES;
    let books = Arc::new(store.clone());
    let strategy = RedisLua::new(gate.clone(), books.clone(), books);
    let orders = ground::orders(&opened, n, store.now_ms().await?)?;
    for some in orders.chunks(HELD_AT_ONCE) {
        for ending in strategy.deduct(&opened, some).await {
            match ending? {
                Ending::Accepted(_) => {}
                other => return Err(format!("an order was not accepted: {other:?}").into()),
            }
        }
    }

    let mut workers = Vec::new();
    for _ in 0..WORKERS {
        let worker = strategy.booker(&opened.id)?;
        workers.push(worker.ok_or("an async activity has no booking worker")?);
    }
    let tally = Arc::new(Tally {
        left: AtomicUsize::new(n),
        begun: clock::now(),
        took: OnceLock::new(),
    });
    let workers: JoinSet<Result<(), Failed>> = workers
        .into_iter()
        .map(|worker| work(Arc::clone(&tally), worker))
        .collect();
    for ended in workers.join_all().await {
        ended?;
    }
    book::check(store, &opened, n).await?;
    let took = tally.took.get().ok_or("the workers did not book all")?;
    Ok(n as f64 / took.as_secs_f64())
}

/// Books until nothing is left, or for as many batches as there are orders.
async fn work(tally: Arc<Tally>, mut worker: Box<dyn Booker>) -> Result<(), Failed> {
    for _ in 0..BATCH * BATCHES {
        let booked = worker.next().await?.settled.committed.len();
        let left = tally.left.fetch_sub(booked, Ordering::SeqCst) - booked;
        if left == 0 {
            // The other worker may still wait for an order that does not come.
            tally.took.get_or_init(|| tally.begun.elapsed());
            break;
        }
    }
    Ok(())
}
