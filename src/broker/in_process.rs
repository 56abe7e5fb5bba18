//! Delivery straight from the outbox: to publish an event is to carry it out.

use std::sync::Arc;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use super::{Broker, Consumer, Failure, Waiting, carry_out};
use crate::store::Event;

/// Needs no server. The outbox row is settled once every consumer is done with the event, so a
/// process that ends in between delivers it again.
#[derive(Debug)]
pub struct InProcess {
    consumers: Vec<Arc<dyn Consumer>>,
}

impl InProcess {
    pub fn new(consumers: Vec<Arc<dyn Consumer>>) -> Self {
        Self { consumers }
    }
}

#[async_trait]
impl Broker for InProcess {
    async fn publish(&self, events: &[Event]) -> Vec<Result<(), Failure>> {
        let mut outcomes: Vec<Result<(), Failure>> = vec![Ok(()); events.len()];
        for consumer in &self.consumers {
            let taken = carry_out(&**consumer, events).await;
            for (outcome, taken) in outcomes.iter_mut().zip(taken) {
                // The first failure is the one to tell.
                if outcome.is_ok() {
                    *outcome = taken;
                }
            }
        }
        outcomes
    }

    fn keeps_events(&self) -> bool {
        false
    }

    async fn waiting(&self, _consumer: &str) -> Result<Waiting, Failure> {
        Ok(Waiting::Nothing)
    }

    async fn deliver(&self, stop: CancellationToken) {
        stop.cancelled().await;
    }
}
