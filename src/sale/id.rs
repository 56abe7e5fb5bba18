//! The ids of a sale: what each may be made of, and how each is written.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Longest idempotency key a caller may send, in bytes: room for two UUIDs and a prefix.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 128;
/// Longest user, SKU or provider name, in bytes; the columns are this wide.
pub const NAME_BYTES_MAX: usize = 64;

/// Why a text is not the id it was given as. The message says what is allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {problem}")]
pub struct InvalidId {
    pub what: &'static str,
    pub problem: String,
}

/// The name of one sale; made by the service, safe in a Redis key, a znode path and a URL.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ActivityId(String);

/// The name of a lock that a program takes for itself; safe where an activity's id is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockName(String);

/// The buyer, as the caller names them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct UserId(String);

/// A stock keeping unit.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Sku(String);

/// What the caller sends as `Idempotency-Key`: printable ASCII, chosen anew for each intent to buy.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IdempotencyKey(String);

/// The reservation id: UUIDv5 (RFC 9562) of activity, user and idempotency key, so the same request
/// has the same id in every process and every store without a look-up table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rid(Uuid);

/// The public name of an order: `<activity>.<rid>`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OrderId {
    pub activity: ActivityId,
    pub rid: Rid,
}

/// The name of a strategy, as it stands in SQL, JSON and reports; `strategy.rs` says which exist.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StrategyName(String);

// === impl ids ===

fn checked(
    what: &'static str,
    text: &str,
    bytes_max: usize,
    allowed: &str,
) -> Result<(), InvalidId> {
    let problem = if text.is_empty() {
        "is empty".to_string()
    } else if text.len() > bytes_max {
        format!(
            "is {} bytes long; at most {bytes_max} are allowed",
            text.len()
        )
    } else if let Some(bad) = text
        .chars()
        .find(|c| !c.is_ascii_alphanumeric() && !allowed.contains(*c))
    {
        format!("contains {bad:?}; letters, digits and any of `{allowed}` are allowed")
    } else {
        return Ok(());
    };
    Err(InvalidId { what, problem })
}

macro_rules! text_id {
    ($name:ident, $what:literal, $max:expr, $allowed:literal) => {
        impl FromStr for $name {
            type Err = InvalidId;
            fn from_str(text: &str) -> Result<Self, InvalidId> {
                checked($what, text, $max, $allowed).map(|()| Self(text.to_string()))
            }
        }
        impl TryFrom<String> for $name {
            type Error = InvalidId;
            fn try_from(text: String) -> Result<Self, InvalidId> {
                checked($what, &text, $max, $allowed).map(|()| Self(text))
            }
        }
        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
    };
}

// Every alphabet leaves out `|`, `;`, `=`, `{` and `}`: the gate's records and hash tags use them.
text_id!(ActivityId, "activity id", 36, "-");
text_id!(LockName, "lock name", NAME_BYTES_MAX, "._-");
text_id!(UserId, "user_id", NAME_BYTES_MAX, "._:@+-");
text_id!(Sku, "sku", NAME_BYTES_MAX, "._:-");

impl ActivityId {
    /// A new id, ordered by time (UUIDv7, RFC 9562).
    pub fn generate() -> Self {
        Self(Uuid::now_v7().simple().to_string())
    }
}

impl FromStr for IdempotencyKey {
    type Err = InvalidId;
    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let what = "Idempotency-Key";
        let problem = if text.is_empty() {
            "is empty; send one key per intent to buy, such as a UUID".to_string()
        } else if text.len() > IDEMPOTENCY_KEY_BYTES_MAX {
            format!(
                "is {} bytes long; at most {IDEMPOTENCY_KEY_BYTES_MAX} are allowed",
                text.len()
            )
        } else if !text.bytes().all(|b| (0x21..=0x7e).contains(&b)) {
            "must be printable ASCII without spaces".to_string()
        } else {
            return Ok(Self(text.to_string()));
        };
        Err(InvalidId { what, problem })
    }
}

impl IdempotencyKey {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Rid {
    /// The reservation of this user's request in this activity.
    pub fn of(activity: &ActivityId, user: &UserId, key: &IdempotencyKey) -> Self {
        // The unit separator occurs in none of the three, so no two triples join to one text.
        let name = format!("{activity}\u{1f}{user}\u{1f}{}", key.as_str());
        Self(Uuid::new_v5(&Uuid::NAMESPACE_OID, name.as_bytes()))
    }
}

impl fmt::Display for Rid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl FromStr for Rid {
    type Err = InvalidId;
    fn from_str(text: &str) -> Result<Self, InvalidId> {
        text.parse().map(Self).map_err(|e: uuid::Error| InvalidId {
            what: "reservation id",
            problem: format!("is not a UUID: {e}"),
        })
    }
}

impl fmt::Display for OrderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.activity, self.rid)
    }
}

impl FromStr for OrderId {
    type Err = InvalidId;
    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let (activity, rid) = text.split_once('.').ok_or_else(|| InvalidId {
            what: "order id",
            problem: "is not of the form <activity>.<reservation>".to_string(),
        })?;
        Ok(Self {
            activity: activity.parse()?,
            rid: rid.parse()?,
        })
    }
}

impl StrategyName {
    pub fn new(name: impl Into<String>) -> Self {
        Self(name.into())
    }
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for StrategyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
