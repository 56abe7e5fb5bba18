//! How much of what redis-benchmark reaches does `Gate::reserve` reach, with the same command?
//!
//! Both have 64 calls in flight on one connection, on a fresh activity with stock for all of them,
//! and take the path that holds. Which they took is read back from the gate after each run.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use flashlock::clock;
use flashlock::gate::{self, Gate, ReserveOutcome};
use flashlock::keys::GateKeys;
use flashlock::order::NewOrder;
use flashlock::sale::Activity;
use flashlock::script::gate::Stamped;
use flashlock::store::Store;

use crate::Failed;
use crate::ground::{self, Ground};
use crate::measured::{Measured, Target};

/// Of one run; below the holds that a gate lets wait for their booking (10,000).
const CALLS: usize = 8192;
const IN_FLIGHT: usize = 64;
/// What redis-benchmark draws its numbers from: so many that two of a run are hardly the same.
const NUMBERS: &str = "2147483647";
/// A repeated number is a replay instead of a hold.
const REPEATED_MAX: usize = 2;
const NUMBER: &str = "__rand_int__";

/// A gate with nothing but stock.
struct Fresh {
    gate: Gate,
    activity: Arc<Activity>,
}

pub(crate) async fn measure(ground: &Ground, rounds: usize) -> Result<Vec<Measured>, Failed> {
    let store = ground::store(&ground.database("sqlite").await?).await?;
    let redis_url = ground.redis_url()?;
    let mut single = Vec::new();
    let mut many = Vec::new();
    let mut batched = Vec::new();
    // The first round pays for connections and caches.
    for round in 0..=rounds {
        let calls = run_calls(Fresh::open(ground, &store).await?).await?;
        let pipelined = run_benchmark(
            &redis_url,
            Fresh::open(ground, &store).await?,
            [1, IN_FLIGHT],
        )
        .await?;
        let connections = run_benchmark(
            &redis_url,
            Fresh::open(ground, &store).await?,
            [IN_FLIGHT, 1],
        )
        .await?;
        let batches = run_batches(Fresh::open(ground, &store).await?).await?;
        if round > 0 {
            single.push((calls, pipelined));
            many.push((calls, connections));
            batched.push((batches, pipelined));
        }
    }
    store.close().await;
    let measured = |name: &str, rounds| Measured {
        name: name.to_string(),
        unit: "orders/s",
        rounds,
        target: Target::AtLeast(0.7),
    };
    Ok(vec![
        measured("reserve, 64 in flight / redis-benchmark -c 1 -P 64", single),
        measured("reserve, 64 in flight / redis-benchmark -c 64 -P 1", many),
        measured(
            "reserve, 64 orders in one call / redis-benchmark -c 1 -P 64",
            batched,
        ),
    ])
}

/// One call per order, as the service makes it with `batch_max` 1. Orders a second.
async fn run_calls(fresh: Fresh) -> Result<f64, Failed> {
    let orders = Arc::new(ground::orders(&fresh.activity, CALLS, 0)?);
    let next = Arc::new(AtomicUsize::new(0));
    let begun = clock::now();
    let buyers: Vec<_> = (0..IN_FLIGHT)
        .map(|_| {
            let (gate, activity) = (fresh.gate.clone(), Arc::clone(&fresh.activity));
            let (orders, next) = (Arc::clone(&orders), Arc::clone(&next));
            tokio::spawn(async move {
                let mut held = 0;
                while let Some(order) = orders.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcomes = gate.reserve(&activity, std::slice::from_ref(order)).await;
                    held += outcomes.iter().filter(|o| is_held(o)).count();
                }
                held
            })
        })
        .collect();
    let mut held = 0;
    for buyer in buyers {
        held += buyer.await?;
    }
    let took = begun.elapsed();
    fresh.check(held, CALLS).await?;
    Ok(CALLS as f64 / took.as_secs_f64())
}

