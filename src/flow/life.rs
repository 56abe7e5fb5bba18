//! How an activity is paused and sold in another way, and how it moves on by itself: a pause once
//! nothing is on its way, a sale once its time is over, an end once all is settled. The role
//! `closer`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::activity::{ActivityView, Moved};
use super::alarm::Told;
use super::{Flow, FlowError};
use crate::app::Opened;
use crate::clock::{self, Instant};
use crate::deduct::DeductError;
use crate::ledger::reconciled::Verdict;
use crate::sale::{
    Activity, ActivityEvent, ActivityId, ActivityState, Booking, GuardMode, StrategyName,
};
use crate::store::{Unpaid, Unsettled};
use crate::strategy::Strategy;

/// Between two passes: a pause is waited for by an operator.
const PASS_PAUSE: Duration = Duration::from_secs(1);
/// Longest wait of a call that pauses: what was held is booked, or swept after three seconds; the
/// role goes on after it.
const DRAIN_WAIT: Duration = Duration::from_secs(5);
/// Between two looks of such a call.
const DRAIN_POLL: Duration = Duration::from_millis(50);
/// Until an activity is looked at again whose server is away.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// Until a sale whose stores did not agree is compared again, which reads every live order.
const SEAL_AGAIN: Duration = Duration::from_secs(30);
/// How long the keys of a sealed activity stay, for whoever looks after its end.
const KEYS_GRACE: Duration = Duration::from_secs(3600);
/// Tries of a compare-and-set against other operators.
const MOVES_MAX: u32 = 5;

/// How an activity is sold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selling {
    pub strategy: StrategyName,
    pub guard: GuardMode,
    pub booking: Booking,
    pub batch_max: i64,
}

/// What a change of strategy came to.
#[derive(Debug)]
pub enum Changed {
    Done(Box<ActivityView>),
    /// The state it is in.
    NotAllowed(ActivityState),
    /// This process does not have the strategy; what to configure.
    NotHere(String),
}

/// What a pause or an end still waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draining {
    /// Reservations that wait for their booking; `None`: their server does not answer.
    pub in_flight: Option<i64>,
    pub unsettled: Unsettled,
}

impl Flow {
    /// Lets nobody in for a while; who has an order may pay or cancel it. PAUSED once nothing is on
    /// its way, which this call waits for up to five seconds and the role `closer` after it. A
    /// repeat goes on waiting.
    ///
    /// # Cancel safety
    /// Dropped, the role goes on with it.
    pub async fn pause(&self, id: &ActivityId) -> Result<Moved, FlowError> {
        let activity = match self.advance(id, ActivityEvent::Pause).await? {
            Ok(activity) => activity,
            Err(state) => return Ok(Moved::NotAllowed(state)),
        };
        let begun = clock::now();
        while !self.finish_pause(&activity).await? && begun.elapsed() < DRAIN_WAIT {
            tokio::time::sleep(DRAIN_POLL).await;
        }
        Ok(Moved::Done(Box::new(self.view(id).await?)))
    }

    /// Whether nothing is on its way any more, so that it is PAUSED. What a strategy without
    /// reservations has on its way cannot be counted; behind the barrier it cannot be written.
    async fn finish_pause(&self, activity: &Activity) -> Result<bool, FlowError> {
        let Some(paused) = activity.state.next(ActivityEvent::Drained) else {
            return Ok(true);
        };
        if paused == activity.state {
            return Ok(true);
        }
        match self.drained(activity).await {
            Ok(0) => {}
            Ok(_waiting) => return Ok(false),
            // Nobody has been promised anything before it is booked, and behind the barrier it is
            // not. To pause is what an operator does whose server is away.
            Err(error) if activity.booking == Booking::Sync && is_away(&error) => {
                tracing::warn!(activity = %activity.id, %error, "pausing without the strategy's server");
            }
            Err(error) => {
                tracing::warn!(activity = %activity.id, %error, "cannot see what is on its way; trying again");
                return Ok(false);
            }
        }
        let (id, from) = (&activity.id, activity.state);
        let store = &self.app.store;
        store
            .settle_activity(id, from, paused, Unpaid::MayStay)
            .await?;
        Ok(self.read(id).await?.state != from)
    }

