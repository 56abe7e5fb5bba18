//! Do the laws hold (D1 to D5, R1, R2, E1, E2)? Read from the database and Redis themselves.

use std::collections::{BTreeMap, BTreeSet};

use flashlock::keys::GateKeys;
use flashlock::sale::ActivityId;
use flashlock::store::{FinalOrder, Store, StoreOptions};
use redis::aio::MultiplexedConnection;
use sqlx::{PgPool, Row};

use crate::books::{Books, quantity};

/// Where the stores of one activity are read.
pub(crate) struct Ground {
    pub(crate) id: ActivityId,
    pub(crate) store: Store,
    pub(crate) sql: PgPool,
    redis_url: String,
}

/// Everything that the gate holds, read at once.
#[derive(Debug)]
pub(crate) struct GateRows {
    run_id: String,
    meta: BTreeMap<String, String>,
    units: [BTreeMap<String, i64>; 4],
    records: BTreeMap<String, String>,
    pend: Vec<String>,
    /// Entries in the stream of the booking workers.
    handed: i64,
    users: BTreeMap<String, String>,
}

const TOTAL: usize = 0;
const STOCK: usize = 1;
const PENDING: usize = 2;
const COMMITTED: usize = 3;

/// What must come to an end before the stores are at rest.
const UNENDED: [(&str, &str); 4] = [
    (
        "events are not published",
        "SELECT COUNT(*) FROM outbox WHERE activity_id = $1 AND published_at IS NULL",
    ),
    (
        "events are dead letters",
        "SELECT COUNT(*) FROM outbox WHERE activity_id = $1 AND dead_at IS NOT NULL",
    ),
    (
        "unknown reservations are not resolved",
        "SELECT COUNT(*) FROM compensation WHERE activity_id = $1 AND state <> 'DONE'",
    ),
    (
        "orders are past their pay window and not closed",
        "SELECT COUNT(*) FROM orders WHERE activity_id = $1 AND state = 'PENDING_PAYMENT' \
         AND pay_deadline < EXTRACT(EPOCH FROM clock_timestamp()) * 1000",
    ),
];

/// The end of D5: takes as long as the relay leaves a published event to the broker.
const UNDELIVERED: (&str, &str) = (
    "events have not had their effect",
    "SELECT COUNT(*) FROM outbox o WHERE o.activity_id = $1 AND NOT EXISTS \
     (SELECT 1 FROM inbox i WHERE i.event_id = o.event_id AND i.consumer = 'gate-mirror')",
);

/// D4, as what must not be there.
const MONEY: [(&str, &str); 4] = [
    (
        "payments are applied to an order that is not PAID",
        "SELECT COUNT(*) FROM payment p JOIN orders o ON o.id = p.order_id \
         WHERE o.activity_id = $1 AND p.outcome = 'APPLIED' AND o.state <> 'PAID'",
    ),
    (
        "PAID orders do not have one applied payment",
        "SELECT COUNT(*) FROM orders o WHERE o.activity_id = $1 AND o.state = 'PAID' AND 1 <> \
         (SELECT COUNT(*) FROM payment p WHERE p.order_id = o.id AND p.outcome = 'APPLIED')",
    ),
    (
        "payments that are not applied have no refund",
        "SELECT COUNT(*) FROM payment p JOIN orders o ON o.id = p.order_id \
         LEFT JOIN refund r ON r.payment_id = p.id \
         WHERE o.activity_id = $1 AND p.outcome = 'REFUND_DUE' AND r.payment_id IS NULL",
    ),
    (
        "applied payments are refunded",
        "SELECT COUNT(*) FROM payment p JOIN orders o ON o.id = p.order_id \
         JOIN refund r ON r.payment_id = p.id WHERE o.activity_id = $1 AND p.outcome = 'APPLIED'",
    ),
];

// === impl Ground ===

impl Ground {
    /// `database_url` is a PostgreSQL's.
    pub(crate) async fn open(id: ActivityId, database_url: &str, redis_url: &str) -> Self {
        let options = StoreOptions {
            url: database_url.to_string(),
            connections_max: 2,
        };
        Self {
            id,
            store: Store::open(&options).await.expect("the database answers"),
            sql: PgPool::connect(database_url)
                .await
                .expect("the database answers"),
            redis_url: redis_url.to_string(),
        }
    }

