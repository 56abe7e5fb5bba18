//! How each answer of the gate's scripts is read from the wire.

use std::str::FromStr;

use redis::{FromRedisValue, Value};

use super::{
    AuditAnswer, CommitAnswer, Done, ExpireAnswer, Moved, OpenAnswer, RecountAnswer, ReholdAnswer,
    ReleaseAnswer, ReserveAnswer, SealAnswer, SkuCount, Unreadable, WarmAnswer,
};

/// One answer: its code and what follows it, all as text.
struct Fields {
    script: &'static str,
    texts: Vec<String>,
}

/// `{seq, answer, …}` as a `Done`. `expected` answers, or one that speaks for all of them.
pub(in crate::script::gate) fn done<T: Clone>(
    script: &'static str,
    reply: Value,
    expected: usize,
    read: impl Fn(Value) -> Result<T, Unreadable>,
) -> Result<Done<T>, Unreadable> {
    let unreadable = |seen: String| Unreadable {
        script,
        answer: seen,
    };
    let mut items = match reply {
        Value::Array(items) => items.into_iter(),
        other => return Err(unreadable(format!("{other:?}"))),
    };
    let seq = items.next().and_then(|v| i64::from_redis_value(v).ok());
    let mut answers = items.map(read).collect::<Result<Vec<T>, _>>()?;
    if let [one] = answers.as_slice() {
        answers = vec![one.clone(); expected];
    }
    match seq {
        Some(seq) if answers.len() == expected => Ok(Done { seq, answers }),
        Some(_) | None => Err(unreadable(format!(
            "{} answers to {expected} items, sequence number {seq:?}",
            answers.len()
        ))),
    }
}

// === impl Fields ===

impl Fields {
    fn of(script: &'static str, value: Value) -> Result<Self, Unreadable> {
        let list = match value {
            Value::Array(_) => Vec::<String>::from_redis_value(value),
            one => String::from_redis_value(one).map(|text| vec![text]),
        };
        match list {
            Ok(texts) => Ok(Self { script, texts }),
            Err(e) => Err(Unreadable {
                script,
                answer: e.to_string(),
            }),
        }
    }

    fn code(&self) -> &str {
        self.text(0)
    }

    fn text(&self, at: usize) -> &str {
        self.texts.get(at).map_or("", String::as_str)
    }

    fn what(&self) -> String {
        self.text(1).to_string()
    }

    fn read<T: FromStr>(&self, at: usize) -> Result<T, Unreadable> {
        self.text(at).parse().map_err(|_bad| self.unreadable())
    }

    fn unreadable(&self) -> Unreadable {
        Unreadable {
            script: self.script,
            answer: format!("{:?}", self.texts),
        }
    }
}

// === impl ReserveAnswer ===

impl ReserveAnswer {
    pub(in crate::script::gate) fn read(value: Value) -> Result<Self, Unreadable> {
        if let Value::Int(left) = value {
            return Ok(Self::Held { left });
        }
        let f = Fields::of("reserve.lua", value)?;
        Ok(match f.code() {
            "REPLAY" => Self::Replay {
                state: f.read(1)?,
                left: Some(f.read::<i64>(2)?).filter(|left| *left >= 0),
            },
            "SOLD_OUT" => Self::SoldOut {
                sku: f.read(1)?,
                left: f.read(2)?,
            },
            "USER_LIMIT" if f.text(1).is_empty() => Self::UserLimit { live: None },
            "USER_LIMIT" => Self::UserLimit {
                live: Some(f.read(1)?),
            },
            "NOT_OPEN" => Self::NotOpen {
                opens_at_ms: f.read(1)?,
            },
            "ENDED" => Self::Ended {
                closes_at_ms: f.read(1)?,
            },
            "GATE" => Self::Gate(f.read(1)?),
            "STALE_EPOCH" => Self::StaleEpoch { epoch: f.read(1)? },
            "UNKNOWN_SKU" => Self::UnknownSku(f.read(1)?),
            "FP_MISMATCH" => Self::FingerprintMismatch,
            "ABANDONED" => Self::Abandoned,
            "BAD_ARG" => Self::BadArg,
            "FULL" => Self::Full { holds: f.read(1)? },
            "NOT_WARMED" => Self::NotWarmed,
            "CORRUPT" => Self::Corrupt { what: f.what() },
            _ => return Err(f.unreadable()),
        })
    }
}

// === impl CommitAnswer ===

impl CommitAnswer {
    pub(in crate::script::gate) fn read(value: Value) -> Result<Self, Unreadable> {
        let f = Fields::of("commit.lua", value)?;
        Ok(match f.code() {
            "COMMITTED" => Self::Committed,
            "ALREADY" => Self::Already,
            "DEAD" => Self::Dead,
            "MISSING" => Self::Missing,
            "CORRUPT" => Self::Corrupt,
            _ => return Err(f.unreadable()),
        })
    }
}

// === impl ReleaseAnswer ===

impl ReleaseAnswer {
    pub(in crate::script::gate) fn read(value: Value) -> Result<Self, Unreadable> {
        let f = Fields::of("release.lua", value)?;
        Ok(match f.code() {
            "RELEASED" => Self::Released,
            "ALREADY" => Self::Already,
            "TOMBSTONED" => Self::Tombstoned,
            "CORRUPT" => Self::Corrupt,
            "GONE" => Self::Gone,
            _ => return Err(f.unreadable()),
        })
    }
}