    /// Shuts the strategy, once more should that have failed before, and counts what is on its way.
    async fn drained(&self, activity: &Activity) -> Result<i64, FlowError> {
        let strategy = self.strategy(activity)?;
        strategy.shut(activity).await?;
        Ok(strategy.in_flight(&activity.id).await?)
    }

    /// Sells in another way from now on; the activity is a DRAFT again, to be warmed up and opened.
    /// Orders stand: they are paid, cancelled and closed under the new strategy. A repeat changes
    /// nothing.
    pub async fn set_strategy(
        &self,
        id: &ActivityId,
        selling: &Selling,
    ) -> Result<Changed, FlowError> {
        let mut state = ActivityState::Draft;
        for _ in 0..MOVES_MAX {
            let activity = self.read(id).await?;
            state = activity.state;
            let Some(next) = state.next(ActivityEvent::SetStrategy) else {
                return Ok(Changed::NotAllowed(state));
            };
            if let Opened::Missing(why) = self.app.strategy(&selling.strategy) {
                return Ok(Changed::NotHere(why));
            }
            if *selling == Selling::of(&activity) {
                return Ok(Changed::Done(Box::new(self.view(id).await?)));
            }
            let changed = selling.clone().applied_to(activity.clone());
            if self.app.store.set_strategy(&changed, state, next).await? {
                if activity.strategy != changed.strategy {
                    self.leave(&activity).await;
                }
                return Ok(Changed::Done(Box::new(self.view(id).await?)));
            }
        }
        Ok(Changed::NotAllowed(state))
    }

    /// What the strategy kept must not mislead it should the activity come back to it. Not an
    /// error: a warm-up makes whatever it finds agree with the database.
    async fn leave(&self, activity: &Activity) {
        let left = match self.strategy(activity) {
            Ok(strategy) => strategy.retire(&activity.id, Duration::ZERO).await,
            // Another process has it.
            Err(_) => return,
        };
        if let Err(error) = left {
            tracing::warn!(activity = %activity.id, strategy = %activity.strategy, %error,
                "what the strategy kept is still there");
        }
    }

