//! Is this request known already? The only place that makes a `NewOrder`.

use std::sync::Arc;

use super::{Flow, FlowError};
use crate::clock;
use crate::deduct::Ending;
use crate::deduct::replay::known_ending;
use crate::order::{Fingerprint, NewOrder};
use crate::sale::{Activity, ActivityState, Purchase};
use crate::store::Lookup;

/// What dedupe found.
#[derive(Debug)]
pub(super) enum Known {
    New(NewOrder),
    /// It has an ending already, or the sale does not take it.
    Ended(Ending),
}

impl Flow {
    /// Looks the reservation and its user up, in one statement, and admits what is new by the
    /// activity's window. Precedence: replay, reused key, already purchased, what the activity sells at all, then the
    /// window.
    pub(super) async fn dedupe(
        &self,
        purchase: &Purchase,
    ) -> Result<(Arc<Activity>, Known), FlowError> {
        let store = &self.app.store;
        let rid = purchase.rid();
        let lookup = store
            .look_up(&purchase.activity, rid, &purchase.user)
            .await?;
        let Some(lookup) = lookup else {
            return Err(FlowError::NoSuchActivity(purchase.activity.clone()));
        };
        let activity = self
            .activities
            .get(store, &purchase.activity, &lookup)
            .await?;
        let fingerprint = Fingerprint::of(purchase);
        let known = known_ending(store, &activity.id, rid, &fingerprint, &lookup).await?;
        if let Some(ending) = known {
            return Ok((activity, Known::Ended(ending)));
        }
        // After the look-up: a reused key is told as such, whatever its new body asks for.
        fits(&activity, purchase)?;
        let known = match shut(&activity, &lookup) {
            Some(ending) => Known::Ended(ending),
            None => Known::New(NewOrder::deduped(purchase, lookup.now_ms)),
        };
        Ok((activity, known))
    }

    /// What is known of a purchase by now, if anything. Asked before it is refused for lack of
    /// stock: the last unit may have gone to the same request, sent twice, or to another of its
    /// user's, after the first look.
    pub(super) async fn known_by_now(
        &self,
        purchase: &Purchase,
    ) -> Result<Option<Ending>, FlowError> {
        let store = &self.app.store;
        let rid = purchase.rid();
        let lookup = store
            .look_up(&purchase.activity, rid, &purchase.user)
            .await?;
        let Some(lookup) = lookup else {
            return Err(FlowError::NoSuchActivity(purchase.activity.clone()));
        };
        let fingerprint = Fingerprint::of(purchase);
        Ok(known_ending(store, &purchase.activity, rid, &fingerprint, &lookup).await?)
    }
}

/// A purchase that the gate dedupes; `None` where the activity does not sell that at all. When it is
/// admitted is for the gate's clock to say, and is kept in its record.
pub(super) fn unseen(activity: &Activity, purchase: &Purchase) -> Option<NewOrder> {
    fits(activity, purchase).ok()?;
    Some(NewOrder::deduped(purchase, clock::wall_ms()))
}

/// Refuses what no state of the sale could take.
fn fits(activity: &Activity, purchase: &Purchase) -> Result<(), FlowError> {
    for line in purchase.lines() {
        if activity.total(&line.sku).is_none() {
            let sold: Vec<&str> = activity.skus.iter().map(|a| a.sku.as_str()).collect();
            return Err(FlowError::UnknownSku {
                activity: activity.id.clone(),
                sku: line.sku.clone(),
                sold: sold.join(", "),
            });
        }
    }
    let wanted = purchase.units();
    if wanted > activity.units_per_user_max {
        return Err(FlowError::TooMany {
            wanted,
            allowed: activity.units_per_user_max,
        });
    }
    Ok(())
}

/// Why the sale takes nobody now, by its state and the database's clock.
fn shut(activity: &Activity, lookup: &Lookup) -> Option<Ending> {
    let not_open = Some(Ending::NotOpen {
        opens_at_ms: activity.opens_at_ms,
    });
    let ended = Some(Ending::Ended {
        closed_at_ms: activity.closes_at_ms,
    });
    // A sale that has been open, or was to be, and is warmed up again: it goes on soon.
    let goes_on = lookup.fence_generation > 0 && lookup.now_ms >= activity.opens_at_ms;
    match lookup.state {
        ActivityState::Draft | ActivityState::Warming | ActivityState::Ready if goes_on => {
            Some(Ending::Paused)
        }
        ActivityState::Draft | ActivityState::Warming | ActivityState::Ready => not_open,
        ActivityState::Pausing | ActivityState::Paused => Some(Ending::Paused),
        ActivityState::Closing | ActivityState::Sealed => ended,
        ActivityState::Fenced => Some(Ending::Recovering),
        ActivityState::Open if lookup.now_ms < activity.opens_at_ms => not_open,
        ActivityState::Open if lookup.now_ms >= activity.closes_at_ms => ended,
        ActivityState::Open => None,
    }
}
