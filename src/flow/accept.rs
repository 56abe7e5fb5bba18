//! How is a purchase accepted that is booked later? By the gate alone, also while the database is
//! away: the gate dedupes, keeps the window and the limit per user, and holds up to its bound.

use std::sync::Arc;
use std::time::Duration;

use super::{Answer, Flow, FlowError, dedupe};
use crate::deduct::{Contention, Ending};
use crate::order::NewOrder;
use crate::sale::{Activity, Booking, OrderId, Purchase};

/// Longest wait for the database's word on a repeat, which the gate has an answer to.
const LOOK_MAX: Duration = Duration::from_millis(500);

impl Flow {
    /// Asks the gate before the database, where this process knows the activity as one whose orders
    /// are booked later. `None`: take the long way, whose look-up also tells what has changed.
    ///
    /// A refusal is told only after a look at the database, as everywhere: the reservation may have
    /// an order that this gate has forgotten.
    pub(super) async fn accept(
        self: &Arc<Self>,
        purchase: &Purchase,
    ) -> Result<Option<Answer>, FlowError> {
        let Some((activity, order)) = self.for_the_gate(purchase) else {
            return Ok(None);
        };
        let strategy = self.strategy(&activity)?;
        // A repeat costs no token. Where the gate cannot be asked, it does not hold anything either.
        let is_new = matches!(strategy.may_hold(&activity.id, &order).await, Ok(false));
        if is_new && let Err(refusal) = self.limit(&activity, &order).await {
            return Ok(Some(Answer::Limited(refusal)));
        }
        match self.deduct(strategy, activity, order).await? {
            Ending::NotOpen { .. } | Ending::Paused | Ending::Ended { .. } | Ending::Recovering => {
                Ok(None)
            }
            accepted @ Ending::Accepted(_) if !is_new => {
                let decided = self.decided(purchase).await;
                Ok(Some(Answer::Ended(decided.unwrap_or(accepted))))
            }
            ending @ (Ending::Accepted(_)
            | Ending::Booked { .. }
            | Ending::Replayed(_)
            | Ending::Busy(_)) => Ok(Some(Answer::Ended(ending))),
            Ending::AlreadyPurchased(other) => {
                let known = self.known_by_now(purchase).await?;
                let ending = match known {
                    Some(known) => known,
                    None => self.in_the_way(other).await?,
                };
                Ok(Some(Answer::Ended(ending)))
            }
            refusal @ (Ending::SoldOut { .. }
            | Ending::KeyReused
            | Ending::Abandoned
            | Ending::UnknownSku(_)) => {
                let known = self.known_by_now(purchase).await?;
                Ok(Some(Answer::Ended(known.unwrap_or(refusal))))
            }
        }
    }

    /// What the gate's word on the user's other purchase comes to, which is no live order: it waits
    /// for its booking, or it has ended and the gate is about to hear of that.
    async fn in_the_way(&self, other: OrderId) -> Result<Ending, FlowError> {
        Ok(match self.app.store.order(other.rid).await? {
            Some(ended) if !ended.state.is_live() => Ending::Busy(Contention::OtherPurchase),
            Some(_) | None => Ending::AlreadyPurchased(other),
        })
    }

    /// What became of an accepted purchase that is repeated: its order's resource may have told it
    /// already, though the gate has not been. `None` also while the database is away.
    async fn decided(&self, purchase: &Purchase) -> Option<Ending> {
        let look = tokio::time::timeout(LOOK_MAX, self.known_by_now(purchase)).await;
        let Ok(Ok(Some(known))) = look else {
            return None;
        };
        match known {
            Ending::Replayed(_) | Ending::Abandoned | Ending::KeyReused => Some(known),
            // Another order of its user's, which may have ended by the time this one is booked.
            Ending::AlreadyPurchased(_)
            | Ending::Accepted(_)
            | Ending::Booked { .. }
            | Ending::SoldOut { .. }
            | Ending::NotOpen { .. }
            | Ending::Paused
            | Ending::Ended { .. }
            | Ending::UnknownSku(_)
            | Ending::Busy(_)
            | Ending::Recovering => None,
        }
    }

    fn for_the_gate(&self, purchase: &Purchase) -> Option<(Arc<Activity>, NewOrder)> {
        let activity = self.activities.known(&purchase.activity)?;
        match activity.booking {
            Booking::Async => {}
            Booking::Sync => return None,
        }
        dedupe::unseen(&activity, purchase).map(|order| (activity, order))
    }
}
