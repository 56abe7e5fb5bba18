//! How do holds reach the booking workers? Through the activity's stream, which is only a wake-up:
//! what it loses is found in the index of holds.
//!
//! XREADGROUP, XAUTOCLAIM of what a worker that ended had taken, XDEL and XACK once it is booked
//! (<https://redis.io/docs/latest/develop/data-types/streams/>).

use std::fmt;
use std::time::Duration;

use redis::aio::ConnectionManager;
use redis::streams::{
    StreamAutoClaimOptions, StreamAutoClaimReply, StreamId, StreamInfoConsumersReply,
    StreamRangeReply, StreamReadOptions, StreamReadReply,
};
use redis::{AsyncCommands, RedisResult};
use uuid::Uuid;

use super::connection::from_redis;
use super::{Gate, GateError};
use crate::keys::{BOOKERS, GateKeys};
use crate::sale::{ActivityId, Rid};
use crate::script::gate::ORDERS_PER_CALL_MAX;

/// Longest wait of one read, below the connection's wait for an answer.
const BLOCK: Duration = Duration::from_millis(500);
/// Before the next look for a stream that is not there yet: its first hold makes it.
const NO_STREAM_PAUSE: Duration = Duration::from_millis(50);
/// What another worker has held longer than this was left by one that ended or hangs. A booking
/// takes well below a second; one that takes longer is done twice and counts once.
const LEFT_AFTER: Duration = Duration::from_secs(3);
/// A worker that has not been heard of for this long, and holds nothing, is forgotten.
const FORGET_MS: usize = 600_000;

/// One booking worker's end of one activity's stream.
pub struct Queue {
    /// Its own: a read that blocks holds its connection up.
    con: ConnectionManager,
    stream: String,
    /// This worker among all of its group.
    me: String,
}

/// A hold's entry in the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handed {
    pub entry: String,
    /// `None`: the entry names no reservation.
    pub rid: Option<Rid>,
}

/// How far the handing over has come, in Unix milliseconds by Redis's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Handover {
    /// When the oldest hold in the stream was handed over; `None` when the stream is empty.
    pub(super) oldest_ms: Option<i64>,
    pub(super) now_ms: i64,
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("stream", &self.stream)
            .field("me", &self.me)
            .finish_non_exhaustive()
    }
}

// === impl Gate ===

impl Gate {
    /// A new worker's end of the stream of `id`.
    pub fn queue(&self, id: &ActivityId) -> Result<Queue, GateError> {
        Ok(Queue {
            con: self.new_con()?,
            stream: GateKeys::of(id).q,
            me: Uuid::now_v7().to_string(),
        })
    }

    pub(super) async fn handover(&self, id: &ActivityId) -> Result<Handover, GateError> {
        let mut both = redis::pipe();
        both.xrange_count(GateKeys::of(id).q, "-", "+", 1)
            .cmd("TIME");
        let asked: RedisResult<(StreamRangeReply, (i64, i64))> =
            both.query_async(&mut self.con()).await;
        let (first, (seconds, microseconds)) = asked.map_err(from_redis)?;
        let first = first.ids.into_iter().next();
        Ok(Handover {
            oldest_ms: first.and_then(|entry| entry.id.split('-').next()?.parse().ok()),
            now_ms: seconds * 1000 + microseconds / 1000,
        })
    }

    /// Holds that are in the stream: settled ones as well, until a worker has taken them out.
    pub async fn handed(&self, id: &ActivityId) -> Result<i64, GateError> {
        let key = GateKeys::of(id).q;
        self.con().xlen(&key).await.map_err(from_redis)
    }

    /// Holds that wait for their booking.
    pub async fn backlog(&self, id: &ActivityId) -> Result<usize, GateError> {
        let pend = GateKeys::of(id).pend;
        self.con().zcard(&pend).await.map_err(from_redis)
    }
}

// === impl Queue ===

