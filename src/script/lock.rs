//! The scripts of a lock in Redis: acquire, renew, release, reseed.
//!
//! Each is sent by its hash; a server that does not know it (restarted, or `SCRIPT FLUSH`) is given
//! it and asked again, which is safe because an unknown script has not run.

use std::sync::LazyLock;
use std::time::Duration;

use redis::Script;

use crate::keys::LockKey;
use crate::script::node::{CallError, Node};

static ACQUIRE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../lua/lock_acquire.lua")));
static RENEW: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../lua/lock_renew.lua")));
static RELEASE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../lua/lock_release.lua")));
static RESEED: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../lua/lock_reseed.lua")));

/// What `lock_acquire.lua` answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// Granted, with this fencing token.
    Granted { fence: i64 },
    /// Held by another, for at most `left` unless it is renewed; `None` when the key has no expiry.
    Held { left: Option<Duration> },
}

/// Whether the lock was the asking owner's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owned {
    Mine,
    NotMine,
}

/// Takes the lock for `ttl`. Asked again by the same owner it answers the same.
pub async fn acquire(
    node: &Node,
    key: &LockKey,
    owner: &[u8],
    ttl: Duration,
) -> Result<Taken, CallError> {
    let mut call = ACQUIRE.prepare_invoke();
    call.key(key.redis())
        .key(key.redis_fence())
        .arg(owner)
        .arg(ms(ttl));
    let (granted, number): (i64, i64) = node.invoke(&call).await?;
    Ok(if granted == 1 {
        Taken::Granted { fence: number }
    } else {
        let left = u64::try_from(number).ok().map(Duration::from_millis);
        Taken::Held { left }
    })
}

/// Gives the owner a whole lease again; `NotMine` when there is nothing to renew.
pub async fn renew(
    node: &Node,
    key: &LockKey,
    owner: &[u8],
    ttl: Duration,
) -> Result<Owned, CallError> {
    let mut call = RENEW.prepare_invoke();
    call.key(key.redis()).arg(owner).arg(ms(ttl));
    node.invoke(&call).await.map(owned)
}

/// Frees the lock if it is the owner's.
pub async fn release(node: &Node, key: &LockKey, owner: &[u8]) -> Result<Owned, CallError> {
    let mut call = RELEASE.prepare_invoke();
    call.key(key.redis()).arg(owner).arg(key.redis_channel());
    node.invoke(&call).await.map(owned)
}

/// Raises the fencing counter to at least `floor`; answers the counter.
pub async fn reseed(node: &Node, key: &LockKey, floor: i64) -> Result<i64, CallError> {
    let mut call = RESEED.prepare_invoke();
    call.key(key.redis_fence()).arg(floor);
    node.invoke(&call).await
}

fn owned(answer: i64) -> Owned {
    if answer == 1 {
        Owned::Mine
    } else {
        Owned::NotMine
    }
}

/// Whole milliseconds, at least one: Redis refuses an expiry of zero.
fn ms(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1)
}
