//! `redlock`: a majority of independent Redis, each asked by a script.
//!
//! The recipe is RedLock of the Redis documentation ("Distributed Locks with Redis").
//!
//! # Bounds
//! An acquire, a renewal and a release go to all nodes at once and end as soon as a majority of all
//! that are *configured* has said the same; each node has 250 ms. One that was out of time is left
//! alone until it answers a probe, so a node that hangs costs nobody anything while a majority
//! answers, and 250 ms when none does. A release goes to every node, also to those that had answered
//! "no" or nothing; one that misses it gets it when it is back.
//!
//! # What is used of the crate rslock
//! Nothing: it is the yardstick in `benches/peers`. Its tries wait for all nodes, for 500 ms each;
//! a cancelled try leaves its keys behind; its release says nothing; a failed extension gives the lock
//! up everywhere and makes it anew. There was no part of it left to build on.
//!
//! # Waiting
//! A contender that found the lock held asks again after 3 to 12 ms, at random. It is not woken by a
//! release: all who wait would ask at once, and split the votes. What that would save is little,
//! since within a process a lock is passed on without any waiting, and a process that waits leaves a
//! mark on the nodes, which ends the run of those that pass it on.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;

use super::{Entry, Kind, Missing, Need, Servers};
use crate::deduct::Deduct;
use crate::keys::LockKey;
use crate::lock::guard::LeasedGuard;
use crate::lock::leased::{Asked, LeaseServer, LeasedLock, Look, Others, Passed, Source};
use crate::lock::watchdog::Renewal;
use crate::lock::{self, AcquireError, Fence, Guarantees, Lock, Released, Terms};
use crate::script::lock::{self as script, Owned};
use crate::script::vote::{Pass, Take};
use crate::strategy::redlock::member::{Member, NodeError};
use crate::strategy::redlock::nodes::Nodes;
pub use crate::strategy::redlock::nodes::UnsafeNodes;
use crate::strategy::redlock::votes::{Round, Verdict, Votes};

mod member;
mod nodes;
mod votes;

/// Fewest nodes: with three, one may fail.
pub const NODES_MIN: usize = 3;
/// The shortest lease, in milliseconds: three node timeouts. A shorter one may be over before a
/// majority has been asked, when one node does not answer.
pub const LEASE_MS_MIN: i64 = 3 * member::NODE_TIMEOUT.as_millis() as i64;
/// A held lock is asked for again after this long at least, and at most four times as long: two
/// contenders that split the votes must not meet again, and a try takes about a millisecond.
const POLL_MIN: Duration = Duration::from_millis(3);
/// How long a process is known to wait: longer than the longest pause between its tries.
const MARK: Duration = Duration::from_millis(50);

/// Exclusion by a majority of independent Redis. Clones share connections and queue.
#[derive(Debug, Clone)]
pub struct RedlockLock(LeasedLock<Majority>);

/// The nodes, and who asks them.
#[derive(Debug, Clone)]
pub struct Majority {
    nodes: Arc<Nodes>,
    /// Tells this process's contenders from those of others.
    process: Arc<str>,
}

/// One acquisition.
#[derive(Debug, Clone)]
pub struct Claim {
    key: LockKey,
    /// Of its latest try: a failed one is undone in the background, and must not undo the next.
    owner: Arc<str>,
    ttl: Duration,
}

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
    /// Connects on first use.
    ///
    /// # Errors
    /// Fewer than three nodes, an even number, a URL twice, or one that is not a Redis URL. That two
    /// URLs lead to the same server is found at the first contact, and then told by `acquire`.
    pub fn new(urls: &[String]) -> Result<Self, UnsafeNodes> {
        Ok(Self(LeasedLock::new(Majority {
            nodes: Arc::new(Nodes::new(urls)?),
            process: random(),
        })))
    }

    fn nodes(&self) -> &Nodes {
        &self.0.server().nodes
    }
}

impl Lock for RedlockLock {
    type Guard = LeasedGuard<Majority>;

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
        self.nodes()
            .check_independent()
            .await
            .map_err(unavailable)?;
        self.nodes().require_majority().await.map_err(unavailable)
    }

    async fn acquire(&self, key: &LockKey, terms: &Terms) -> Result<Self::Guard, AcquireError> {
        self.0.acquire(key, terms).await
    }
}

// === impl Majority ===

impl LeaseServer for Majority {
    const NAME: &'static str = "redlock";
    type Claim = Claim;

    fn claim(&self, key: &LockKey, ttl: Duration) -> Claim {
        Claim {
            key: key.clone(),
            owner: random(),
            ttl,
        }
    }

    async fn ask(&self, claim: &mut Claim) -> Asked {
        if let Err(e) = self.nodes.check_independent().await {
            return Asked::Unreached(Box::new(e));
        }
        let (members, _spared) = self.nodes.to_ask();
        let call = Take::new(&claim.key, &claim.owner, claim.ttl, &self.process, MARK);
        let call = Arc::new(call);
        let mut round = Round::of(members, |member| {
            let call = call.clone();
            async move { member.answer(call.ask(member.node())).await }
        });
        let mut votes = Votes::default();
        let mut failed = None;
        let verdict = self.decide(&mut round, &mut votes, &mut failed).await;
        round.finish();
        match verdict {
            Verdict::Mine => {
                self.nodes.forget_trouble();
                Asked::Granted {
                    fence: Fence::IssuedByStore,
                }
            }
            Verdict::NotMine => {
                self.nodes.forget_trouble();
                self.undo(claim);
                Asked::Held { left: None }
            }
            Verdict::Undecided => {
                self.undo(claim);
                self.split_or_away(votes, failed)
            }
        }
    }