    pub(crate) async fn redis(&self) -> redis::RedisResult<MultiplexedConnection> {
        let client = redis::Client::open(self.redis_url.as_str())?;
        client.get_multiplexed_async_connection().await
    }

    /// The gate in one transaction of Redis. `Err` while it is away.
    pub(crate) async fn gate(&self) -> redis::RedisResult<GateRows> {
        let k = GateKeys::of(&self.id);
        // One connection, which ends with its server: both answers are of one start of it.
        let mut redis = self.redis().await?;
        let mut all = redis::pipe();
        all.atomic().hgetall(&k.meta);
        for units in [&k.total, &k.stock, &k.pending, &k.committed] {
            all.hgetall(units);
        }
        all.hgetall(&k.rsv)
            .zrange(&k.pend, 0, -1)
            .xlen(&k.q)
            .hgetall(&k.user);
        let (meta, total, stock, pending, committed, records, pend, handed, users) =
            all.query_async(&mut redis).await?;
        let mut info = redis::cmd("INFO");
        let info: redis::InfoDict = info.arg("server").query_async(&mut redis).await?;
        Ok(GateRows {
            run_id: info.get("run_id").unwrap_or_default(),
            meta,
            units: [total, stock, pending, committed],
            records,
            pend,
            handed,
            users,
        })
    }

    /// The only value of `sql`, which has the activity as `$1`.
    pub(crate) async fn number(&self, sql: &'static str) -> i64 {
        let row = sqlx::query(sql).bind(self.id.to_string());
        let row = row
            .fetch_one(&self.sql)
            .await
            .expect("the database answers");
        row.get(0)
    }

    /// What breaks the laws that hold at every moment: R1 while it sells, and that no live order has
    /// been given back. Empty as well while a server is away.
    pub(crate) async fn broken_now(&self) -> Vec<String> {
        let Ok(gate) = self.gate().await else {
            return Vec::new();
        };
        let mut broken = match self.sells(&gate).await {
            true => gate.unbalanced(),
            false => Vec::new(),
        };
        let given_back: Vec<String> = gate
            .records
            .iter()
            .filter(|(_, record)| record.starts_with(['R', 'X']))
            .map(|(rid, _)| rid.clone())
            .collect();
        // The gate gives back what is dead in the database, and what is dead there stays so: one
        // that was given back first and is live now was given back while it was live.
        let live = sqlx::query(
            "SELECT id FROM orders WHERE id = ANY($1) AND state IN ('PENDING_PAYMENT', 'PAID')",
        );
        let live = live.bind(given_back).fetch_all(&self.sql).await;
        for row in live.unwrap_or_default() {
            let rid: String = row.get(0);
            broken.push(format!("{rid} is live, and the gate has given it back"));
        }
        broken
    }

    /// Whether what was read is of the gate that was opened. A Redis that has just come back may have
    /// half a script in its history (its file was torn inside of a MULTI, and went on behind that):
    /// nothing can be sold there before a rebuild has counted anew, and has opened it in a later epoch.
    async fn sells(&self, gate: &GateRows) -> bool {
        let opened = sqlx::query("SELECT gate_run_id, gate_epoch FROM activity WHERE id = $1");
        let opened = opened.bind(self.id.to_string()).fetch_one(&self.sql).await;
        let opened = opened.and_then(|row| {
            let (run_id, epoch): (String, i64) = (row.try_get(0)?, row.try_get(1)?);
            Ok((run_id, epoch.to_string(), "OPEN".to_string()))
        });
        let of = |name: &str| gate.meta.get(name).cloned().unwrap_or_default();
        opened.is_ok_and(|opened| opened == (gate.run_id.clone(), of("epoch"), of("state")))
    }

    /// What is still under way, though the buyers have gone.
    pub(crate) async fn unended(&self) -> Vec<String> {
        self.counted(&UNENDED).await
    }

    /// Events that were published and have had no effect, or not yet.
    pub(super) async fn undelivered(&self) -> Vec<String> {
        self.counted(&[UNDELIVERED]).await
    }

