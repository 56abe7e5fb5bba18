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

/// `state user|fingerprint|lines|left|reason`, lines being `sku=n;sku=n`; with `accepted_at_ms` before
/// the reason where the hold is booked later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub state: RecordState,
    /// `None` for a tombstone: it never arrived.
    pub user: Option<UserId>,
    pub fingerprint: Fingerprint,
    pub lines: Vec<Line>,
    /// When it was accepted, to be booked later; `None` where its purchase books it. Unix
    /// milliseconds by Redis's clock.
    pub accepted_at_ms: Option<i64>,
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
    let accepted_at_ms = match (fields.next(), fields.next(), fields.next()) {
        (Some(_left), Some(accepted_at_ms), Some(_reason)) => Some(accepted_at_ms.parse().ok()?),
        (Some(_left), Some(_reason), None) => None,
        (Some(_) | None, _, _) => return None,
    };
    if user.is_none() && state != RecordState::Tombstone {
        return None;
    }
    Some(Record {
        state,
        user,
        fingerprint,
        lines,
        accepted_at_ms,
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
        assert_eq!((held.accepted_at_ms, never.accepted_at_ms), (None, None));
        for text in ["Pa|f|A=1|7|1700|", "Ra|f|A=1|7|1700|sold-out"] {
            let later: Record = text.parse().expect("a record");
            assert_eq!(later.accepted_at_ms, Some(1700), "{text}");
        }
        for text in [
            "",
            "P",
            "Z1|f|A=1||",
            "P|f|A=1||",
            "Pa|f|A=x||",
            "Pa|f|A||",
            "Pa|f|A=1|7",
            "Pa|f|A=1|7|soon|",
        ] {
            assert!(text.parse::<Record>().is_err(), "{text}");
        }
    }
}
