//! Everything the database says about one activity once it has come to rest: what a checker reads.

use sqlx::Row;

use super::activity::text;
use super::{Store, StoreError, query};
use crate::order::OrderState;
use crate::sale::{ActivityId, Line, Rid, Sku, UserId};

/// The rows of one activity.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FinalState {
    pub skus: Vec<FinalSku>,
    pub orders: Vec<FinalOrder>,
    /// In the order in which they were written.
    pub ledger: Vec<LedgerRow>,
    pub outbox: Vec<OutboxRow>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FinalSku {
    pub sku: Sku,
    pub total: i64,
    pub available: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FinalOrder {
    pub rid: Rid,
    pub user: UserId,
    pub state: OrderState,
    pub lines: Vec<Line>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerRow {
    pub rid: Rid,
    pub sku: Sku,
    /// Units taken by the order; below zero for units given back.
    pub taken: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxRow {
    pub rid: Rid,
    /// Such as `order.created`.
    pub kind: String,
}

impl Store {
    /// Reads what is there, without a limit: for an activity that has come to rest.
    pub async fn final_state(&self, activity: &ActivityId) -> Result<FinalState, StoreError> {
        let mut state = FinalState::default();
        let all = |sql: &str| self.dialect.sql(sql);
        let id = activity.to_string();

        let sql = all(
            "SELECT sku, total, available FROM activity_sku WHERE activity_id = ? ORDER BY sku",
        );
        for row in &self.rows(query(&sql).bind(id.clone())).await? {
            state.skus.push(FinalSku {
                sku: text(row, "sku")?,
                total: row.try_get("total")?,
                available: row.try_get("available")?,
            });
        }
        let sql = all(
            "SELECT o.id AS id, o.user_id AS user_id, o.state AS state, l.sku AS sku, l.quantity AS quantity \
             FROM orders o LEFT JOIN order_line l ON l.order_id = o.id \
             WHERE o.activity_id = ? ORDER BY o.id, l.sku",
        );
        for row in &self.rows(query(&sql).bind(id.clone())).await? {
            let rid: Rid = text(row, "id")?;
            if state.orders.last().map(|o| o.rid) != Some(rid) {
                state.orders.push(FinalOrder {
                    rid,
                    user: text(row, "user_id")?,
                    state: text(row, "state")?,
                    lines: Vec::new(),
                });
            }
            let quantity: Option<i64> = row.try_get("quantity")?;
            if let (Some(quantity), Some(order)) = (quantity, state.orders.last_mut()) {
                order.lines.push(Line {
                    sku: text(row, "sku")?,
                    quantity,
                });
            }
        }
        let sql = all(
            "SELECT order_id, sku, kind, quantity FROM stock_ledger WHERE activity_id = ? ORDER BY seq",
        );
        for row in &self.rows(query(&sql).bind(id.clone())).await? {
            let quantity: i64 = row.try_get("quantity")?;
            let kind: String = row.try_get("kind")?;
            state.ledger.push(LedgerRow {
                rid: text(row, "order_id")?,
                sku: text(row, "sku")?,
                taken: if kind == "DEDUCT" {
                    quantity
                } else {
                    -quantity
                },
            });
        }
        let sql = all("SELECT aggregate_id, kind FROM outbox WHERE activity_id = ? ORDER BY id");
        for row in &self.rows(query(&sql).bind(id)).await? {
            state.outbox.push(OutboxRow {
                rid: text(row, "aggregate_id")?,
                kind: row.try_get("kind")?,
            });
        }
        Ok(state)
    }
}