/// One call after the other, each with 64 orders, as the combiner makes them. Orders a second.
async fn run_batches(fresh: Fresh) -> Result<f64, Failed> {
    let orders: Vec<NewOrder> = ground::orders(&fresh.activity, CALLS, 0)?;
    let begun = clock::now();
    let mut held = 0;
    for batch in orders.chunks(IN_FLIGHT) {
        let outcomes = fresh.gate.reserve(&fresh.activity, batch).await;
        held += outcomes.iter().filter(|o| is_held(o)).count();
    }
    let took = begun.elapsed();
    fresh.check(held, CALLS).await?;
    Ok(CALLS as f64 / took.as_secs_f64())
}

fn is_held<E>(outcome: &Result<ReserveOutcome, E>) -> bool {
    matches!(outcome, Ok(ReserveOutcome::Held { .. }))
}

/// The same command by redis-benchmark, with other reservations and users. Orders a second.
async fn run_benchmark(url: &str, fresh: Fresh, shape: [usize; 2]) -> Result<f64, Failed> {
    let [connections, pipeline] = shape.map(|n| n.to_string());
    let ran = tokio::process::Command::new("redis-benchmark")
        .args(["-u", url, "-c", &connections, "-P", &pipeline])
        .args(["-n", &CALLS.to_string(), "-r", NUMBERS, "--csv"])
        .args(fresh.command()?)
        .output()
        .await
        .map_err(|e| format!("redis-benchmark: {e}; it comes with redis-tools, see `make deps`"))?;
    let said = String::from_utf8_lossy(&ran.stdout);
    // "command","rps",…
    let rate = said
        .lines()
        .last()
        .and_then(|line| line.split("\",\"").nth(1))
        .and_then(|rate| rate.parse::<f64>().ok())
        .ok_or_else(|| format!("redis-benchmark said: {said}"))?;
    fresh
        .check(CALLS - REPEATED_MAX, CALLS - REPEATED_MAX)
        .await?;
    Ok(rate)
}

// === impl Fresh ===

impl Fresh {
    async fn open(ground: &Ground, store: &Store) -> Result<Self, Failed> {
        let activity = ground::activity("redis-lua");
        store.insert_activity(&activity).await?;
        let gate = ground.gate()?;
        let activity = ground::open_gate(&gate, store, &activity).await?;
        Ok(Self {
            gate,
            activity: Arc::new(activity),
        })
    }

    /// What `Gate::reserve` sends for one order, its numbers drawn by redis-benchmark.
    fn command(&self) -> Result<Vec<String>, Failed> {
        let stamped = Stamped::new(&gate::stamp(&self.activity));
        let orders = ground::orders(&self.activity, 1, 0)?;
        let command = stamped.reserve_command(&GateKeys::of(&self.activity.id), &orders);
        let (rid, user) = (orders[0].rid.to_string(), orders[0].user.to_string());
        let words = command.args_iter().map(|word| match word {
            redis::Arg::Simple(word) => String::from_utf8_lossy(word).into_owned(),
            redis::Arg::Cursor => String::new(),
            _unknown => String::new(),
        });
        // Twelve digits for twelve characters: as long as ours.
        let drawn = words.map(|word| match word {
            word if word == rid => format!("{}{NUMBER}", &rid[..rid.len() - NUMBER.len()]),
            word if word == user => format!("u{NUMBER}"),
            word => word,
        });
        Ok(drawn.collect())
    }

    /// That the run did what it says: `held` answers, and at least as many holds in the gate.
    async fn check(&self, held: usize, holds_min: usize) -> Result<(), Failed> {
        let audit = self.gate.audit(&self.activity.id).await?;
        let holds = audit.map_or(0, |audit| usize::try_from(audit.holds).unwrap_or(0));
        match held >= holds_min && holds >= holds_min && holds <= CALLS {
            true => Ok(()),
            false => {
                Err(format!("of {CALLS} calls {held} were held, and the gate has {holds}").into())
            }
        }
    }
}
