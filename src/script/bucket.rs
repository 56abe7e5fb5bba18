//! The script that takes a token from both buckets of a purchase, or from neither.

use std::sync::LazyLock;
use std::time::Duration;

use redis::Script;

use super::node::{CallError, Node};
use crate::sale::Bucket;

static BUCKET: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../lua/bucket.lua")));

/// What `bucket.lua` answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Token {
    /// One was taken from each bucket.
    Taken,
    /// The user's bucket is empty, and has a token after this long. None was taken.
    UserEmpty { wait: Duration },
    /// The activity's bucket is empty, and has a token after this long. None was taken.
    ActivityEmpty { wait: Duration },
}

/// A bucket in Redis: its key, and its size; `None` does not limit.
#[derive(Debug, Clone, Copy)]
pub struct Kept<'a> {
    pub key: &'a str,
    pub size: Option<Bucket>,
}

/// Takes one token of each, by the clock of that Redis. A lost answer may have cost a token.
pub async fn take(node: &Node, user: Kept<'_>, activity: Kept<'_>) -> Result<Token, CallError> {
    let mut call = BUCKET.prepare_invoke();
    call.key(user.key).key(activity.key);
    for bucket in [user, activity] {
        let (capacity, per_s) = bucket.size.map_or((0, 0.0), |b| (b.capacity, b.per_s));
        call.arg(capacity).arg(per_s);
    }
    let (taken, which, wait_ms): (i64, i64, u64) = node.invoke(&call).await?;
    let wait = Duration::from_millis(wait_ms);
    Ok(match (taken, which) {
        (1, _) => Token::Taken,
        (_, 1) => Token::UserEmpty { wait },
        (_, _) => Token::ActivityEmpty { wait },
    })
}
