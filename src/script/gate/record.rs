//! A reservation's record in Redis, as `reserve.lua` and its like write it.

use std::fmt;
use std::str::FromStr;

use crate::order::Fingerprint;
use crate::sale::{InvalidId, Line, UserId, named};

/// Where a reservation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RecordState {
    Pending,
    Committed,
    Released,
    /// Given up before it arrived.
    Tombstone,
}

named!(RecordState {
    Pending = "P",
    Committed = "C",
    Released = "R",
    Tombstone = "X",
});

/// `state user|fingerprint|lines|left|reason`, lines being `sku=n;sku=n`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub state: RecordState,
    /// `None` for a tombstone: it never arrived.
    pub user: Option<UserId>,
    pub fingerprint: Fingerprint,
    pub lines: Vec<Line>,
}

/// A text that none of our scripts writes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a record of a reservation")]
pub struct NotARecord(String);

impl FromStr for Record {
    type Err = NotARecord;

    fn from_str(text: &str) -> Result<Self, NotARecord> {
        read(text).ok_or_else(|| NotARecord(text.to_string()))
    }
}

fn read(text: &str) -> Option<Record> {
    let state = text.get(..1)?.parse().ok()?;
    let mut fields = text[1..].split('|');
    let user = match fields.next()? {
        "" => None,
        user => Some(user.parse().ok()?),
    };
    let fingerprint = Fingerprint::from_store(fields.next()?.to_string());
    let lines = fields
        .next()?
        .split(';')
        .filter(|line| !line.is_empty())
        .map(|line| {
            let (sku, quantity) = line.split_once('=')?;
            Some(Line {
                sku: sku.parse().ok()?,
                quantity: quantity.parse().ok()?,
            })
        })
        .collect::<Option<Vec<_>>>()?;
    if user.is_none() && state != RecordState::Tombstone {
        return None;
    }
    Some(Record {
        state,
        user,
        fingerprint,
        lines,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_the_scripts_write_them() {
        let held: Record = "Palice|f00|A=1;B=2|7|".parse().expect("a record");
        assert_eq!(held.state, RecordState::Pending);
        assert_eq!(held.user.as_ref().map(UserId::as_str), Some("alice"));
        assert_eq!(held.lines.len(), 2);
        let never: Record = "X||||timeout".parse().expect("a record");
        assert_eq!((never.user, never.lines), (None, Vec::new()));
        for text in ["", "P", "Z1|f|A=1||", "P|f|A=1||", "Pa|f|A=x||", "Pa|f|A||"] {
            assert!(text.parse::<Record>().is_err(), "{text}");
        }
    }
}