impl Queue {
    /// Up to one call's worth of holds that nobody was handed yet; waits up to half a second for
    /// the first.
    ///
    /// # Cancel safety
    /// What a dropped read took is taken over once it counts as left.
    pub async fn read(&self) -> Result<Vec<Handed>, GateError> {
        let options = StreamReadOptions::default()
            .group(BOOKERS, &self.me)
            .block(BLOCK.as_millis() as usize)
            .count(ORDERS_PER_CALL_MAX);
        let mut con = self.con.clone();
        let read: RedisResult<Option<StreamReadReply>> =
            con.xread_options(&[&self.stream], &[">"], &options).await;
        match read {
            Ok(read) => {
                let keys = read.map(|r| r.keys).unwrap_or_default();
                Ok(handed(keys.into_iter().flat_map(|key| key.ids)))
            }
            Err(e) if e.code() == Some("NOGROUP") => {
                if !self.create_group().await? {
                    tokio::time::sleep(NO_STREAM_PAUSE).await;
                }
                Ok(Vec::new())
            }
            Err(e) => Err(from_redis(e)),
        }
    }

    /// From the first entry on, and never the stream itself: one of an activity that is over would
    /// stay for ever. `false`: there is no stream.
    async fn create_group(&self) -> Result<bool, GateError> {
        let mut con = self.con.clone();
        let made: RedisResult<()> = con.xgroup_create(&self.stream, BOOKERS, "0").await;
        match made {
            Ok(()) => Ok(true),
            Err(e) if e.code() == Some("BUSYGROUP") => Ok(true),
            Err(e) if e.to_string().contains("requires the key to exist") => Ok(false),
            Err(e) => Err(from_redis(e)),
        }
    }

    /// Takes over what another worker has held for too long, and forgets workers that are gone.
    pub async fn left_by_others(&self) -> Result<Vec<Handed>, GateError> {
        let mut con = self.con.clone();
        let idle_ms = LEFT_AFTER.as_millis() as usize;
        let options = StreamAutoClaimOptions::default().count(ORDERS_PER_CALL_MAX);
        let claimed: RedisResult<StreamAutoClaimReply> = con
            .xautoclaim_options(&self.stream, BOOKERS, &self.me, idle_ms, "0-0", options)
            .await;
        let claimed = match claimed {
            Ok(claimed) => claimed.claimed,
            // There is no stream yet: nobody has left anything.
            Err(e) if e.code() == Some("NOGROUP") => return Ok(Vec::new()),
            Err(e) => return Err(from_redis(e)),
        };
        let known: RedisResult<StreamInfoConsumersReply> =
            con.xinfo_consumers(&self.stream, BOOKERS).await;
        for gone in known.map_err(from_redis)?.consumers {
            if gone.name != self.me && gone.pending == 0 && gone.idle > FORGET_MS {
                let forgotten: RedisResult<usize> = con
                    .xgroup_delconsumer(&self.stream, BOOKERS, gone.name)
                    .await;
                forgotten.map_err(from_redis)?;
            }
        }
        Ok(handed(claimed))
    }

    /// Takes entries out of the stream: their holds are settled.
    ///
    /// Deleted before they are acknowledged, since a Redis that dies in between may keep the first
    /// alone: an entry that was handed out and is gone is dropped with the next take-over, while one
    /// that is acknowledged and still there would be handed to nobody ever again.
    pub async fn done(&self, entries: &[String]) -> Result<(), GateError> {
        if entries.is_empty() {
            return Ok(());
        }
        let mut both = redis::pipe();
        both.xdel(&self.stream, entries)
            .ignore()
            .xack(&self.stream, BOOKERS, entries)
            .ignore();
        let mut con = self.con.clone();
        both.query_async::<()>(&mut con).await.map_err(from_redis)
    }
}

fn handed(entries: impl IntoIterator<Item = StreamId>) -> Vec<Handed> {
    let one = |entry: StreamId| Handed {
        rid: entry
            .get::<String>("rid")
            .and_then(|text| text.parse().ok()),
        entry: entry.id,
    };
    entries.into_iter().map(one).collect()
}
