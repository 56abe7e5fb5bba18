//! What is looked at again before it is told, and a gate that is not there at all.

use std::collections::HashMap;

use super::super::rebuild::{Rebuilt, rebuild};
use super::super::recovery::is_selling;
use super::{Pass, SETTLE};
use crate::gate::GateError;
use crate::ledger::reconciled::{Difference, Mode, Verdict};
use crate::sale::Rid;
use crate::script::gate::RecordState;

impl Pass<'_> {
    /// Forgets live orders that the gate has by now: one that was booked while the gate was lost is
    /// on its way there, and no finding.
    pub(super) async fn look_again(
        &mut self,
        differ: &mut HashMap<Rid, Difference>,
    ) -> Result<(), GateError> {
        if differ.is_empty() {
            return Ok(());
        }
        tokio::time::sleep(SETTLE).await;
        let rids: Vec<Rid> = differ.keys().copied().collect();
        for (rid, record) in rids.iter().zip(self.gate.look(self.id, &rids).await?) {
            match record.map(|record| record.state) {
                Some(RecordState::Committed | RecordState::Pending) => {
                    self.in_flight = true;
                    differ.remove(rid);
                }
                Some(RecordState::Released | RecordState::Tombstone) | None => {}
            }
        }
        Ok(())
    }

    /// The gate is not there. What sells is rebuilt from the database; what does not sell needs no
    /// gate, and gets one when it is warmed up.
    pub(super) async fn lost(&mut self) -> Result<Verdict, GateError> {
        let activity = self.truth.activity(self.id).await?;
        if !activity.is_some_and(|activity| is_selling(activity.state)) {
            return Ok(Verdict::Ok);
        }
        let (says, done) = match self.mode {
            Mode::DryRun => ("to be rebuilt from the database".to_string(), false),
            Mode::Repair => match rebuild(self.gate, self.truth, self.id).await? {
                Rebuilt::Open(_) => ("rebuilt from the database".to_string(), true),
                Rebuilt::Ready(activity) | Rebuilt::Shut(activity) => {
                    (format!("the activity is {} by now", activity.state), true)
                }
                Rebuilt::NotElected => ("another process rebuilds it".to_string(), false),
                Rebuilt::NoSuchActivity => ("there is no such activity".to_string(), false),
            },
        };
        let reason = format!("the activity is not in this redis; {says}");
        self.find(None, Difference::GateLost, reason, done);
        Ok(Verdict::Inconclusive)
    }
}
