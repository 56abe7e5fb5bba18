//! Which activities are to be reconciled, and what reconciliations found.

use sqlx::Row;
use sqlx::any::AnyRow;
use uuid::Uuid;

use super::activity::text;
use super::{Dialect, Store, StoreError, query};
use crate::ledger::reconciled::Reconciled;
use crate::sale::{ActivityId, Rid, Sku, StrategyName};

/// Most activities that are swept and reconciled: the newest.
const RUNNING_MAX: i64 = 200;
/// Findings kept of one run; what a reconciliation repairs is gone from the next.
const FINDINGS_MAX: usize = 1_000;
/// Rows of one statement.
const ROWS_MAX: usize = 100;

/// A reservation whose ledger rows are not what its order holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrongRow {
    pub rid: Rid,
    pub sku: Sku,
    /// Units that its order holds: none unless it is live.
    pub live: i64,
    /// Units that the ledger says it took and did not give back.
    pub taken: i64,
}

impl Store {
    /// The activities that sell or still settle and their strategies, the newest first, at most 200.
    pub async fn running(&self) -> Result<Vec<(ActivityId, StrategyName)>, StoreError> {
        let sql = self.dialect.sql(&format!(
            "SELECT id, strategy FROM activity \
             WHERE state IN ('OPEN', 'FENCED', 'PAUSING', 'PAUSED', 'CLOSING') \
             ORDER BY created_at DESC, id DESC LIMIT {RUNNING_MAX}"
        ));
        let rows = self.rows(query(&sql)).await?;
        rows.iter().map(named).collect()
    }

    /// Those of them whose orders are booked later.
    pub async fn running_async(&self) -> Result<Vec<(ActivityId, StrategyName)>, StoreError> {
        let sql = self.dialect.sql(&format!(
            "SELECT id, strategy FROM activity \
             WHERE state IN ('OPEN', 'FENCED', 'PAUSING', 'PAUSED', 'CLOSING') AND booking = 'async' \
             ORDER BY created_at DESC, id DESC LIMIT {RUNNING_MAX}"
        ));
        let rows = self.rows(query(&sql)).await?;
        rows.iter().map(named).collect()
    }

    /// Reservations whose lines and ledger rows differ: what is live must have been taken, what is
    /// not must have been given back. One statement (one snapshot), at most 1,000 rows.
    pub async fn wrong_ledger_rows(
        &self,
        activity: &ActivityId,
    ) -> Result<Vec<WrongRow>, StoreError> {
        let net = self
            .dialect
            .sum("CASE WHEN s.kind = 'DEDUCT' THEN s.quantity ELSE -s.quantity END");
        let sql = self.dialect.sql(&format!(
            "SELECT q.rid, q.sku, q.live, q.net FROM ( \
               SELECT l.order_id AS rid, l.sku AS sku, \
                 CASE WHEN o.live_key IS NULL THEN 0 ELSE l.quantity END AS live, \
                 COALESCE((SELECT {net} FROM stock_ledger s WHERE s.order_id = l.order_id AND s.sku = l.sku), 0) AS net \
               FROM orders o JOIN order_line l ON l.order_id = o.id WHERE o.activity_id = ? \
             ) q WHERE q.live <> q.net ORDER BY q.rid, q.sku LIMIT {FINDINGS_MAX}"
        ));
        let rows = self.rows(query(&sql).bind(activity.to_string())).await?;
        rows.iter()
            .map(|row| {
                Ok(WrongRow {
                    rid: text(row, "rid")?,
                    sku: text(row, "sku")?,
                    live: row.try_get("live")?,
                    taken: row.try_get("net")?,
                })
            })
            .collect()
    }

    /// Keeps what a reconciliation found: the first 1,000 findings.
    pub async fn insert_recon_run(
        &self,
        activity: &ActivityId,
        started_at_ms: i64,
        reconciled: &Reconciled,
    ) -> Result<(), StoreError> {
        let run = Uuid::now_v7().to_string();
        let mut tx = self.begin().await?;
        let sql = self.dialect.sql(
            "INSERT INTO recon_run (id, activity_id, verdict, started_at, ended_at) VALUES (?, ?, ?, ?, {now})",
        );
        let insert = query(&sql)
            .bind(run.clone())
            .bind(activity.to_string())
            .bind(reconciled.verdict.as_str())
            .bind(started_at_ms);
        tx.execute(insert).await?;
        let kept = &reconciled.findings[..reconciled.findings.len().min(FINDINGS_MAX)];
        for findings in kept.chunks(ROWS_MAX) {
            let tuples = Dialect::tuples(findings.len(), &["?", "?", "?", "?", "?"]);
            let sql = self.dialect.sql(&format!(
                "INSERT INTO recon_finding (run_id, rid, finding, repaired, reason) VALUES {tuples} {}",
                self.dialect.keep_the_first("rid")
            ));
            let mut insert = query(&sql);
            for finding in findings {
                insert = insert
                    .bind(run.clone())
                    .bind(finding.rid.map(|rid| rid.to_string()).unwrap_or_default())
                    .bind(finding.difference.as_str())
                    .bind(i64::from(finding.repaired))
                    .bind(finding.reason.clone());
            }
            tx.execute(insert).await?;
        }
        tx.commit().await
    }
}

/// An activity and its strategy.
fn named(row: &AnyRow) -> Result<(ActivityId, StrategyName), StoreError> {
    let strategy: String = row.try_get("strategy")?;
    Ok((text(row, "id")?, StrategyName::new(&strategy)))
}
