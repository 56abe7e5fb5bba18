//! An activity as operators move it: created, warmed up, opened, closed; and the copy a process
//! keeps of it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::life::Draining;
use super::{Flow, FlowError};
use crate::ledger::Ledger;
use crate::sale::{Activity, ActivityEvent, ActivityId, ActivityState};
use crate::store::{Lookup, Store};

/// An activity with where its units are.
#[derive(Debug, Clone)]
pub struct ActivityView {
    pub activity: Activity,
    pub ledgers: Vec<Ledger>,
    /// While it pauses or ends: what that waits for.
    pub draining: Option<Draining>,
}

/// What an operator asked of an activity that its state does not allow.
#[derive(Debug)]
pub enum Moved {
    Done(Box<ActivityView>),
    /// The state it is in.
    NotAllowed(ActivityState),
}

/// Activities as this process last read them. What may change while a sale runs (state, generation,
/// epoch) is read anew with every look-up.
#[derive(Debug, Default)]
pub(super) struct Cache {
    activities: Mutex<HashMap<ActivityId, Arc<Activity>>>,
}

/// Most activities kept; past that all are read anew.
const CACHED_MAX: usize = 1_000;
/// Tries of a compare-and-set of the state against other operators.
const MOVES_MAX: u32 = 5;

// === impl Cache ===

impl Cache {
    /// The activity as it was last read, if it is kept. What may have changed since is told by the
    /// place that it sells from.
    pub(super) fn known(&self, id: &ActivityId) -> Option<Arc<Activity>> {
        let activities = self
            .activities
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        activities.get(id).cloned()
    }

    /// The activity, consistent with `lookup`.
    pub(super) async fn get(
        &self,
        store: &Store,
        id: &ActivityId,
        lookup: &Lookup,
    ) -> Result<Arc<Activity>, FlowError> {
        let cached = {
            let activities = self
                .activities
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            activities.get(id).cloned()
        };
        if let Some(activity) = cached
            && activity.fence_generation == lookup.fence_generation
            && activity.gate_epoch == lookup.gate_epoch
        {
            return Ok(activity);
        }
        let activity = store.activity(id).await?;
        let activity = Arc::new(activity.ok_or_else(|| FlowError::NoSuchActivity(id.clone()))?);
        let mut activities = self
            .activities
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if activities.len() >= CACHED_MAX {
            activities.clear();
        }
        activities.insert(id.clone(), Arc::clone(&activity));
        Ok(activity)
    }
}

// === impl Flow ===

impl Flow {
    /// Keeps a new activity, in state DRAFT.
    pub async fn create(&self, activity: &Activity) -> Result<ActivityView, FlowError> {
        self.app.store.insert_activity(activity).await?;
        self.view(&activity.id).await
    }

    pub async fn view(&self, id: &ActivityId) -> Result<ActivityView, FlowError> {
        let activity = self.read(id).await?;
        let ledgers = self.app.store.ledgers(id).await?;
        let draining = self.draining(&activity).await?;
        Ok(ActivityView {
            activity,
            ledgers,
            draining,
        })
    }

    pub async fn list(&self) -> Result<Vec<Activity>, FlowError> {
        Ok(self.app.store.activities().await?)
    }

    pub(super) async fn read(&self, id: &ActivityId) -> Result<Activity, FlowError> {
        let activity = self.app.store.activity(id).await?;
        activity.ok_or_else(|| FlowError::NoSuchActivity(id.clone()))
    }

    /// Puts the stock where the strategy sells from. A process that stops half way leaves the
    /// activity WARMING, which cannot open; running it again finishes it.
    pub async fn warm_up(&self, id: &ActivityId) -> Result<Moved, FlowError> {
        let activity = match self.advance(id, ActivityEvent::WarmUp).await? {
            Ok(activity) => activity,
            Err(state) => return Ok(Moved::NotAllowed(state)),
        };
        if activity.state == ActivityState::Warming {
            self.strategy(&activity)?.warm_up(&activity).await?;
            if let Err(state) = self.advance(id, ActivityEvent::Warmed).await? {
                return Ok(Moved::NotAllowed(state));
            }
        }
        Ok(Moved::Done(Box::new(self.view(id).await?)))
    }

    /// Lets buyers in. The database is told first: a gate that is not open yet is then one that
    /// recovers, and never one that nobody knows of.
    pub async fn open(&self, id: &ActivityId) -> Result<Moved, FlowError> {
        let known = self.read(id).await?;
        if known.state.next(ActivityEvent::Open).is_none() {
            return Ok(Moved::NotAllowed(known.state));
        }
        let strategy = self.strategy(&known)?;
        strategy.ready().await?;
        match self.advance(id, ActivityEvent::Open).await? {
            Ok(activity) => strategy.open(&activity).await?,
            Err(state) => return Ok(Moved::NotAllowed(state)),
        }
        Ok(Moved::Done(Box::new(self.view(id).await?)))
    }

    /// Lets no further buyer in. Orders stand; they may still be paid or cancelled.
    pub async fn close(&self, id: &ActivityId) -> Result<Moved, FlowError> {
        match self.advance(id, ActivityEvent::Close).await? {
            Ok(activity) => self.strategy(&activity)?.shut(&activity).await?,
            Err(state) => return Ok(Moved::NotAllowed(state)),
        }
        Ok(Moved::Done(Box::new(self.view(id).await?)))
    }

    /// Moves the state by compare-and-set; `Err` with the state that does not allow it.
    pub(super) async fn advance(
        &self,
        id: &ActivityId,
        event: ActivityEvent,
    ) -> Result<Result<Activity, ActivityState>, FlowError> {
        let mut state = ActivityState::Draft;
        for _ in 0..MOVES_MAX {
            let mut activity = self.read(id).await?;
            state = activity.state;
            let Some(next) = state.next(event) else {
                return Ok(Err(state));
            };
            if next == state || self.app.store.move_activity(id, state, next).await? {
                activity.state = next;
                return Ok(Ok(activity));
            }
        }
        Ok(Err(state))
    }
}