    async fn changed(&self, _claim: &mut Claim, _left: Option<Duration>) {
        let jitter = (POLL_MIN * 3).mul_f64(rand::rng().random::<f64>());
        tokio::time::sleep(POLL_MIN + jitter).await;
    }

    async fn renew(&self, claim: &Claim) -> Renewal {
        let (members, _spared) = self.nodes.to_ask();
        let mut round = Round::of(members, |member| {
            let claim = claim.clone();
            async move {
                let owner = claim.owner.as_bytes();
                let call = script::renew(member.node(), &claim.key, owner, claim.ttl);
                member.answer(call).await
            }
        });
        let mut votes = Votes::default();
        let verdict = self.decide(&mut round, &mut votes, &mut None).await;
        round.finish();
        match verdict {
            Verdict::Mine => Renewal::Renewed,
            Verdict::NotMine => Renewal::Gone,
            Verdict::Undecided => Renewal::Failed,
        }
    }

    async fn release(&self, claim: &Claim) -> Released {
        let (members, spared) = self.nodes.to_ask();
        owe(&spared, claim);
        let mut round = Round::of(members, |member| release_on(member, claim.clone()));
        let mut votes = Votes::default();
        let verdict = self.decide(&mut round, &mut votes, &mut None).await;
        round.finish();
        released(verdict)
    }

    async fn pass(&self, from: &Claim, to: &mut Claim, look: Look) -> Passed {
        let (members, spared) = self.nodes.to_ask();
        owe(&spared, from);
        let process = match look {
            Look::Around => Some(&*self.process),
            Look::Ahead => None,
        };
        let call = Pass::new(&from.key, &from.owner, &to.owner, to.ttl, process);
        let shared = Arc::new((call, from.clone()));
        let mut round = Round::of(members, |member| {
            let shared = shared.clone();
            async move {
                let (call, from) = &*shared;
                let answer = member.answer(call.ask(member.node())).await;
                if answer.is_err() {
                    member.owe(&from.key, &from.owner, from.ttl);
                }
                answer
            }
        });
        let (mut freed, mut taken) = (Votes::default(), Votes::default());
        let (mut others, mut failed) = (Others::None, None);
        while freed.verdict(&self.nodes) == Verdict::Undecided
            || taken.verdict(&self.nodes) == Verdict::Undecided
        {
            match round.next().await {
                Some(Ok(vote)) => {
                    freed.count(vote.freed);
                    taken.count(vote.taken);
                    if vote.others_wait {
                        others = Others::Waiting;
                    }
                }
                Some(Err(e)) => failed = Some(e),
                None => break,
            }
        }
        round.finish();
        let next = match taken.verdict(&self.nodes) {
            Verdict::Mine => Asked::Granted {
                fence: Fence::IssuedByStore,
            },
            Verdict::NotMine => {
                self.undo(to);
                Asked::Held { left: None }
            }
            Verdict::Undecided => {
                self.undo(to);
                self.split_or_away(taken, failed)
            }
        };
        Passed {
            released: released(freed.verdict(&self.nodes)),
            next: Some(next),
            others,
        }
    }

    fn trouble(&self) -> Option<Source> {
        self.nodes.trouble().map(|e| Box::new(e) as Source)
    }
}

impl Majority {
    /// Counts until the nodes have decided, or have all answered.
    async fn decide<F>(
        &self,
        round: &mut Round<F>,
        votes: &mut Votes,
        failed: &mut Option<NodeError>,
    ) -> Verdict
    where
        F: Future<Output = Result<Owned, NodeError>> + Send + 'static,
    {
        loop {
            let verdict = votes.verdict(&self.nodes);
            if verdict != Verdict::Undecided {
                return verdict;
            }
            match round.next().await {
                Some(Ok(answer)) => votes.count(answer),
                Some(Err(e)) => *failed = Some(e),
                None => return Verdict::Undecided,
            }
        }
    }

    /// Releases a try that had no majority, on every node, and gives the claim another owner.
    fn undo(&self, claim: &mut Claim) {
        let failed = claim.clone();
        claim.owner = random();
        let server = self.clone();
        // Spawned because the next try need not wait: it has an owner of its own, and each node
        // executes what it is sent in order.
        tokio::spawn(async move { server.release(&failed).await });
    }

    /// What a try is called that was decided neither way.
    fn split_or_away(&self, votes: Votes, failed: Option<NodeError>) -> Asked {
        match failed {
            Some(e) if votes.cast() < self.nodes.quorum() => {
                Asked::Unreached(Box::new(self.nodes.no_majority(votes.cast(), e)))
            }
            Some(_) | None => Asked::Held { left: None },
        }
    }
}

async fn release_on(member: Arc<Member>, claim: Claim) -> Result<Owned, NodeError> {
    member.release(&claim.key, &claim.owner, claim.ttl).await
}

/// Nodes that are spared miss a release, which they get when they are back.
fn owe(spared: &[Arc<Member>], claim: &Claim) {
    for member in spared {
        member.owe(&claim.key, &claim.owner, claim.ttl);
    }
}

fn released(verdict: Verdict) -> Released {
    match verdict {
        Verdict::Mine => Released::Released,
        Verdict::NotMine => Released::NotOwner,
        Verdict::Undecided => Released::Pending,
    }
}

fn random() -> Arc<str> {
    lock::random_owner().into()
}

fn unavailable(e: impl std::error::Error + Send + Sync + 'static) -> AcquireError {
    AcquireError::Unavailable {
        server: Majority::NAME,
        source: Box::new(e),
    }
}