// === impl ReholdAnswer ===

impl ReholdAnswer {
    pub(in crate::script::gate) fn read(value: Value) -> Result<Self, Unreadable> {
        let f = Fields::of("rehold.lua", value)?;
        Ok(match f.code() {
            "REHELD" => Self::Reheld,
            "REHELD_DEAD" => Self::ReheldDead,
            "ALREADY" => Self::Already,
            "PENDING" => Self::Pending,
            "UNKNOWN_SKU" => Self::UnknownSku,
            "CORRUPT" => Self::Corrupt,
            "GONE" => Self::Gone,
            _ => return Err(f.unreadable()),
        })
    }
}

// === impl WarmAnswer ===

impl WarmAnswer {
    pub(in crate::script::gate) fn read(value: Value) -> Result<Self, Unreadable> {
        let f = Fields::of("warm.lua", value)?;
        Ok(match f.code() {
            "WARMED" => Self::Warmed,
            "KEPT" => Self::Kept,
            "GATE" => Self::Gate(f.read(1)?),
            "STALE_EPOCH" => Self::StaleEpoch { epoch: f.read(1)? },
            "MISMATCH" => Self::Mismatch { what: f.what() },
            "BAD_ARG" => Self::BadArg { what: f.what() },
            _ => return Err(f.unreadable()),
        })
    }
}

// === impl SealAnswer ===

impl SealAnswer {
    pub(in crate::script::gate) fn read(value: Value) -> Result<Self, Unreadable> {
        let f = Fields::of("seal.lua", value)?;
        Ok(match f.code() {
            "SEALED" => Self::Sealed,
            "ALREADY" => Self::Already,
            "GATE" => Self::Gate(f.read(1)?),
            "STALE_EPOCH" => Self::StaleEpoch { epoch: f.read(1)? },
            "NOT_WARMED" => Self::NotWarmed,
            "MISMATCH" => Self::Mismatch { what: f.what() },
            "CORRUPT" => Self::Corrupt { sku: f.what() },
            _ => return Err(f.unreadable()),
        })
    }
}

// === impl OpenAnswer ===

impl OpenAnswer {
    pub(in crate::script::gate) fn read(value: Value) -> Result<Self, Unreadable> {
        let f = Fields::of("open.lua", value)?;
        Ok(match f.code() {
            "OPENED" => Self::Opened,
            "ALREADY" => Self::Already,
            "GATE" => Self::Gate(f.read(1)?),
            "STALE_EPOCH" => Self::StaleEpoch { epoch: f.read(1)? },
            "NOT_WARMED" => Self::NotWarmed,
            _ => return Err(f.unreadable()),
        })
    }
}

// === impl Moved ===

impl Moved {
    pub(in crate::script::gate) fn read(value: Value) -> Result<Self, Unreadable> {
        let f = Fields::of("gate.lua", value)?;
        Ok(match f.code() {
            "SET" => Self::Set { from: f.read(1)? },
            "GATE" => Self::Gate(f.read(1)?),
            "STALE_EPOCH" => Self::StaleEpoch { epoch: f.read(1)? },
            "NOT_WARMED" => Self::NotWarmed,
            "BAD_ARG" => Self::BadArg { what: f.what() },
            _ => return Err(f.unreadable()),
        })
    }
}

// === impl ExpireAnswer ===

impl ExpireAnswer {
    pub(in crate::script::gate) fn read(value: Value) -> Result<Self, Unreadable> {
        let f = Fields::of("expire.lua", value)?;
        Ok(match f.code() {
            "EXPIRES" => Self::Expires,
            "GONE" => Self::Gone,
            "BAD_ARG" => Self::BadArg { what: f.what() },
            _ => return Err(f.unreadable()),
        })
    }
}

// === impl RecountAnswer ===

impl RecountAnswer {
    pub(in crate::script::gate) fn read(value: Value) -> Result<Self, Unreadable> {
        let f = Fields::of("recount.lua", value)?;
        Ok(match f.code() {
            "COUNTED" => Self::Counted {
                changed: f.read(1)?,
            },
            "GATE" => Self::Gate(f.read(1)?),
            "STALE_EPOCH" => Self::StaleEpoch { epoch: f.read(1)? },
            "NOT_WARMED" => Self::NotWarmed,
            "CORRUPT" => Self::Corrupt { what: f.what() },
            _ => return Err(f.unreadable()),
        })
    }
}

// === impl AuditAnswer ===

impl AuditAnswer {
    pub(in crate::script::gate) fn read(value: Value) -> Result<Self, Unreadable> {
        let f = Fields::of("audit.lua", value)?;
        let state = match f.text(2) {
            "" => None,
            _ => Some(f.read(2)?),
        };
        let count = |text: &String| text.parse().ok();
        let skus = f.texts.get(4..).ok_or_else(|| f.unreadable())?;
        Ok(Self {
            seq: f.read(0)?,
            epoch: f.read(1)?,
            state,
            holds: f.read(3)?,
            skus: skus
                .chunks_exact(5)
                .map(|c| SkuCount {
                    sku: c[0].clone(),
                    total: count(&c[1]),
                    stock: count(&c[2]),
                    pending: count(&c[3]),
                    committed: count(&c[4]),
                })
                .collect(),
        })
    }
}
