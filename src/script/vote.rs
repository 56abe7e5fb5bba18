//! The scripts of one node of several that vote on a lock: take, pass on. It is renewed and released
//! as a lock of one node is.

use std::sync::LazyLock;
use std::time::Duration;

use redis::Script;

use crate::keys::LockKey;
use crate::script::lock::{Owned, ms, owned};
use crate::script::node::{CallError, Node};

static VOTE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("../../lua/vote.lua")));
static PASS: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../lua/vote_pass.lua")));

/// Who asks a node.
#[derive(Debug, Clone, Copy)]
pub struct Asker<'a> {
    /// The owner of one grant.
    pub owner: &'a str,
    /// The process on whose behalf; it is told apart from others that wait.
    pub process: &'a str,
}

/// What `vote_pass.lua` answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PassVote {
    /// Whether it was the releasing owner's.
    pub freed: Owned,
    /// Whether it is the heir's now.
    pub taken: Owned,
    /// Whether another process found it held lately.
    pub others_wait: i64,
}

/// Takes the lock on this node for `ttl`; else leaves a mark for `mark` that somebody waits.
pub async fn take(
    node: &Node,
    key: &LockKey,
    asker: Asker<'_>,
    ttl: Duration,
    mark: Duration,
) -> Result<Owned, CallError> {
    let mut call = VOTE.prepare_invoke();
    call.key(key.redis())
        .key(key.redis_waiting())
        .arg(asker.owner)
        .arg(ms(ttl))
        .arg(asker.process)
        .arg(ms(mark));
    node.invoke(&call).await.map(owned)
}

/// Frees the owner's lock on this node and takes it for `heir`, for `ttl`.
pub async fn pass(
    node: &Node,
    key: &LockKey,
    asker: Asker<'_>,
    heir: &str,
    ttl: Duration,
) -> Result<PassVote, CallError> {
    let mut call = PASS.prepare_invoke();
    call.key(key.redis())
        .key(key.redis_waiting())
        .arg(asker.owner)
        .arg(heir)
        .arg(ms(ttl))
        .arg(asker.process);
    let (freed, taken, others_wait): (i64, i64, i64) = node.invoke(&call).await?;
    Ok(PassVote {
        freed: owned(freed),
        taken: owned(taken),
        others_wait,
    })
}
