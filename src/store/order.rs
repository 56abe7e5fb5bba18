//! The rows of orders: looked up, booked, closed.

use std::collections::{HashMap, HashSet};

use sqlx::any::{AnyArguments, AnyRow};
use sqlx::query::Query;
use sqlx::{Any, Row};

use super::activity::{text, text_or_null};
use super::event::Event;
use super::outbox::EventKind;
use super::{Dialect, Store, StoreError, Tx, query};
use crate::order::{CloseReason, Fingerprint, NewOrder, Order, OrderState};
use crate::sale::{Activity, ActivityId, ActivityState, Line, OrderId, Rid, UserId};

const COLUMNS: &str =
    "id, activity_id, user_id, state, close_reason, fingerprint, created_at, pay_deadline";

/// Ledger rows of one statement: their parameters stay far below what a database takes (32,766 in
/// SQLite), however many lines the orders of a batch have.
const LEDGER_ROWS_MAX: usize = 4000;

/// What the database knows about a request before it is let in, in one statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lookup {
    /// The database's clock.
    pub now_ms: i64,
    pub state: ActivityState,
    pub fence_generation: i64,
    pub gate_epoch: i64,
    /// The row of this very reservation.
    pub same: Option<Found>,
    /// The live order of this user, under whatever reservation.
    pub live: Option<Rid>,
}

/// The row of a reservation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub state: OrderState,
    pub fingerprint: Fingerprint,
}

impl Store {
    /// `None`: there is no such activity.
    pub async fn look_up(
        &self,
        activity: &ActivityId,
        rid: Rid,
        user: &UserId,
    ) -> Result<Option<Lookup>, StoreError> {
        let sql = self.dialect.sql(
            "SELECT {now} AS now_ms, a.state AS state, a.fence_generation, a.gate_epoch, \
               same.state AS same_state, same.fingerprint AS same_fingerprint, live.id AS live_id \
             FROM activity a \
             LEFT JOIN orders same ON same.id = ? \
             LEFT JOIN orders live ON live.activity_id = a.id AND live.live_key = ? \
             WHERE a.id = ?",
        );
        let select = query(&sql)
            .bind(rid.to_string())
            .bind(user.to_string())
            .bind(activity.to_string());
        let rows = self.rows(select).await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let same = match text_or_null(row, "same_state")? {
            Some(state) => Some(Found {
                state,
                fingerprint: Fingerprint::from_store(row.try_get("same_fingerprint")?),
            }),
            None => None,
        };
        Ok(Some(Lookup {
            now_ms: row.try_get("now_ms")?,
            state: text(row, "state")?,
            fence_generation: row.try_get("fence_generation")?,
            gate_epoch: row.try_get("gate_epoch")?,
            same,
            live: text_or_null(row, "live_id")?,
        }))
    }

    pub async fn order(&self, rid: Rid) -> Result<Option<Order>, StoreError> {
        Ok(self.orders(&[rid]).await?.pop())
    }

    /// The orders of these reservations that exist, in no particular order.
    pub async fn orders(&self, rids: &[Rid]) -> Result<Vec<Order>, StoreError> {
        if rids.is_empty() {
            return Ok(Vec::new());
        }
        let sql = self.dialect.sql(&format!(
            "SELECT {COLUMNS} FROM orders WHERE id IN ({})",
            Dialect::placeholders(rids.len())
        ));
        let mut select = query(&sql);
        for rid in rids {
            select = select.bind(rid.to_string());
        }
        let rows = self.rows(select).await?;
        self.with_lines(&rows).await
    }

    /// Live orders with a reservation id above `after`, ascending: a page of at most `limit`.
    pub async fn live_orders(
        &self,
        activity: &ActivityId,
        after: Option<Rid>,
        limit: i64,
    ) -> Result<Vec<Order>, StoreError> {
        let sql = self.dialect.sql(&format!(
            "SELECT {COLUMNS} FROM orders WHERE activity_id = ? AND live_key IS NOT NULL AND id > ? \
             ORDER BY id LIMIT ?"
        ));
        let select = query(&sql)
            .bind(activity.to_string())
            .bind(after.map(|rid| rid.to_string()).unwrap_or_default())
            .bind(limit);
        let rows = self.rows(select).await?;
        self.with_lines(&rows).await
    }

