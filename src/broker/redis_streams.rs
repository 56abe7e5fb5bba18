//! Delivery through one Redis stream with a consumer group per consumer.
//!
//! XADD, XREADGROUP, XACK after the effect, XAUTOCLAIM of what a process that ended had taken
//! (<https://redis.io/docs/latest/develop/data-types/streams/>). What the stream loses with its
//! Redis is not delivered again by it: the relay finds that it has had no effect, and publishes it again.

mod waiting;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::join_all;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::streams::{
    StreamAutoClaimOptions, StreamAutoClaimReply, StreamId, StreamInfoGroupsReply, StreamMaxlen,
    StreamPendingCountReply, StreamReadOptions, StreamReadReply,
};
use redis::{AsyncCommands, Client, RedisError, RedisResult};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{Broker, Consumer, Failure, Waiting, carry_out};
use crate::clock::{self, Instant};
use crate::store::Event;

/// Entries that the stream keeps, about: some 50 MB. What consumers are done with goes first, as
/// no more is published once they are `BEHIND_MAX` behind.
const ENTRIES_MAX: usize = 100_000;
/// Entries that may wait for a consumer; beyond that the outbox keeps its rows.
const BEHIND_MAX: usize = ENTRIES_MAX / 2;
/// Longest wait for a connection: a listening Redis on the same network accepts within one second.
const CONNECT_MAX: Duration = Duration::from_secs(1);
/// Longest wait for an answer: well below the outbox's lease.
const RESPONSE_MAX: Duration = Duration::from_secs(2);
/// Longest wait of one read, below `RESPONSE_MAX`.
const BLOCK_MS: usize = 1000;
/// Entries of one read: one batch of effects.
const READ_MAX: usize = 100;
/// What another consumer has held longer than this was left by a process that ended or hangs. An
/// effect takes at most some seconds.
const ABANDONED: Duration = Duration::from_secs(10);
/// Times an entry is delivered and left, before it counts as what ends its consumers.
const DELIVERIES_MAX: usize = 5;
/// How often that is looked for.
const LOOK_EVERY: Duration = Duration::from_secs(3);
/// Before the next try when Redis is away or nothing could be carried out; each further one doubles it.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest: so much later than Redis goes on at most.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// A consumer that has not been heard of for this long, and holds nothing, is forgotten.
const FORGET_MS: usize = 3_600_000;

/// One stream on one Redis.
pub struct RedisStreams {
    stream: String,
    /// A read that blocks holds its connection up, so each consumer has one of its own.
    publisher: ConnectionManager,
    readers: Vec<Reader>,
}

/// One consumer of the stream.
struct Reader {
    con: ConnectionManager,
    consumer: Arc<dyn Consumer>,
    /// This process among the group's consumers.
    me: String,
}

impl fmt::Debug for RedisStreams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.readers.iter().map(|r| r.consumer.name()).collect();
        f.debug_struct("RedisStreams")
            .field("stream", &self.stream)
            .field("consumers", &names)
            .finish_non_exhaustive()
    }
}

// === impl RedisStreams ===

impl RedisStreams {
    /// Connects with the first command, and again whenever the connection breaks; the server need
    /// not be there yet. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// When `url` is not a Redis URL.
    pub fn new(
        url: &str,
        stream: String,
        consumers: Vec<Arc<dyn Consumer>>,
    ) -> Result<Self, RedisError> {
        let client = Client::open(url)?;
        let connect = || {
            let config = ConnectionManagerConfig::new()
                .set_connection_timeout(Some(CONNECT_MAX))
                .set_response_timeout(Some(RESPONSE_MAX))
                .set_number_of_retries(0);
            ConnectionManager::new_lazy_with_config(client.clone(), config)
        };
        let readers = consumers.into_iter().map(|consumer| {
            Ok(Reader {
                con: connect()?,
                consumer,
                me: Uuid::now_v7().to_string(),
            })
        });
        Ok(Self {
            publisher: connect()?,
            readers: readers.collect::<RedisResult<_>>()?,
            stream,
        })
    }

    /// Most entries that wait for any one consumer.
    async fn behind(&self) -> RedisResult<usize> {
        let mut con = self.publisher.clone();
        let groups: RedisResult<StreamInfoGroupsReply> = con.xinfo_groups(&self.stream).await;
        match groups {
            Ok(found) => {
                let waiting = found.groups.iter();
                Ok(waiting
                    .map(|g| g.pending + g.lag.unwrap_or(0))
                    .max()
                    .unwrap_or(0))
            }
            // There is no stream yet.
            Err(e) if e.to_string().contains("no such key") => Ok(0),
            Err(e) => Err(e),
        }
    }
}

