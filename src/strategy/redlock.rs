//! `redlock`: a majority of independent Redis, by the crate `rslock`.
//!
//! The recipe is RedLock of the Redis documentation ("Distributed Locks with Redis"). `rslock` asks
//! the nodes for the lock, once per try; waiting, renewing and releasing are ours, because its own
//! retry for ever, re-create a key that is gone, and do not say what came of a release.
//!
//! # What rslock does not allow
//! A try waits for every node, and bounds each at 500 ms (1 s to connect): with one node that hangs,
//! each acquire takes 500 ms, though a majority has answered. Renewals and releases are our own
//! calls: they are bounded at 250 ms per node and stop at a majority. A try that takes longer than
//! its own lease leaves its keys to expire, since its owner is not told.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use rslock::{LockError, LockManager};
use tokio::sync::{mpsc, oneshot};

use super::{Entry, Kind, Missing, Need, Servers};
use crate::clock::{self, Instant};
use crate::deduct::Deduct;
use crate::keys::LockKey;
use crate::lock::detached::{Caller, detached};
use crate::lock::lease::{Lease, Timing};
use crate::lock::wait::{Queue, Turn};
use crate::lock::watchdog::{HOLD_MAX, Renew, Renewal, Tenure};
use crate::lock::{AcquireError, Fence, Guarantees, Guard, Lock, Released, Terms};
use crate::sale::Watchdog;
use crate::script::lock::{self as script, Owned};
pub use crate::strategy::redlock::nodes::UnsafeNodes;
use crate::strategy::redlock::nodes::{Nodes, Verdict, Votes};

mod nodes;

/// How errors name the servers.
const SERVER: &str = "redlock";
/// Fewest nodes: with three, one may fail.
pub const NODES_MIN: usize = 3;
/// The shortest lease, in milliseconds: three node timeouts. A shorter one may be over before a
/// majority has been asked, when one node does not answer.
pub const LEASE_MS_MIN: i64 = 3 * nodes::NODE_TIMEOUT.as_millis() as i64;
/// A held lock is asked for again after this long at least, and at most four times as long: two
/// contenders that split the votes must not meet again, and a try takes about a millisecond.
const POLL_MIN: Duration = Duration::from_millis(3);
/// A try that takes longer than this has a node that hangs: is there a majority at all?
const SLOW: Duration = Duration::from_millis(200);
/// No try is begun this shortly before the deadline: its answer would come too late.
const LAST_TRY: Duration = Duration::from_millis(15);
/// How long the next in the queue waits for the slower nodes once a majority has released: less
/// than a pause after a split vote would cost.
const RELEASE_GRACE: Duration = Duration::from_millis(3);
/// Releases tried per node in the background before its key is left to expire.
const RELEASE_TRIES_MAX: u32 = 20;
/// Pause between them: together they outlast a restart of the node.
const RELEASE_PAUSE: Duration = Duration::from_millis(250);

/// Exclusion by a majority of independent Redis.
#[derive(Debug, Clone)]
pub struct RedlockLock {
    nodes: Arc<Nodes>,
    manager: LockManager,
    queue: Queue,
}

/// Keys on a majority of nodes that hold this guard's owner.
#[derive(Debug)]
pub struct RedlockGuard {
    tenure: Tenure,
    /// Taken by the release; a guard that is dropped with it releases in the background.
    ownership: Option<Ownership>,
}

/// What it takes to renew or release one grant.
#[derive(Debug, Clone)]
struct Ownership {
    nodes: Arc<Nodes>,
    key: LockKey,
    owner: Vec<u8>,
    ttl: Duration,
}

// === impl RedlockLock ===

pub(super) const ENTRY: Entry = Entry {
    kind: Kind::Lock,
    needs: &[Need::Redlock],
    open,
};

fn open(servers: &Servers) -> Result<Box<dyn Deduct>, Missing> {
    if servers.redlock_urls.is_empty() {
        let advice = "no RedLock nodes are configured: set redlock_urls to three or more independent Redis, with commas";
        return Err(Missing(advice.to_string()));
    }
    let lock = RedlockLock::new(&servers.redlock_urls)
        .map_err(|e| Missing(format!("redlock_urls: {e}")))?;
    Ok(servers.locked(lock))
}

impl RedlockLock {
    /// Connects on first use. Clones share connections and queue.
    ///
    /// # Errors
    /// Fewer than three nodes, an even number, a URL twice, or one that is not a Redis URL. That two
    /// URLs lead to the same server is found at the first contact, and then told by `acquire`.
    pub fn new(urls: &[String]) -> Result<Self, UnsafeNodes> {
        let nodes = Nodes::new(urls)?;
        let mut manager = LockManager::from_clients(nodes.clients());
        // One try per call: the waiting is ours. The delay is not used, but zero panics.
        manager.set_retry(1, POLL_MIN);
        Ok(Self {
            manager,
            nodes: Arc::new(nodes),
            queue: Queue::default(),
        })
    }
}

