//! The scripts of one node of several that vote on a lock: take, pass on. It is renewed and released
//! as a lock of one node is.

use std::sync::LazyLock;
use std::time::Duration;

use redis::{Script, ScriptInvocation};

use crate::keys::LockKey;
use crate::script::lock::{Owned, ms, owned};
use crate::script::node::{CallError, Node};

static VOTE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("../../lua/vote.lua")));
static PASS: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../lua/vote_pass.lua")));

/// One call, the same for every node.
#[derive(Debug)]
pub struct Take(ScriptInvocation<'static>);

/// One call, the same for every node.
#[derive(Debug)]
pub struct Pass(ScriptInvocation<'static>);

/// What `vote_pass.lua` answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PassVote {
    /// Whether it was the releasing owner's.
    pub freed: Owned,
    /// Whether it is the heir's now.
    pub taken: Owned,
    /// Whether another process found it held lately, if that was asked for.
    pub others_wait: bool,
}

// === impl Take ===

impl Take {
    /// Takes the lock for `ttl`; where it is another's, it leaves a mark of `process` for `mark`: that it
    /// waits.
    pub fn new(key: &LockKey, owner: &str, ttl: Duration, process: &str, mark: Duration) -> Self {
        let mut call = VOTE.prepare_invoke();
        call.key(key.redis())
            .key(key.redis_waiting())
            .arg(owner)
            .arg(ms(ttl))
            .arg(process)
            .arg(ms(mark));
        Self(call)
    }

    pub async fn ask(&self, node: &Node) -> Result<Owned, CallError> {
        node.invoke(&self.0).await.map(owned)
    }
}

// === impl Pass ===

impl Pass {
    /// Frees the owner's lock and takes it for `heir`, for `ttl`. Asks whether others than `process`
    /// wait, where one is given.
    pub fn new(
        key: &LockKey,
        owner: &str,
        heir: &str,
        ttl: Duration,
        process: Option<&str>,
    ) -> Self {
        let mut call = PASS.prepare_invoke();
        call.key(key.redis())
            .key(key.redis_waiting())
            .arg(owner)
            .arg(heir)
            .arg(ms(ttl))
            .arg(process.unwrap_or_default());
        Self(call)
    }

    pub async fn ask(&self, node: &Node) -> Result<PassVote, CallError> {
        let sum: i64 = node.invoke(&self.0).await?;
        let is_set = |bit: i64| sum & bit != 0;
        Ok(PassVote {
            freed: owned(i64::from(is_set(1))),
            taken: owned(i64::from(is_set(2))),
            others_wait: is_set(4),
        })
    }
}