    /// Orders whose pay window is over by the database's clock, the longest overdue first.
    pub async fn due_orders(&self, limit: i64) -> Result<Vec<OrderId>, StoreError> {
        // Asked for the time once: compared with each row's, it could not bound the index.
        let sql = self.dialect.sql(
            "SELECT id, activity_id FROM orders WHERE state = 'PENDING_PAYMENT' \
             AND pay_deadline <= (SELECT {now}) ORDER BY pay_deadline LIMIT ?",
        );
        let rows = self.rows(query(&sql).bind(limit)).await?;
        rows.iter()
            .map(|row| {
                Ok(OrderId {
                    activity: text(row, "activity_id")?,
                    rid: text(row, "id")?,
                })
            })
            .collect()
    }

    async fn with_lines(&self, rows: &[AnyRow]) -> Result<Vec<Order>, StoreError> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let sql = self.dialect.sql(&format!(
            "SELECT order_id, sku, quantity FROM order_line WHERE order_id IN ({}) ORDER BY order_id, sku",
            Dialect::placeholders(rows.len())
        ));
        let mut select = query(&sql);
        for row in rows {
            select = select.bind(row.try_get::<String, _>("id")?);
        }
        let mut lines: HashMap<Rid, Vec<Line>> = HashMap::new();
        for row in &self.rows(select).await? {
            lines.entry(text(row, "order_id")?).or_default().push(Line {
                sku: text(row, "sku")?,
                quantity: row.try_get("quantity")?,
            });
        }
        rows.iter()
            .map(|row| {
                let rid: Rid = text(row, "id")?;
                Ok(Order {
                    id: OrderId {
                        activity: text(row, "activity_id")?,
                        rid,
                    },
                    user: text(row, "user_id")?,
                    state: text(row, "state")?,
                    close_reason: text_or_null(row, "close_reason")?,
                    fingerprint: Fingerprint::from_store(row.try_get("fingerprint")?),
                    lines: lines.remove(&rid).unwrap_or_default(),
                    created_at_ms: row.try_get("created_at")?,
                    pay_deadline_ms: row.try_get("pay_deadline")?,
                })
            })
            .collect()
    }
}

impl Tx {
    /// Inserts orders with their lines, ledger rows and events: everything of a booking but the
    /// stock. Four statements, however many orders.
    ///
    /// # Errors
    /// `Conflict` when a reservation is there already or its user has a live order: roll back, and
    /// look up which.
    pub async fn insert_orders(
        &mut self,
        activity: &Activity,
        orders: &[&NewOrder],
    ) -> Result<(), StoreError> {
        self.under = Some(activity.fence_generation);
        let id = activity.id.to_string();
        let state = OrderState::PendingPayment.as_str();
        let sql = self.dialect.sql(&format!(
            "INSERT INTO orders (id, activity_id, user_id, live_key, state, fingerprint, created_at, pay_deadline) VALUES {}",
            Dialect::tuples(orders.len(), &["?", "?", "?", "?", "?", "?", "?", "?"])
        ));
        let mut insert = query(&sql);
        for order in orders {
            insert = insert
                .bind(order.rid.to_string())
                .bind(id.clone())
                .bind(order.user.to_string())
                .bind(order.user.to_string())
                .bind(state)
                .bind(order.fingerprint.as_str().to_string())
                .bind(order.admitted_at_ms)
                .bind(order.pay_deadline_ms(activity));
        }
        self.execute(insert).await?;

        let lines: Vec<(Rid, &Line)> = orders
            .iter()
            .flat_map(|order| order.lines.iter().map(|line| (order.rid, line)))
            .collect();
        self.insert_lines(&lines).await?;
        self.insert_ledger(&activity.id, LedgerKind::Deduct, &lines)
            .await?;

        let events: Vec<Event<'_>> = orders
            .iter()
            .map(|order| Event {
                rid: order.rid,
                user: &order.user,
                lines: &order.lines,
                kind: EventKind::Created,
                reason: None,
            })
            .collect();
        self.insert_events(&activity.id, &events).await
    }

    /// Closes those of `orders` that still wait for payment, with their ledger rows and events, but
    /// not the stock. Answers which were closed by this call.
    pub async fn close_orders(
        &mut self,
        activity: &Activity,
        orders: &[&Order],
        why: CloseReason,
    ) -> Result<Vec<bool>, StoreError> {
        self.under = Some(activity.fence_generation);
        let pending = self.close_pending(orders, why).await?;
        let closed: Vec<bool> = orders
            .iter()
            .map(|order| pending.contains(&order.id.rid))
            .collect();
        let now_closed: Vec<&Order> = orders
            .iter()
            .zip(&closed)
            .filter_map(|(order, closed)| closed.then_some(*order))
            .collect();
        if now_closed.is_empty() {
            return Ok(closed);
        }
        let lines: Vec<(Rid, &Line)> = now_closed
            .iter()
            .flat_map(|order| order.lines.iter().map(|line| (order.id.rid, line)))
            .collect();
        self.insert_ledger(&activity.id, LedgerKind::Release, &lines)
            .await?;
        let events: Vec<Event<'_>> = now_closed
            .iter()
            .map(|order| Event {
                rid: order.id.rid,
                user: &order.user,
                lines: &order.lines,
                kind: EventKind::Closed,
                reason: Some(why.as_str()),
            })
            .collect();
        self.insert_events(&activity.id, &events).await?;
        Ok(closed)
    }

