//! How the stores of an activity stand to each other, and what is mended. The role `reconciler`.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::{Flow, FlowError};
use crate::ledger::Imbalance;
use crate::ledger::reconciled::{Difference, Finding, Mode, Reconciled, Verdict};
use crate::sale::ActivityId;
use crate::strategy::Strategy;

/// Between two passes over everything that sells: a pass reads every live order.
const PAUSE: Duration = Duration::from_secs(60);

impl Flow {
    /// Compares the stores of an activity and mends what differs, reservation by reservation,
    /// unless it is a dry run. The database's own books are compared and never changed. What was
    /// found is kept; a verdict of CORRUPT lets no further buyer in.
    ///
    /// # Cancel safety
    /// Dropped half way it has mended some of the differences; the next pass mends the others.
    pub async fn reconcile(&self, id: &ActivityId, mode: Mode) -> Result<Reconciled, FlowError> {
        let store = &self.app.store;
        let started_at_ms = store.now_ms().await?;
        let reconciled = self.compare(id, mode).await?;
        store
            .insert_recon_run(id, started_at_ms, &reconciled)
            .await?;
        Ok(reconciled)
    }

    async fn compare(&self, id: &ActivityId, mode: Mode) -> Result<Reconciled, FlowError> {
        let strategy = self.strategy(&self.read(id).await?)?;
        let books = self.books(id).await?;
        if books.verdict == Verdict::Corrupt && mode == Mode::Repair {
            strategy.fence(id).await?;
        }
        let reconciled = books.and(strategy.reconcile(id, mode).await?);
        if mode == Mode::Repair && reconciled.findings.iter().any(|f| f.repaired) {
            self.sold_out.forget(id);
        }
        Ok(reconciled)
    }

    /// The database's stock, orders and ledger against each other.
    async fn books(&self, id: &ActivityId) -> Result<Reconciled, FlowError> {
        let about = |rid, difference, reason| Finding {
            rid,
            difference,
            reason,
            repaired: false,
        };
        let mut findings = Vec::new();
        for ledger in self.app.store.ledgers(id).await? {
            let sku = &ledger.sku;
            findings.extend(ledger.balance().err().map(|imbalance| match imbalance {
                Imbalance::Oversold { units } => {
                    let reason = format!("{units} more of {sku} are in live orders than there are");
                    about(None, Difference::OrdersAboveTotal, reason)
                }
                Imbalance::Lost { units } if units > 0 => {
                    let reason =
                        format!("{units} of {sku} are neither for sale nor in a live order");
                    about(None, Difference::UnitsLost, reason)
                }
                Imbalance::Lost { units } => {
                    let reason = format!(
                        "{} of {sku} are for sale and in a live order as well",
                        -units
                    );
                    about(None, Difference::OrdersAboveTotal, reason)
                }
                Imbalance::OutOfRange { available } => {
                    let reason = format!("{available} of {sku} are for sale, of {}", ledger.total);
                    about(None, Difference::BooksWrong, reason)
                }
            }));
        }
        for row in self.app.store.wrong_ledger_rows(id).await? {
            let reason = format!(
                "its order holds {} of {} and the ledger has {} taken",
                row.live, row.sku, row.taken
            );
            findings.push(about(Some(row.rid), Difference::BooksWrong, reason));
        }
        Ok(Reconciled::new(Verdict::Ok, findings))
    }

    /// Reconciles what sells and what settles, again and again until `stop`. Two reconcilers at
    /// once do no harm.
    pub async fn reconciler(self: Arc<Self>, stop: CancellationToken) {
        loop {
            // The pause comes first: a service that has just started finds its servers starting.
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(PAUSE) => {}
            }
            if let Err(error) = self.reconcile_all(&stop).await {
                tracing::warn!(%error, "cannot reconcile; trying again");
            }
        }
    }

    async fn reconcile_all(&self, stop: &CancellationToken) -> Result<(), FlowError> {
        for (id, _strategy) in self.app.store.running().await? {
            if stop.is_cancelled() {
                return Ok(());
            }
            // What is there to fail would be told of again and again.
            if Strategy::controls(&self.read(&id).await?) {
                continue;
            }
            if let Err(error) = self.reconcile_and_tell(&id).await {
                tracing::warn!(activity = %id, %error, "cannot reconcile; trying again");
            }
        }
        Ok(())
    }

    /// Reconciles without being asked: what was found is kept and told.
    pub(super) async fn reconcile_and_tell(
        &self,
        id: &ActivityId,
    ) -> Result<Reconciled, FlowError> {
        let store = &self.app.store;
        let started_at_ms = store.now_ms().await?;
        let reconciled = self.compare(id, Mode::Repair).await?;
        let verdict = reconciled.verdict;
        metrics::counter!("flashlock_reconciled_total", "verdict" => verdict.as_str()).increment(1);
        // A run without a finding says nothing that the next one does not say.
        if reconciled.findings.is_empty() {
            return Ok(reconciled);
        }
        store
            .insert_recon_run(id, started_at_ms, &reconciled)
            .await?;
        let findings = reconciled.findings.len();
        if reconciled.is_mended() {
            tracing::warn!(activity = %id, %verdict, findings, "the stores differed and were mended");
        } else {
            tracing::error!(activity = %id, %verdict, findings, "the stores differ; see recon_finding");
        }
        Ok(reconciled)
    }
}