impl Lock for RedlockLock {
    type Guard = RedlockGuard;

    fn guarantees(&self) -> Guarantees {
        Guarantees {
            protects_by: "RedLock: SET key owner NX PX on a majority of independent Redis",
            stock_lives_in: "database",
            fair: false,
            fenced: true,
            survives_failover: false,
            frees_after_crash: "lease",
            note: "Works while a majority of the nodes answers. It has no fencing token of its own: the \
                   database issues one with the claim. Exclusion assumes clocks of similar speed, and \
                   nodes that keep their keys: one that restarts without them may vote twice.",
        }
    }

    async fn ready(&self) -> Result<(), AcquireError> {
        self.nodes.check_independent().await.map_err(unavailable)?;
        self.nodes.require_majority().await.map_err(unavailable)
    }

    async fn acquire(&self, key: &LockKey, terms: &Terms) -> Result<RedlockGuard, AcquireError> {
        let deadline = clock::now() + terms.wait;
        let turn = match self.queue.turn(&key.redis(), deadline).await {
            Ok(turn) => turn,
            Err(_no_turn) => {
                return Err(self.nodes.trouble().map_or(AcquireError::Busy, unavailable));
            }
        };
        let (manager, nodes) = (self.manager.clone(), self.nodes.clone());
        let (key, terms) = (key.clone(), *terms);
        detached(SERVER, deadline, |caller| {
            contend(manager, nodes, key, turn, terms, deadline, caller)
        })
        .await
    }
}

// === impl RedlockGuard ===

impl Guard for RedlockGuard {
    fn fence(&self) -> Fence {
        Fence::IssuedByStore
    }

    fn valid_until(&self) -> Instant {
        self.tenure.valid_until()
    }

    async fn lost(&self) {
        self.tenure.lost().await;
    }

    fn is_held(&self) -> bool {
        self.tenure.is_held()
    }

    async fn release(mut self) -> Released {
        let Some(ownership) = self.ownership.take() else {
            return Released::NotOwner;
        };
        let turn = self.tenure.end();
        let (answer, answered) = oneshot::channel();
        // A task of its own: a release must reach the nodes even if its caller is dropped.
        tokio::spawn(ownership.release(turn, answer));
        answered.await.unwrap_or(Released::Pending)
    }
}

impl Drop for RedlockGuard {
    fn drop(&mut self) {
        let Some(ownership) = self.ownership.take() else {
            return;
        };
        let turn = self.tenure.end();
        // Spawned because drop cannot wait; without a runtime the lease runs out.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let (nobody, _) = oneshot::channel();
            runtime.spawn(ownership.release(turn, nobody));
        }
    }
}

// === impl Ownership ===

impl Ownership {
    /// Releases on every node and answers once a majority has said the same. Nodes that do not
    /// answer are asked again in tasks of their own.
    async fn release(self, turn: Option<Turn>, answer: oneshot::Sender<Released>) {
        let mut votes = Votes::default();
        let mut heard = self.ask_each(|node, told| node.release_on(told));
        let mut verdict = Verdict::Undecided;
        while verdict == Verdict::Undecided {
            let Some(vote) = heard.recv().await else {
                break;
            };
            votes.count(vote);
            verdict = votes.verdict(&self.nodes);
        }
        let _ = answer.send(match verdict {
            Verdict::Mine => Released::Released,
            Verdict::NotMine => Released::NotOwner,
            Verdict::Undecided => Released::Pending,
        });
        let rest = async { while heard.recv().await.is_some() {} };
        // Not more than a courtesy: the next contender may start while a slow node is still asked.
        drop(tokio::time::timeout(RELEASE_GRACE, rest).await);
        drop(turn);
    }

    /// Asks every node in a task of its own, so that a majority can be acted on while the slower
    /// nodes still get the call. The channel ends when all have answered or timed out.
    fn ask_each<F>(
        &self,
        ask: impl Fn(OnNode, mpsc::Sender<Option<Owned>>) -> F,
    ) -> mpsc::Receiver<Option<Owned>>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (told, heard) = mpsc::channel(self.nodes.count());
        for index in 0..self.nodes.count() {
            let ownership = self.clone();
            tokio::spawn(ask(OnNode { ownership, index }, told.clone()));
        }
        heard
    }
}

/// One grant on one node.
struct OnNode {
    ownership: Ownership,
    index: usize,
}

// === impl OnNode ===

