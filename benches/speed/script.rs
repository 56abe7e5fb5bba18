//! What does one call of `reserve.lua` cost Redis, beside a bare deduct?
//!
//! The server's own account, `INFO commandstats`: microseconds that it spent inside EVALSHA, by call.
//! One connection, pipelines of 64, so that the server never waits for the client.

use flashlock::gate;
use flashlock::keys::GateKeys;
use flashlock::order::NewOrder;
use flashlock::script::gate::Stamped;
use redis::Cmd;
use redis::aio::MultiplexedConnection;

use crate::Failed;
use crate::bare::Bare;
use crate::ground::{self, Ground};
use crate::measured::{Measured, Target};

/// Of each script in one round; with the batches below the holds that a gate lets wait (10,000).
const CALLS: usize = 4096;
const PIPELINE: usize = 64;
/// Orders of one call, as the combiner makes it with `batch_max` 64.
const BATCH: usize = 64;

pub(crate) async fn measure(ground: &Ground, rounds: usize) -> Result<Vec<Measured>, Failed> {
    let store = ground::store(&ground.database("sqlite").await?).await?;
    let client = redis::Client::open(ground.redis_url()?)?;
    let mut con = client.get_multiplexed_async_connection().await?;
    let (mut single, mut batched) = (Vec::new(), Vec::new());
    // The first round pays for caches.
    for round in 0..=rounds {
        let activity = ground::activity("redis-lua");
        store.insert_activity(&activity).await?;
        let activity = ground::open_gate(&ground.gate()?, &store, &activity).await?;
        let stamped = Stamped::new(&gate::stamp(&activity));
        let keys = GateKeys::of(&activity.id);
        let orders = ground::orders(&activity, 2 * CALLS, 0)?;
        let (first, second) = orders.split_at(CALLS);
        let of_one = |order: &NewOrder| stamped.reserve_command(&keys, std::slice::from_ref(order));
        let stock = ground::STOCK;
        let bare = Bare::load(&mut con, stock).await?;

        let calls: Vec<Cmd> = (0..CALLS).map(|_| bare.command()).collect();
        let bare_us = us_per_call(&mut con, &calls).await?;
        let calls: Vec<Cmd> = first.iter().map(of_one).collect();
        let one_us = us_per_call(&mut con, &calls).await?;
        let batches = second.chunks(BATCH);
        let calls: Vec<Cmd> = batches
            .map(|batch| stamped.reserve_command(&keys, batch))
            .collect();
        let each_us = us_per_call(&mut con, &calls).await? / BATCH as f64;

        let taken = stock - bare.left(&mut con).await?;
        let holds = ground
            .gate()?
            .audit(&activity.id)
            .await?
            .map_or(0, |a| a.holds);
        if taken != CALLS as i64 || holds != 2 * CALLS as i64 {
            return Err(format!("{taken} bare deducts and {holds} holds in {CALLS} calls").into());
        }
        if round > 0 {
            single.push((one_us, bare_us));
            batched.push((each_us, bare_us));
        }
    }
    store.close().await;
    let measured = |name: &str, rounds, most| Measured {
        name: name.to_string(),
        unit: "us of Redis/order",
        rounds,
        target: Target::AtMost(most),
    };
    Ok(vec![
        measured(
            "reserve.lua, one order in a call / bare deduct",
            single,
            6.0,
        ),
        measured(
            "reserve.lua, 64 orders in a call / bare deduct",
            batched,
            2.0,
        ),
    ])
}

async fn us_per_call(con: &mut MultiplexedConnection, calls: &[Cmd]) -> Result<f64, Failed> {
    redis::cmd("CONFIG")
        .arg("RESETSTAT")
        .query_async::<()>(con)
        .await?;
    for some in calls.chunks(PIPELINE) {
        let mut pipe = redis::pipe();
        for call in some {
            pipe.add_command(call.clone()).ignore();
        }
        pipe.query_async::<()>(con).await?;
    }
    let info: String = redis::cmd("INFO")
        .arg("commandstats")
        .query_async(con)
        .await?;
    let line = info
        .lines()
        .find_map(|l| l.strip_prefix("cmdstat_evalsha:"));
    let field = |name: &str| {
        let mut fields = line?.split(',').filter_map(|f| f.split_once('='));
        fields.find(|(n, _)| *n == name)?.1.parse::<f64>().ok()
    };
    match (field("calls"), field("usec")) {
        (Some(n), Some(us)) if n as usize == calls.len() => Ok(us / n),
        _other => Err(format!("{} calls, and commandstats say {line:?}", calls.len()).into()),
    }
}
