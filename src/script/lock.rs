//! The scripts of a lock in Redis: acquire, renew, release, pass on, reseed.
//!
//! Each is sent by its hash; a server that does not know it (restarted, or `SCRIPT FLUSH`) is given
//! it and asked again, which is safe because an unknown script has not run.

use std::sync::LazyLock;
use std::time::Duration;

use redis::{FromRedisValue, ParsingError, Script, ScriptInvocation, Value};

use crate::keys::LockKey;
use crate::script::node::{CallError, Listener, Node};

static ACQUIRE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../lua/lock_acquire.lua")));
static RENEW: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../lua/lock_renew.lua")));
static RELEASE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../lua/lock_release.lua")));
static PASS: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../lua/lock_pass.lua")));
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

/// What `lock_pass.lua` answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PassedOn {
    /// Whether it was the releasing owner's.
    pub freed: Owned,
    /// The next owner's fencing token; `None` when the lock is another's.
    pub fence: Option<i64>,
    /// How many connections wait for a release, if they were counted.
    pub listening: i64,
}

/// Takes the lock for `ttl`. Asked again by the same owner it answers the same.
pub async fn acquire(
    node: &Node,
    key: &LockKey,
    owner: &[u8],
    ttl: Duration,
) -> Result<Taken, CallError> {
    let call = acquire_call(key, owner, ttl);
    node.invoke(&call).await
}

/// As `acquire`; `listener` hears of every release after it.
pub async fn acquire_listening(
    node: &Node,
    listener: &mut Listener,
    key: &LockKey,
    owner: &[u8],
    ttl: Duration,
) -> Result<Taken, CallError> {
    let call = acquire_call(key, owner, ttl);
    node.invoke_listening(listener, &call).await
}

fn acquire_call(key: &LockKey, owner: &[u8], ttl: Duration) -> ScriptInvocation<'static> {
    let mut call = ACQUIRE.prepare_invoke();
    call.key(key.redis())
        .key(key.redis_fence())
        .arg(owner)
        .arg(ms(ttl));
    call
}

impl FromRedisValue for Taken {
    fn from_redis_value(answer: Value) -> Result<Self, ParsingError> {
        if let Value::Int(fence) = answer {
            return Ok(Self::Granted { fence });
        }
        let (left_ms,) = <(i64,)>::from_redis_value(answer)?;
        let left = u64::try_from(left_ms).ok().map(Duration::from_millis);
        Ok(Self::Held { left })
    }
}

/// Frees the owner's lock and takes it for `heir`, for `ttl`. Counts those who listen to `channel`.
pub async fn pass(
    node: &Node,
    key: &LockKey,
    owner: &[u8],
    heir: &[u8],
    ttl: Duration,
    channel: Option<&str>,
) -> Result<PassedOn, CallError> {
    let mut call = PASS.prepare_invoke();
    call.key(key.redis())
        .key(key.redis_fence())
        .arg(owner)
        .arg(heir)
        .arg(ms(ttl))
        .arg(channel.unwrap_or_default());
    let (freed, token, listening): (i64, i64, i64) = node.invoke(&call).await?;
    Ok(PassedOn {
        freed: owned(freed),
        fence: (token > 0).then_some(token),
        listening,
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

pub(super) fn owned(answer: i64) -> Owned {
    if answer == 1 {
        Owned::Mine
    } else {
        Owned::NotMine
    }
}

/// Whole milliseconds, at least one: Redis refuses an expiry of zero.
pub(super) fn ms(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1)
}