    async fn counted(&self, what: &[(&str, &'static str)]) -> Vec<String> {
        let mut found = Vec::new();
        for (what, sql) in what {
            let n = self.number(sql).await;
            if n > 0 {
                found.push(format!("{n} {what}"));
            }
        }
        found
    }

    /// What breaks a law, once nothing is under way.
    pub(crate) async fn broken_at_rest(&self) -> Vec<String> {
        let gate = match self.gate().await {
            Ok(gate) => gate,
            Err(away) => return vec![format!("redis: {away}")],
        };
        let books = Books::read(&self.store, self.id.as_str()).await;
        // D1, D2, D3, and that every transition has its one event (D5).
        let mut broken = books.breaches();
        broken.extend(self.counted(&MONEY).await);
        let epoch = self
            .number("SELECT gate_epoch FROM activity WHERE id = $1")
            .await;
        let of = |name: &str| gate.meta.get(name).cloned().unwrap_or_default();
        if (of("state"), of("epoch")) != ("OPEN".to_string(), epoch.to_string()) {
            broken.push(format!("the gate is {:?} in epoch {epoch}", gate.meta));
        }
        broken.extend(gate.unbalanced());
        broken.extend(gate.against(&books));
        broken
    }
}

// === impl GateRows ===

impl GateRows {
    /// R1: of each SKU, stock + pending + committed = total.
    fn unbalanced(&self) -> Vec<String> {
        let mut broken = Vec::new();
        for (sku, total) in &self.units[TOTAL] {
            let of = |kind: usize| self.units[kind].get(sku).copied().unwrap_or(i64::MIN / 8);
            let (stock, pending, committed) = (of(STOCK), of(PENDING), of(COMMITTED));
            if stock + pending + committed != *total {
                broken.push(format!(
                    "R1: of {sku} {stock} + {pending} + {committed} is not {total}"
                ));
            }
        }
        broken
    }

    /// R2, E1 and E2: nothing is held, the same units are left, the same orders are settled, and
    /// exactly their users are marked.
    fn against(&self, books: &Books) -> Vec<String> {
        let mut broken = Vec::new();
        for row in &books.0.skus {
            let of = |kind: usize| self.units[kind].get(row.sku.as_str()).copied();
            if of(TOTAL) != Some(row.total) {
                broken.push(format!("R1: the gate has {:?} of {row:?}", of(TOTAL)));
            }
            if (of(STOCK), of(PENDING)) != (Some(row.available), Some(0)) {
                let (stock, pending) = (of(STOCK), of(PENDING));
                broken.push(format!(
                    "R2: the gate has {stock:?} to sell and {pending:?} held, the database {row:?}"
                ));
            }
        }
        if !self.pend.is_empty() {
            broken.push(format!("E1: {} holds have not ended", self.pend.len()));
        }
        if self.handed > 0 {
            broken.push(format!("E1: {} holds are still handed over", self.handed));
        }
        let live: BTreeMap<String, &FinalOrder> =
            books.live().map(|o| (o.rid.to_string(), o)).collect();
        for (rid, record) in &self.records {
            match (record.get(..1), live.contains_key(rid)) {
                (Some("C"), true) | (Some("R" | "X"), false) => {}
                (Some("P"), _) => broken.push(format!("E1: {rid} is held: {record}")),
                (_, true) => broken.push(format!("E2: {rid} is live and not sold: {record}")),
                (_, false) => broken.push(format!("E2: {rid} is sold and not live: {record}")),
            }
        }
        for (rid, order) in &live {
            if !self.records.contains_key(rid) {
                broken.push(format!("E2: the gate does not know {order:?}"));
            }
        }
        let marked: BTreeSet<(String, String)> = self
            .users
            .iter()
            .flat_map(|(user, orders)| {
                let orders = orders.split(';').filter(|order| !order.is_empty());
                orders.map(move |order| (user.clone(), order.to_string()))
            })
            .collect();
        let buyers: BTreeSet<(String, String)> = live
            .iter()
            .map(|(rid, order)| {
                let units: i64 = order.lines.iter().map(|l| quantity(order, &l.sku)).sum();
                (order.user.to_string(), format!("{rid}={units}"))
            })
            .collect();
        for blocked in marked.difference(&buyers) {
            broken.push(format!("E2: {blocked:?} is marked without a live order"));
        }
        for free in buyers.difference(&marked) {
            broken.push(format!("E2: {free:?} has a live order and no mark"));
        }
        broken
    }
}
