//! One node of a RedLock: does it answer, and what is it still owed?
//!
//! A node that did not answer within its bound is *suspected*: it is left alone, so that it costs
//! nobody anything, until a probe is answered. Releases that it missed are kept and made up for.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::{self, Instant};
use crate::keys::LockKey;
use crate::script::lock::{self as script, Owned};
use crate::script::node::{CallError, Node};

/// Longest time one node may take for one call: a lease is at least three of them.
pub(super) const NODE_TIMEOUT: Duration = Duration::from_millis(250);
/// How often a suspected node is asked whether it is back.
const PROBE_PAUSE: Duration = Duration::from_millis(100);
/// Most releases kept for a node; further ones leave their keys to expire.
const OWED_MAX: usize = 10_000;

#[derive(Debug)]
pub(super) struct Member {
    node: Node,
    health: Mutex<Health>,
}

#[derive(Debug, Default)]
struct Health {
    standing: Standing,
    owed: VecDeque<Owed>,
}

/// A release that was missed.
#[derive(Debug, Clone)]
struct Owed {
    key: LockKey,
    owner: String,
    /// When the lease is over anyway.
    expires_at: Instant,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Standing {
    #[default]
    Trusted,
    /// A task probes it.
    Suspected,
}

/// Why a node has no vote.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum NodeError {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("no answer within {NODE_TIMEOUT:?}")]
    TimedOut,
}

// === impl Member ===

impl Member {
    pub(super) fn new(url: &str) -> Result<Self, redis::RedisError> {
        Ok(Self {
            node: Node::new(url, NODE_TIMEOUT)?,
            health: Mutex::default(),
        })
    }

    pub(super) fn node(&self) -> &Node {
        &self.node
    }

    pub(super) fn is_trusted(&self) -> bool {
        self.health().standing == Standing::Trusted
    }

    /// Waits for one call to this node, for 250 ms at most.
    pub(super) async fn answer<T>(
        self: &Arc<Self>,
        call: impl Future<Output = Result<T, CallError>>,
    ) -> Result<T, NodeError> {
        let answer = bounded(call).await;
        match &answer {
            // A refusal is an answer, too.
            Ok(_) | Err(NodeError::Call(CallError::Refused(_))) => {}
            Err(
                NodeError::TimedOut
                | NodeError::Call(CallError::Unanswered(_) | CallError::Unreached(_)),
            ) => self.suspect(),
        }
        answer
    }

    /// Releases what may be the owner's here; made up for later when it does not answer.
    pub(super) async fn release(
        self: &Arc<Self>,
        key: &LockKey,
        owner: &str,
        ttl: Duration,
    ) -> Result<Owned, NodeError> {
        let call = script::release(&self.node, key, owner.as_bytes());
        let answer = self.answer(call).await;
        if answer.is_err() {
            self.owe(key, owner, ttl);
        }
        answer
    }

    /// Remembers a release that this node has missed.
    pub(super) fn owe(self: &Arc<Self>, key: &LockKey, owner: &str, ttl: Duration) {
        let mut health = self.health();
        if health.owed.len() >= OWED_MAX {
            tracing::warn!(?key, "too many releases are owed; this one has to expire");
            return;
        }
        health.owed.push_back(Owed {
            key: key.clone(),
            owner: owner.to_string(),
            expires_at: clock::now() + ttl,
        });
        drop(health);
        self.suspect();
    }

    fn suspect(self: &Arc<Self>) {
        let mut health = self.health();
        if health.standing == Standing::Suspected {
            return;
        }
        health.standing = Standing::Suspected;
        drop(health);
        // One per node: it ends when the node answers, or nobody uses it any more.
        tokio::spawn(probe(Arc::downgrade(self)));
    }

    /// Whether it has answered a probe and got all releases that it was owed.
    async fn make_up(&self) -> bool {
        let ping = redis::cmd("PING");
        if bounded(self.node.query::<String>(&ping)).await.is_err() {
            return false;
        }
        while let Some(owed) = self.next_owed() {
            let released = script::release(&self.node, &owed.key, owed.owner.as_bytes());
            if bounded(released).await.is_err() {
                self.health().owed.push_front(owed);
                return false;
            }
        }
        true
    }

    /// Takes a release that is owed and has not expired; without any, the node is trusted again.
    fn next_owed(&self) -> Option<Owed> {
        let now = clock::now();
        let mut health = self.health();
        loop {
            match health.owed.pop_front() {
                Some(owed) if owed.expires_at <= now => {}
                Some(owed) => return Some(owed),
                None => {
                    health.standing = Standing::Trusted;
                    return None;
                }
            }
        }
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn probe(member: std::sync::Weak<Member>) {
    loop {
        tokio::time::sleep(PROBE_PAUSE).await;
        let Some(member) = member.upgrade() else {
            return;
        };
        if member.make_up().await {
            return;
        }
    }
}

/// Bounds one call to one node.
pub(super) async fn bounded<T>(
    call: impl Future<Output = Result<T, CallError>>,
) -> Result<T, NodeError> {
    match tokio::time::timeout(NODE_TIMEOUT, call).await {
        Ok(answer) => Ok(answer?),
        Err(_elapsed) => Err(NodeError::TimedOut),
    }
}
