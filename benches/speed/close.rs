//! How long do the closer's processes take for a backlog of expired orders?
//!
//! The backlog is booked as any orders are, with a pay window that was over before; then
//! `flashlock serve --roles closer` runs on it until nothing is due any more.

use std::path::Path;
use std::time::Duration;

use flashlock::clock;
use flashlock::deduct::{self, Ending};
use flashlock::gate::Gate;
use flashlock::lab::process::{EndSignal, Stdout, Ward, WardSpec, log_tail};
use flashlock::sale::Activity;
use flashlock::store::Store;

use crate::Failed;
use crate::ground::{self, Ground};
use crate::measured::{Measured, Target};

/// For 100,000 orders.
const TARGET_S: f64 = 15.0;
const TARGET_ORDERS: f64 = 100_000.0;
/// Far beyond the target: it is measured, not asserted.
const WAIT: Duration = Duration::from_secs(300);
const ASK_EVERY: Duration = Duration::from_millis(50);
const START: Duration = Duration::from_secs(30);
/// Orders of one transaction while the backlog is made.
const FILL: usize = 200;

/// Database and strategy.
const CELLS: [(&str, &str); 5] = [
    ("postgres", "db-conditional-update"),
    ("postgres", "redis-lua"),
    ("postgres", "redis-set-nx"),
    ("mysql", "db-conditional-update"),
    ("sqlite", "db-conditional-update"),
];

pub(crate) async fn measure(ground: &Ground, backlog: usize) -> Result<Vec<Measured>, Failed> {
    let mut all = Vec::new();
    for (database, strategy) in CELLS {
        let took = cell(ground, database, strategy, backlog).await?;
        let target = TARGET_S * backlog as f64 / TARGET_ORDERS;
        all.push(Measured {
            name: format!("closing {backlog} expired orders, {strategy} ({database})"),
            unit: "s",
            rounds: vec![(took.as_secs_f64(), target)],
            target: Target::AtMost(1.0),
        });
        println!("{strategy} on {database}: {backlog} orders closed in {took:.1?}");
    }
    Ok(all)
}

async fn cell(
    ground: &Ground,
    database: &str,
    strategy: &str,
    backlog: usize,
) -> Result<Duration, Failed> {
    let url = ground.database(database).await?;
    let store = ground::store(&url).await?;
    let mut activity = ground::activity(strategy);
    store.insert_activity(&activity).await?;
    fill(&store, &activity, backlog).await?;
    let gate = match strategy {
        "redis-lua" => {
            let gate = ground.gate()?;
            // Holds every order again that the database has live.
            activity = ground::open_gate(&gate, &store, &activity).await?;
            Some(gate)
        }
        _without => None,
    };
    let log = ground
        .lab
        .directory()
        .join(format!("closer-{}.log", activity.id));
    let closer = closer(ground, &url, &log).await?;
    let begun = clock::now();
    let ended = tokio::time::timeout(WAIT, at_rest(&store, &activity, gate.as_ref())).await;
    let took = begun.elapsed();
    closer.end(START).await;
    match ended {
        Ok(ended) => ended?,
        Err(_late) => {
            return Err(format!("not closed after {WAIT:?}: {}", log_tail(&log, 0)).into());
        }
    }
    // A created and a closed event for each.
    let due = store.count_outbox().await?.due;
    if due != 2 * backlog as i64 {
        return Err(format!("{backlog} closed orders have {due} events").into());
    }
    store.close().await;
    Ok(took)
}

/// Books orders whose pay window ended an hour ago.
async fn fill(store: &Store, activity: &Activity, backlog: usize) -> Result<(), Failed> {
    let long_ago = store.now_ms().await? - 3_600_000 - activity.pay_window_s * 1000;
    let orders = ground::orders(activity, backlog, long_ago)?;
    for some in orders.chunks(FILL) {
        for ending in deduct::book(store, activity, some).await {
            match ending? {
                Ending::Booked { .. } => {}
                other => return Err(format!("an order was not booked: {other:?}").into()),
            }
        }
    }
    Ok(())
}

/// A process that does nothing but close.
async fn closer(ground: &Ground, database_url: &str, log: &Path) -> Result<Ward, Failed> {
    let spec = WardSpec::new(env!("CARGO_BIN_EXE_flashlock"), log)
        .args(["serve", "--roles", "closer", "--listen", "127.0.0.1:0"])
        .args(["--database-url", database_url])
        .args(["--redis-url", &ground.redis_url()?])
        .env("FLASHLOCK_LOG", "warn")
        .stdout(Stdout::Lines)
        .end(EndSignal::Term);
    let mut ward = Ward::spawn(&spec).await?;
    match tokio::time::timeout(START, ward.next_line()).await {
        Ok(Some(_listening)) => Ok(ward),
        Ok(None) | Err(_) => Err(format!("the closer did not start: {}", log_tail(log, 0)).into()),
    }
}

/// Until every unit is available again, in the gate too.
async fn at_rest(store: &Store, activity: &Activity, gate: Option<&Gate>) -> Result<(), Failed> {
    loop {
        let back = store.available(&activity.id).await?;
        let mut rest = back.values().all(|n| *n == ground::STOCK);
        if let Some(gate) = gate {
            let audit = gate.audit(&activity.id).await?;
            let ledgers = audit.map(|a| a.ledgers).unwrap_or_default();
            rest &= ledgers.iter().all(|l| l.available == ground::STOCK);
        }
        if rest && store.due_orders(1).await?.is_empty() {
            return Ok(());
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
}