#[async_trait]
impl Broker for RedisStreams {
    async fn publish(&self, events: &[Event]) -> Vec<Result<(), Failure>> {
        let all = |failure: Failure| vec![Err(failure); events.len()];
        match self.behind().await {
            Ok(behind) if behind + events.len() > BEHIND_MAX => {
                let why = format!("consumers are {behind} events behind");
                return all(Failure::Away(why));
            }
            Ok(_) => {}
            Err(e) => return all(away(&e)),
        }
        let mut adds = redis::pipe();
        for event in events {
            let keep = StreamMaxlen::Approx(ENTRIES_MAX);
            adds.xadd_maxlen(&self.stream, keep, "*", &fields(event));
        }
        let mut con = self.publisher.clone();
        match adds.query_async::<Vec<String>>(&mut con).await {
            Ok(_ids) => vec![Ok(()); events.len()],
            // Some of them may be there: consumers know a repeat by its id.
            Err(e) => all(away(&e)),
        }
    }

    fn keeps_events(&self) -> bool {
        true
    }

    async fn waiting(&self, consumer: &str) -> Result<Waiting, Failure> {
        let waiting = waiting::waiting(&self.publisher, &self.stream, consumer).await;
        waiting.map_err(|e| away(&e))
    }

    async fn deliver(&self, stop: CancellationToken) {
        let readers = self.readers.iter();
        join_all(readers.map(|reader| reader.run(&self.stream, &stop))).await;
    }
}

// === impl Reader ===