impl OnNode {
    async fn renew_on(self, told: mpsc::Sender<Option<Owned>>) {
        let Ownership {
            key, owner, ttl, ..
        } = &self.ownership;
        let node = self.ownership.nodes.node(self.index);
        let vote = nodes::bounded(script::renew(node, key, owner, *ttl)).await;
        // Nobody listens once there is a majority.
        let _ = told.send(vote.ok()).await;
    }

    async fn release_on(self, told: mpsc::Sender<Option<Owned>>) {
        let Ownership { key, owner, .. } = &self.ownership;
        let node = self.ownership.nodes.node(self.index);
        let vote = nodes::bounded(script::release(node, key, owner)).await.ok();
        let _ = told.send(vote).await;
        drop(told);
        let mut answered = vote.is_some();
        for _ in 1..RELEASE_TRIES_MAX {
            if answered {
                return;
            }
            tokio::time::sleep(RELEASE_PAUSE).await;
            answered = nodes::bounded(script::release(node, key, owner))
                .await
                .is_ok();
        }
    }
}

impl Renew for Ownership {
    async fn renew(&mut self) -> Renewal {
        let mut votes = Votes::default();
        let mut heard = self.ask_each(OnNode::renew_on);
        while let Some(vote) = heard.recv().await {
            votes.count(vote);
            match votes.verdict(&self.nodes) {
                Verdict::Mine => return Renewal::Renewed,
                Verdict::NotMine => return Renewal::Gone,
                Verdict::Undecided => {}
            }
        }
        Renewal::Failed
    }
}

/// Tries until the lock is granted, the wait is over, there is no majority, or nobody waits.
async fn contend(
    manager: LockManager,
    nodes: Arc<Nodes>,
    key: LockKey,
    turn: Turn,
    terms: Terms,
    deadline: Instant,
    mut caller: Caller<RedlockGuard>,
) {
    if let Err(e) = nodes.check_independent().await {
        return caller.answer(Err(unavailable(e)));
    }
    let name = key.redis();
    let mut first = true;
    loop {
        caller.asks();
        let asked_at = clock::now();
        // Never dropped half way: a cancelled try leaves its keys behind.
        let mut attempt = Box::pin(manager.lock(name.as_bytes(), terms.ttl));
        let tried = match tokio::time::timeout(SLOW, &mut attempt).await {
            Ok(tried) => tried,
            Err(_slow) => match nodes.require_majority().await {
                Ok(()) => attempt.await,
                Err(e) => {
                    // Without a majority the try cannot succeed. It is waited for all the same,
                    // and released if the nodes came back meanwhile.
                    caller.answer(Err(unavailable(e)));
                    if let Ok(lock) = attempt.await {
                        drop(grant(&nodes, &key, lock.val, turn, &terms, asked_at));
                    }
                    return;
                }
            },
        };
        match tried {
            Ok(lock) => {
                nodes.forget_trouble();
                let guard = grant(&nodes, &key, lock.val, turn, &terms, asked_at);
                return caller.answer(Ok(guard));
            }
            Err(LockError::Unavailable | LockError::TtlExceeded) => {}
            Err(e) => return caller.answer(Err(unavailable(e))),
        }
        let over = clock::now() + LAST_TRY >= deadline;
        // rslock does not tell a lock that is held from nodes that are away.
        if (first || over)
            && let Err(e) = nodes.require_majority().await
        {
            return caller.answer(Err(unavailable(e)));
        }
        first = false;
        caller.hears_busy();
        let pause = POLL_MIN + (POLL_MIN * 3).mul_f64(rand::rng().random::<f64>());
        let until = if over { deadline } else { clock::now() + pause };
        tokio::select! {
            () = tokio::time::sleep_until(until) => {}
            () = caller.gone() => return,
        }
        if over {
            return caller.answer(Err(AcquireError::Busy));
        }
    }
}

fn grant(
    nodes: &Arc<Nodes>,
    key: &LockKey,
    owner: Vec<u8>,
    turn: Turn,
    terms: &Terms,
    asked_at: Instant,
) -> RedlockGuard {
    let ownership = Ownership {
        nodes: nodes.clone(),
        key: key.clone(),
        owner,
        ttl: terms.ttl,
    };
    let timing = Timing {
        ttl: terms.ttl,
        hold_max: HOLD_MAX.max(terms.ttl),
    };
    let lease = Lease::granted(asked_at, timing);
    let tenure = match terms.watchdog {
        Watchdog::On => Tenure::renewed(lease, turn, ownership.clone()),
        Watchdog::Off => Tenure::unattended(lease, turn),
    };
    RedlockGuard {
        tenure,
        ownership: Some(ownership),
    }
}

fn unavailable(e: impl std::error::Error + Send + Sync + 'static) -> AcquireError {
    AcquireError::Unavailable {
        server: SERVER,
        source: Box::new(e),
    }
}
