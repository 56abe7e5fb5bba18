//! Which activities are to be reconciled, and what reconciliations found.

use uuid::Uuid;

use super::activity::{COLUMNS, decode};
use super::{Dialect, Store, StoreError, query};
use crate::ledger::reconciled::Reconciled;
use crate::sale::{Activity, ActivityId};

/// Most activities that are swept and reconciled: the newest.
const RUNNING_MAX: i64 = 200;
/// Findings kept of one run; what a reconciliation repairs is gone from the next.
const FINDINGS_MAX: usize = 1_000;
/// Rows of one statement.
const ROWS_MAX: usize = 100;

impl Store {
    /// The activities that sell or still settle, the newest first, at most 200.
    pub async fn running_activities(&self) -> Result<Vec<Activity>, StoreError> {
        let sql = self.dialect.sql(&format!(
            "SELECT {COLUMNS} FROM activity \
             WHERE state IN ('OPEN', 'FENCED', 'PAUSING', 'PAUSED', 'CLOSING') \
             ORDER BY created_at DESC, id DESC LIMIT {RUNNING_MAX}"
        ));
        let rows = self.rows(query(&sql)).await?;
        let mut activities = Vec::with_capacity(rows.len());
        for row in &rows {
            let mut activity = decode(row)?;
            activity.skus = self.allocations(&activity.id).await?;
            activities.push(activity);
        }
        Ok(activities)
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