impl Reader {
    async fn run(&self, stream: &str, stop: &CancellationToken) {
        let mut looked_at: Option<Instant> = None;
        let mut pause = PAUSE_MIN;
        while !stop.is_cancelled() {
            let found = async {
                if looked_at.is_none_or(|at| at.elapsed() >= LOOK_EVERY) {
                    looked_at = Some(clock::now());
                    self.take_over(stream).await?;
                    self.forget_gone(stream).await?;
                }
                self.read(stream).await
            };
            // A read that is dropped may have been answered: what it took is claimed by another.
            let found: RedisResult<Vec<StreamId>> = tokio::select! {
                () = stop.cancelled() => break,
                found = found => found,
            };
            let done = match found {
                Ok(entries) => self.carry_out(stream, entries).await,
                Err(e) if e.code() == Some("NOGROUP") => self.create_group(stream).await,
                Err(e) => Err(e),
            };
            let Err(error) = done else {
                pause = PAUSE_MIN;
                continue;
            };
            tracing::warn!(%error, consumer = self.consumer.name(), "cannot read the events in redis; trying again");
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(pause) => {}
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// From the first entry on: what was published before the group was there is for it as well.
    async fn create_group(&self, stream: &str) -> RedisResult<()> {
        let mut con = self.con.clone();
        let made: RedisResult<()> = con
            .xgroup_create_mkstream(stream, self.consumer.name(), "0")
            .await;
        match made {
            Err(e) if e.code() == Some("BUSYGROUP") => Ok(()),
            made => made,
        }
    }

    async fn read(&self, stream: &str) -> RedisResult<Vec<StreamId>> {
        let options = StreamReadOptions::default()
            .group(self.consumer.name(), &self.me)
            .block(BLOCK_MS)
            .count(READ_MAX);
        let mut con = self.con.clone();
        let read: Option<StreamReadReply> = con.xread_options(&[stream], &[">"], &options).await?;
        let keys = read.map(|r| r.keys).unwrap_or_default();
        Ok(keys.into_iter().flat_map(|key| key.ids).collect())
    }

    /// Takes over what a consumer has held for too long, one by one: if an entry is what ended its
    /// consumer, it takes no other with it. At most one read's worth; the others' turn comes.
    async fn take_over(&self, stream: &str) -> RedisResult<()> {
        let mut con = self.con.clone();
        let idle = ABANDONED.as_millis() as usize;
        let mut from = "0-0".to_string();
        for _ in 0..READ_MAX {
            let options = StreamAutoClaimOptions::default().count(1);
            let claimed: StreamAutoClaimReply = con
                .xautoclaim_options(stream, self.consumer.name(), &self.me, idle, from, options)
                .await?;
            if !claimed.deleted_ids.is_empty() {
                let lost = claimed.deleted_ids.len();
                tracing::error!(
                    lost,
                    "events were trimmed from the stream before they were carried out"
                );
            }
            for entry in claimed.claimed {
                if self.deliveries(stream, &entry.id).await? > DELIVERIES_MAX {
                    self.bury(stream, entry).await?;
                } else {
                    self.carry_out(stream, vec![entry]).await?;
                }
            }
            if claimed.next_stream_id == "0-0" {
                break;
            }
            from = claimed.next_stream_id;
        }
        Ok(())
    }

    /// Times an entry that is ours has been delivered, to anyone.
    async fn deliveries(&self, stream: &str, id: &str) -> RedisResult<usize> {
        let mut con = self.con.clone();
        let pending: StreamPendingCountReply = con
            .xpending_count(stream, self.consumer.name(), id, id, 1)
            .await?;
        Ok(pending.ids.first().map_or(0, |entry| entry.times_delivered))
    }

    /// Gives up an entry that was delivered again and again and never came to an end.
    async fn bury(&self, stream: &str, entry: StreamId) -> RedisResult<()> {
        let why = format!("it was delivered {DELIVERIES_MAX} times and never came to an end");
        tracing::error!(id = entry.id, why);
        if let Some(event) = event(&entry)
            && let Err(error) = self.consumer.give_back(&event, &Failure::Poison(why)).await
        {
            tracing::warn!(%error, event = %event.id, "it could not be given up; it is taken again");
            return Ok(());
        }
        let mut con = self.con.clone();
        let _acknowledged: usize = con.xack(stream, self.consumer.name(), &[entry.id]).await?;
        Ok(())
    }

    /// Forgets consumers that are gone and hold nothing.
    async fn forget_gone(&self, stream: &str) -> RedisResult<()> {
        let group = self.consumer.name();
        let mut con = self.con.clone();
        let known: redis::streams::StreamInfoConsumersReply =
            con.xinfo_consumers(stream, group).await?;
        for gone in known.consumers {
            if gone.name != self.me && gone.pending == 0 && gone.idle > FORGET_MS {
                let _pending: usize = con.xgroup_delconsumer(stream, group, gone.name).await?;
            }
        }
        Ok(())
    }

    /// Carries out what can be, gives the rest back to the outbox, and then lets go of both. What
    /// could not even be given back stays ours, and is looked at again once it counts as left.
    async fn carry_out(&self, stream: &str, entries: Vec<StreamId>) -> RedisResult<()> {
        let mut over: Vec<String> = Vec::new();
        let mut ids: Vec<String> = Vec::new();
        let mut events: Vec<Event> = Vec::new();
        for entry in entries {
            match event(&entry) {
                Some(event) => {
                    ids.push(entry.id);
                    events.push(event);
                }
                None => {
                    tracing::error!(id = entry.id, "an entry of the stream is not an event");
                    over.push(entry.id);
                }
            }
        }
        if !events.is_empty() {
            let taken = carry_out(&*self.consumer, &events).await;
            for ((id, event), outcome) in ids.into_iter().zip(&events).zip(taken) {
                let done = match outcome {
                    Ok(()) => Ok(()),
                    Err(why) => self.consumer.give_back(event, &why).await,
                };
                match done {
                    Ok(()) => over.push(id),
                    Err(error) => {
                        tracing::warn!(%error, event = %event.id, "an event could not be carried out nor given back; it is taken again");
                    }
                }
            }
        }
        if over.is_empty() {
            return Ok(());
        }
        let mut con = self.con.clone();
        let _acknowledged: usize = con.xack(stream, self.consumer.name(), &over).await?;
        Ok(())
    }
}

fn away(e: &RedisError) -> Failure {
    Failure::Away(format!("redis is out of reach: {e}"))
}

// === an event as an entry ===

fn fields(event: &Event) -> [(&'static str, String); 5] {
    [
        ("event", event.id.to_string()),
        ("kind", event.kind.to_string()),
        ("order", event.order.to_string()),
        ("attempts", event.attempts.to_string()),
        ("payload", event.payload.clone()),
    ]
}

fn event(entry: &StreamId) -> Option<Event> {
    let map: HashMap<&str, String> = ["event", "kind", "order", "attempts", "payload"]
        .into_iter()
        .filter_map(|name| Some((name, entry.get(name)?)))
        .collect();
    Some(Event {
        id: map.get("event")?.parse().ok()?,
        kind: map.get("kind")?.parse().ok()?,
        order: map.get("order")?.parse().ok()?,
        attempts: map.get("attempts")?.parse().ok()?,
        payload: map.get("payload")?.clone(),
    })
}