    pub(super) async fn insert_lines(&mut self, lines: &[(Rid, &Line)]) -> Result<(), StoreError> {
        let sql = self.dialect.sql(&format!(
            "INSERT INTO order_line (order_id, sku, quantity) VALUES {}",
            Dialect::tuples(lines.len(), &["?", "?", "?"])
        ));
        let mut insert = query(&sql);
        for (rid, line) in lines {
            insert = insert
                .bind(rid.to_string())
                .bind(line.sku.to_string())
                .bind(line.quantity);
        }
        self.execute(insert).await?;
        Ok(())
    }

    /// Moves those of `orders` that still wait for payment to CLOSED, in one statement where the
    /// dialect tells which rows it changed. Those are answered.
    async fn close_pending(
        &mut self,
        orders: &[&Order],
        why: CloseReason,
    ) -> Result<HashSet<Rid>, StoreError> {
        const CLOSE: &str = "UPDATE orders SET state = 'CLOSED', live_key = NULL, close_reason = ?, \
             closed_at = {now}, version = version + 1";
        // COALESCE keeps planners off the index on `state`: where they have no statistics yet, they
        // would read every pending order for each batch instead of these by their keys.
        const PENDING: &str = "WHERE COALESCE(state, '') = 'PENDING_PAYMENT' AND id IN";
        let ids = Dialect::placeholders(orders.len());
        let rows = match self.dialect {
            Dialect::Sqlite | Dialect::Postgres => {
                let sql = self
                    .dialect
                    .sql(&format!("{CLOSE} {PENDING} ({ids}) RETURNING id"));
                let update = bind_ids(query(&sql).bind(why.as_str()), orders);
                update.fetch_all(&mut *self.inner).await?
            }
            // No `UPDATE … RETURNING`: what this reads stays locked, so that the update finds it so.
            Dialect::Mysql => {
                let sql = self.dialect.sql(&format!(
                    "SELECT id FROM orders {PENDING} ({ids}) FOR UPDATE"
                ));
                let rows = bind_ids(query(&sql), orders)
                    .fetch_all(&mut *self.inner)
                    .await?;
                let sql = self.dialect.sql(&format!("{CLOSE} {PENDING} ({ids})"));
                self.execute(bind_ids(query(&sql).bind(why.as_str()), orders))
                    .await?;
                rows
            }
        };
        rows.iter().map(|row| text(row, "id")).collect()
    }

    async fn insert_ledger(
        &mut self,
        activity: &ActivityId,
        kind: LedgerKind,
        lines: &[(Rid, &Line)],
    ) -> Result<(), StoreError> {
        for lines in lines.chunks(LEDGER_ROWS_MAX) {
            let sql = self.dialect.sql(&format!(
                "INSERT INTO stock_ledger (activity_id, sku, order_id, kind, quantity, created_at) VALUES {}",
                Dialect::tuples(lines.len(), &["?", "?", "?", "?", "?", "{now}"])
            ));
            let mut insert = query(&sql);
            for (rid, line) in lines {
                insert = insert
                    .bind(activity.to_string())
                    .bind(line.sku.to_string())
                    .bind(rid.to_string())
                    .bind(kind.as_str())
                    .bind(line.quantity);
            }
            self.execute(insert).await?;
        }
        Ok(())
    }
}

fn bind_ids<'q>(
    statement: Query<'q, Any, AnyArguments>,
    orders: &[&Order],
) -> Query<'q, Any, AnyArguments> {
    let bind =
        |statement: Query<'q, _, _>, order: &&Order| statement.bind(order.id.rid.to_string());
    orders.iter().fold(statement, bind)
}

/// What a ledger row says happened to the stock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LedgerKind {
    Deduct,
    Release,
}

// === impl LedgerKind ===

impl LedgerKind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Deduct => "DEDUCT",
            Self::Release => "RELEASE",
        }
    }
}