    /// Moves activities on until `stop`. Two that do so at once do no harm.
    pub async fn keeper(self: Arc<Self>, stop: CancellationToken) {
        let (mut look_at, mut told) = (HashMap::new(), Told::default());
        while !stop.is_cancelled() {
            if let Err(error) = self.tell_late(&mut told).await {
                tracing::warn!(%error, "cannot see which sales are late; trying again");
            }
            if let Err(error) = self.move_all(&stop, &mut look_at).await {
                tracing::warn!(%error, "cannot move activities on; trying again");
            }
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(PASS_PAUSE) => {}
            }
        }
    }

    async fn move_all(
        &self,
        stop: &CancellationToken,
        look_at: &mut HashMap<ActivityId, Instant>,
    ) -> Result<(), FlowError> {
        look_at.retain(|_, at| *at > clock::now());
        let mut after = None;
        loop {
            let page = self.app.store.to_move_on(after.as_ref()).await?;
            for (id, state) in &page {
                if stop.is_cancelled() {
                    return Ok(());
                }
                if look_at.contains_key(id) {
                    continue;
                }
                // One activity whose server is away must not keep the others waiting.
                match self.move_on(id, *state).await {
                    Ok(Next::Look) => {}
                    Ok(Next::LookAfter(pause)) => {
                        look_at.insert(id.clone(), clock::now() + pause);
                    }
                    // Another process has its strategy.
                    Err(FlowError::StrategyMissing { .. }) => {
                        look_at.insert(id.clone(), clock::now() + LOOK_AGAIN);
                    }
                    Err(error) => {
                        tracing::warn!(activity = %id, %state, %error, "cannot move it on; trying again");
                        look_at.insert(id.clone(), clock::now() + LOOK_AGAIN);
                    }
                }
            }
            match page.into_iter().next_back() {
                Some((last, _)) => after = Some(last),
                None => return Ok(()),
            }
        }
    }

    async fn move_on(&self, id: &ActivityId, state: ActivityState) -> Result<Next, FlowError> {
        match state {
            ActivityState::Pausing => {
                if self.finish_pause(&self.read(id).await?).await? {
                    tracing::info!(activity = %id, "the sale is paused");
                }
                Ok(Next::Look)
            }
            ActivityState::Closing => self.finish_sale(&self.read(id).await?).await,
            ActivityState::Open | ActivityState::Fenced | ActivityState::Paused => {
                self.close(id).await?;
                tracing::info!(activity = %id, "the time of the sale is over; it is closed");
                Ok(Next::Look)
            }
            ActivityState::Draft
            | ActivityState::Warming
            | ActivityState::Ready
            | ActivityState::Sealed => Ok(Next::Look),
        }
    }

    /// Seals a sale that has ended once nothing is left to do: no hold, no unpaid order, no event
    /// to be delivered, no reservation to be resolved, and stores that agree. What the strategies
    /// keep of it then goes.
    async fn finish_sale(&self, activity: &Activity) -> Result<Next, FlowError> {
        let (id, from) = (&activity.id, activity.state);
        let Some(sealed) = from.next(ActivityEvent::Seal) else {
            return Ok(Next::Look);
        };
        let store = &self.app.store;
        if store.unsettled(id).await? != Unsettled::default() || self.drained(activity).await? > 0 {
            return Ok(Next::Look);
        }
        if !Strategy::controls(activity) {
            let told = self.reconcile_and_tell(id).await?;
            if told.verdict != Verdict::Ok || !told.findings.is_empty() {
                return Ok(Next::LookAfter(SEAL_AGAIN));
            }
        }
        // Before the state says so: should this process end in between, the next pass does it again.
        self.retire(activity).await?;
        if store
            .settle_activity(id, from, sealed, Unpaid::MustNotBe)
            .await?
        {
            metrics::counter!("flashlock_activities_sealed_total").increment(1);
            tracing::info!(activity = %id, "the sale has ended, and all of it is settled");
        }
        Ok(Next::Look)
    }

    /// Every strategy that this process has lets go of the activity: it may have been sold in
    /// several ways.
    async fn retire(&self, activity: &Activity) -> Result<(), FlowError> {
        for name in Strategy::all().iter().map(|strategy| strategy.name()) {
            let Opened::Here(strategy) = self.app.strategy(&name) else {
                continue;
            };
            match strategy.retire(&activity.id, KEYS_GRACE).await {
                Err(error) if name == activity.strategy => return Err(error.into()),
                Err(error) => {
                    tracing::warn!(activity = %activity.id, strategy = %name, %error,
                        "what a former strategy kept may still be there");
                }
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// What keeps an activity that pauses or ends; `None` in any other state.
    pub(super) async fn draining(
        &self,
        activity: &Activity,
    ) -> Result<Option<Draining>, FlowError> {
        match activity.state {
            ActivityState::Pausing | ActivityState::Closing => {}
            ActivityState::Draft
            | ActivityState::Warming
            | ActivityState::Ready
            | ActivityState::Open
            | ActivityState::Fenced
            | ActivityState::Paused
            | ActivityState::Sealed => return Ok(None),
        }
        let in_flight = match self.strategy(activity) {
            Ok(strategy) => strategy.in_flight(&activity.id).await.ok(),
            Err(_) => None,
        };
        Ok(Some(Draining {
            in_flight,
            unsettled: self.app.store.unsettled(&activity.id).await?,
        }))
    }
}

/// When an activity is looked at again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Look,
    LookAfter(Duration),
}

fn is_away(error: &FlowError) -> bool {
    matches!(
        error,
        FlowError::StrategyMissing { .. } | FlowError::Deduct(DeductError::Unavailable { .. })
    )
}

// === impl Selling ===

impl Selling {
    fn of(activity: &Activity) -> Self {
        Self {
            strategy: activity.strategy.clone(),
            guard: activity.guard,
            booking: activity.booking,
            batch_max: activity.batch_max,
        }
    }

    fn applied_to(self, activity: Activity) -> Activity {
        Activity {
            strategy: self.strategy,
            guard: self.guard,
            booking: self.booking,
            batch_max: self.batch_max,
            ..activity
        }
    }
}
