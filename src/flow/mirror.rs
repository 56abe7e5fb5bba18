//! The consumer that tells a strategy's own store what became of its orders in the database.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use uuid::Uuid;

use super::Flow;
use super::outbox::undelivered;
use crate::app::Opened;
use crate::broker::{Consumer, Failure};
use crate::deduct::{Deduct, DeductError};
use crate::order::Order;
use crate::sale::{Activity, ActivityId, Rid};
use crate::store::{Event, NextTry, StoreError};

/// Its name in the inbox.
pub const GATE_MIRROR: &str = "gate-mirror";

/// For `redis-lua`: a booked order is committed in the gate, a closed one released.
///
/// A paused relay may deliver *created* after *closed*, so an event only says which order to read:
/// what is done follows the order as it stands.
#[derive(Debug)]
pub struct GateMirror {
    flow: Arc<Flow>,
}

/// An activity whose strategy keeps a mirror.
type Mirrored = (Activity, Arc<dyn Deduct>);

impl GateMirror {
    pub fn new(flow: Arc<Flow>) -> Self {
        Self { flow }
    }

    /// `None`: nothing has to be told.
    async fn mirrored(&self, id: &ActivityId) -> Result<Option<Mirrored>, Failure> {
        let found = self.flow.app.store.activity(id).await.map_err(of_store)?;
        let activity =
            found.ok_or_else(|| Failure::Refused(format!("there is no activity {id}")))?;
        match self.flow.app.strategy(&activity.strategy) {
            Opened::Here(strategy) if strategy.has_mirror() => Ok(Some((activity, strategy))),
            Opened::Here(_) => Ok(None),
            // Another process has it.
            Opened::Missing(why) => Err(Failure::Away(why)),
        }
    }

    /// The effect of events of one activity, then their inbox rows: in this order, since the
    /// effect may be repeated and must not be left out.
    async fn tell(&self, mirrored: &Mirrored, events: &[&Event]) -> Vec<Result<(), Failure>> {
        let store = &self.flow.app.store;
        let ids: Vec<Uuid> = events.iter().map(|event| event.id).collect();
        let known = match store.inbox_has(GATE_MIRROR, &ids).await {
            Ok(known) => known,
            Err(e) => return all(events, &of_store(e)),
        };
        let new: Vec<&Event> = events
            .iter()
            .copied()
            .filter(|event| !known.contains(&event.id))
            .collect();
        metrics::counter!("flashlock_inbox_duplicates_total")
            .increment((events.len() - new.len()) as u64);
        let mut rids: Vec<Rid> = new.iter().map(|event| event.order.rid).collect();
        rids.sort();
        rids.dedup();
        let orders = match store.orders(&rids).await {
            Ok(orders) => orders,
            Err(e) => return all(events, &of_store(e)),
        };
        let told = mirror(mirrored, &orders).await;
        if orders.iter().any(|order| !order.state.is_live()) {
            self.flow.sold_out.forget(&mirrored.0.id);
        }
        let outcome_of = |event: &Event| match told.get(&event.order.rid) {
            Some(outcome) => outcome.clone(),
            None => Err(Failure::Refused(format!(
                "there is no order {}",
                event.order
            ))),
        };
        let done: Vec<Uuid> = new
            .iter()
            .filter(|event| outcome_of(event).is_ok())
            .map(|event| event.id)
            .collect();
        let noted = store.inbox_insert(GATE_MIRROR, &done).await;
        let noted = noted.map(drop).map_err(of_store);
        events
            .iter()
            .map(|event| {
                if known.contains(&event.id) {
                    return Ok(());
                }
                outcome_of(event).and_then(|()| noted.clone())
            })
            .collect()
    }
}

#[async_trait]
impl Consumer for GateMirror {
    fn name(&self) -> &'static str {
        GATE_MIRROR
    }

    async fn take(&self, events: &[Event]) -> Vec<Result<(), Failure>> {
        let mut outcomes: Vec<Result<(), Failure>> = vec![Ok(()); events.len()];
        let mut by_activity: BTreeMap<&ActivityId, Vec<usize>> = BTreeMap::new();
        for (i, event) in events.iter().enumerate() {
            by_activity
                .entry(&event.order.activity)
                .or_default()
                .push(i);
        }
        for (id, indices) in by_activity {
            let of_it: Vec<&Event> = indices.iter().map(|i| &events[*i]).collect();
            let told = match self.mirrored(id).await {
                Ok(None) => continue,
                Ok(Some(mirrored)) => self.tell(&mirrored, &of_it).await,
                Err(failure) => all(&of_it, &failure),
            };
            for (i, outcome) in indices.into_iter().zip(told) {
                outcomes[i] = outcome;
            }
        }
        outcomes
    }

    async fn give_back(&self, event: &Event, why: &Failure) -> Result<(), Failure> {
        let undelivered = undelivered(event.attempts, why);
        let store = &self.flow.app.store;
        let given = store.return_event(event.id, &undelivered).await;
        given.map_err(of_store)?;
        let counter = match undelivered.next {
            NextTry::After(_) => metrics::counter!("flashlock_outbox_retried_total"),
            NextTry::Waits(_) => metrics::counter!("flashlock_outbox_waiting_total"),
            NextTry::Never => metrics::counter!("flashlock_outbox_dead_total"),
        };
        counter.increment(1);
        tracing::warn!(event = %event.id, order = %event.order, %why, "an event could not be carried out");
        Ok(())
    }
}

/// All at once; one by one when that fails, so that one that cannot be told keeps no other waiting.
async fn mirror(
    (activity, strategy): &Mirrored,
    orders: &[Order],
) -> HashMap<Rid, Result<(), Failure>> {
    let at_once = strategy.mirror(activity, orders).await.map_err(of_deduct);
    let mut told = HashMap::new();
    for order in orders {
        let outcome = match &at_once {
            Err(Failure::Refused(_) | Failure::Poison(_)) if orders.len() > 1 => {
                let one = std::slice::from_ref(order);
                strategy.mirror(activity, one).await.map_err(of_deduct)
            }
            outcome => outcome.clone(),
        };
        told.insert(order.id.rid, outcome);
    }
    told
}

fn all(events: &[&Event], failure: &Failure) -> Vec<Result<(), Failure>> {
    vec![Err(failure.clone()); events.len()]
}

fn of_store(error: StoreError) -> Failure {
    let says = error.to_string();
    match error {
        StoreError::Retry(_) | StoreError::Unavailable(_) | StoreError::Unknown(_) => {
            Failure::Away(says)
        }
        StoreError::Conflict(_) | StoreError::Refused(_) => Failure::Refused(says),
    }
}

fn of_deduct(error: DeductError) -> Failure {
    let says = error.to_string();
    match error {
        DeductError::Unavailable { .. } | DeductError::Unknown { .. } => Failure::Away(says),
        DeductError::Corrupt { .. } => Failure::Refused(says),
    }
}
