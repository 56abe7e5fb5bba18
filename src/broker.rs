//! How do the outbox's events reach their consumers? At least once; each takes effect once, since
//! a consumer knows an event by its id.
//!
//! Redis Streams where a Redis is configured, otherwise delivery in the process itself. NATS
//! JetStream, Kafka or RabbitMQ would be another `Broker`.

mod in_process;
mod redis_streams;

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use tokio_util::sync::CancellationToken;

use crate::store::Event;

pub use in_process::InProcess;
pub use redis_streams::RedisStreams;

/// A carrier of events, opened with the consumers it delivers to.
#[async_trait]
pub trait Broker: Send + Sync + fmt::Debug {
    /// Takes events over; one answer per event, in its order. `Ok`: the broker has it and delivers
    /// it at least once.
    ///
    /// # Cancel safety
    /// A dropped call may have been carried out: publish again.
    async fn publish(&self, events: &[Event]) -> Vec<Result<(), Failure>>;

    /// Whether events wait with it between publication and delivery, and may be lost there.
    fn keeps_events(&self) -> bool;

    /// What waits for `consumer`: published, and neither carried out nor given back.
    async fn waiting(&self, consumer: &str) -> Result<Waiting, Failure>;

    /// Delivers until `stop`. Reconnects by itself; what a process that ended had taken is
    /// delivered again.
    async fn deliver(&self, stop: CancellationToken);
}

/// What waits with a broker for one consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    Nothing,
    /// Some events do, the oldest for this long by the broker's clock.
    Since(Duration),
}

/// What is done about an event.
#[async_trait]
pub trait Consumer: Send + Sync + fmt::Debug {
    /// Its name in the inbox, and of its group at the broker.
    fn name(&self) -> &'static str;

    /// Carries out what the events ask for; one answer per event, in its order. An event that was
    /// carried out before is `Ok` and does nothing.
    async fn take(&self, events: &[Event]) -> Vec<Result<(), Failure>>;

    /// Gives an event that could not be carried out back to the outbox, which tries it again
    /// later or gives it up. After `Ok` the broker may forget it.
    async fn give_back(&self, event: &Event, why: &Failure) -> Result<(), Failure>;
}

/// Why an event was not taken over or not carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// A server is away, or did not say whether it happened. Not the event's fault: it waits.
    #[error("{0}")]
    Away(String),
    /// It cannot be carried out as it is: after some attempts it is a dead letter.
    #[error("{0}")]
    Refused(String),
    /// It ends whoever tries: a dead letter at once.
    #[error("{0}")]
    Poison(String),
}

/// Lets `consumer` take events. One that panics has refused what it was given; of several events
/// each is then given to it alone, so that one that it cannot stand keeps no other waiting.
///
/// # Cancel safety
/// As `Consumer::take`: dropped, the events may have been carried out; give them again.
async fn carry_out(consumer: &dyn Consumer, events: &[Event]) -> Vec<Result<(), Failure>> {
    if let Some(outcomes) = try_take(consumer, events).await {
        return outcomes;
    }
    let mut outcomes = Vec::with_capacity(events.len());
    for event in events {
        let alone = match events.len() {
            1 => None,
            _ => try_take(consumer, std::slice::from_ref(event)).await,
        };
        outcomes.push(match alone {
            Some(mut one) => one.pop().unwrap_or(Ok(())),
            None => {
                let why = format!("{} panicked over it", consumer.name());
                tracing::error!(event = %event.id, order = %event.order, why);
                Err(Failure::Refused(why))
            }
        });
    }
    outcomes
}

/// `None`: it panicked.
async fn try_take(consumer: &dyn Consumer, events: &[Event]) -> Option<Vec<Result<(), Failure>>> {
    AssertUnwindSafe(consumer.take(events))
        .catch_unwind()
        .await
        .ok()
}
