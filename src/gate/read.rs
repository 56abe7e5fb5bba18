//! What is read from the gate reservation by reservation: old holds, single records, and all of
//! them page by page.

use std::time::Duration;

use super::accepted::AcceptedHold;
use super::connection::from_redis;
use super::{Gate, GateError};
use crate::keys::GateKeys;
use crate::sale::{ActivityId, Rid, UserId};
use crate::script::gate::{ORDERS_PER_CALL_MAX, Record, RecordState};
use crate::store::Tombstone;

/// Records that one HSCAN looks at: a fraction of a millisecond of Redis.
const SCAN_COUNT: usize = 500;

/// A page of holds that have waited for their booking for a while.
#[derive(Debug)]
pub(super) struct Overdue {
    /// Those that their purchase books.
    pub(super) holds: Vec<Tombstone>,
    /// Those that the booking workers book.
    pub(super) accepted: Vec<AcceptedHold>,
    /// Entries of the index on this page, with those that are no holds any more.
    pub(super) listed: usize,
    /// Those that ended and stay in the index all the same: half of a script, in a history that was
    /// torn, wrote the entry, and whatever ended the hold did not see it there.
    pub(super) strays: Vec<Rid>,
}

impl Gate {
    /// A page of the holds at least `age` old, the oldest first, without the `skip` oldest.
    pub(super) async fn overdue(
        &self,
        id: &ActivityId,
        age: Duration,
        skip: usize,
    ) -> Result<Overdue, GateError> {
        let keys = GateKeys::of(id);
        let mut con = self.con();
        let listed = self.scripts.overdue(&mut con, &keys, age, skip).await;
        let listed = listed.map_err(GateError::from)?;
        let (mut holds, mut accepted, mut strays) = (Vec::new(), Vec::new(), Vec::new());
        for (rid, text) in &listed {
            if text.is_empty() {
                continue;
            }
            let (rid, record) = record(rid, text)?;
            match record.state {
                RecordState::Pending if record.accepted_at_ms.is_none() => {
                    holds.extend(tombstone(rid, &record));
                }
                RecordState::Pending => {}
                RecordState::Committed | RecordState::Released | RecordState::Tombstone => {
                    strays.push(rid);
                }
            }
            accepted.extend(AcceptedHold::of(rid, record));
        }
        Ok(Overdue {
            holds,
            accepted,
            listed: listed.len(),
            strays,
        })
    }

    /// Takes reservations that have ended out of the index of holds: none of them is held again.
    pub(super) async fn unlist(&self, id: &ActivityId, ended: &[Rid]) -> Result<(), GateError> {
        if ended.is_empty() {
            return Ok(());
        }
        let mut cmd = redis::cmd("ZREM");
        cmd.arg(GateKeys::of(id).pend);
        for rid in ended {
            cmd.arg(rid.to_string());
        }
        let done: Result<i64, _> = cmd.query_async(&mut self.con()).await;
        done.map(drop).map_err(from_redis)
    }

    /// The records of `rids`, in their order.
    pub async fn look(
        &self,
        id: &ActivityId,
        rids: &[Rid],
    ) -> Result<Vec<Option<Record>>, GateError> {
        let key = GateKeys::of(id).rsv;
        let mut records = Vec::with_capacity(rids.len());
        for rids in rids.chunks(ORDERS_PER_CALL_MAX) {
            let mut cmd = redis::cmd("HMGET");
            cmd.arg(&key);
            for rid in rids {
                cmd.arg(rid.to_string());
            }
            let texts: Result<Vec<Option<String>>, _> = cmd.query_async(&mut self.con()).await;
            for (rid, text) in rids.iter().zip(texts.map_err(from_redis)?) {
                let read = text.map(|text| record(&rid.to_string(), &text));
                records.push(read.transpose()?.map(|(_, record)| record));
            }
        }
        Ok(records)
    }

    /// Whether the gate has a record of this reservation, or a live order of this user.
    pub async fn knows(&self, id: &ActivityId, rid: Rid, user: &UserId) -> Result<bool, GateError> {
        let keys = GateKeys::of(id);
        let mut asked = redis::pipe();
        asked.hexists(&keys.rsv, rid.to_string());
        asked.hexists(&keys.user, user.as_str());
        let known: Result<(bool, bool), _> = asked.query_async(&mut self.con()).await;
        let (reservation, order) = known.map_err(from_redis)?;
        Ok(reservation || order)
    }

    /// Those of `rids` that are accepted holds.
    pub async fn accepted(
        &self,
        id: &ActivityId,
        rids: &[Rid],
    ) -> Result<Vec<AcceptedHold>, GateError> {
        let records = self.look(id, rids).await?;
        let of = |(rid, record): (&Rid, Option<Record>)| AcceptedHold::of(*rid, record?);
        Ok(rids.iter().zip(records).filter_map(of).collect())
    }

    /// Those of `rids` that the index of holds does not have.
    pub(super) async fn without_index(
        &self,
        id: &ActivityId,
        rids: &[Rid],
    ) -> Result<Vec<Rid>, GateError> {
        let key = GateKeys::of(id).pend;
        let mut without = Vec::new();
        for rids in rids.chunks(ORDERS_PER_CALL_MAX) {
            let mut cmd = redis::cmd("ZMSCORE");
            cmd.arg(&key);
            for rid in rids {
                cmd.arg(rid.to_string());
            }
            let scores: Result<Vec<Option<f64>>, _> = cmd.query_async(&mut self.con()).await;
            let scores = scores.map_err(from_redis)?;
            without.extend(
                rids.iter()
                    .zip(scores)
                    .filter(|(_, s)| s.is_none())
                    .map(|(r, _)| *r),
            );
        }
        Ok(without)
    }

    /// A page of the reservations, and the cursor of the next page, 0 after the last. What is
    /// there all the time is seen at least once.
    pub(super) async fn scan(
        &self,
        id: &ActivityId,
        cursor: u64,
    ) -> Result<(u64, Vec<(Rid, Record)>), GateError> {
        let mut cmd = redis::cmd("HSCAN");
        cmd.arg(GateKeys::of(id).rsv)
            .arg(cursor)
            .arg("COUNT")
            .arg(SCAN_COUNT);
        let page: Result<(u64, Vec<(String, String)>), _> = cmd.query_async(&mut self.con()).await;
        let (next, fields) = page.map_err(from_redis)?;
        let records = fields.iter().map(|(rid, text)| record(rid, text));
        Ok((next, records.collect::<Result<_, _>>()?))
    }
}

/// The row that would end this reservation; `None` when it is one already.
pub(super) fn tombstone(rid: Rid, record: &Record) -> Option<Tombstone> {
    Some(Tombstone {
        rid,
        user: record.user.clone()?,
        fingerprint: record.fingerprint.clone(),
    })
}

fn record(rid: &str, text: &str) -> Result<(Rid, Record), GateError> {
    match (rid.parse(), text.parse()) {
        (Ok(rid), Ok(record)) => Ok((rid, record)),
        (Err(_), _) | (_, Err(_)) => Err(GateError::Corrupt {
            what: format!("reservation {rid:?} has the record {text:?}"),
        }),
    }
}
