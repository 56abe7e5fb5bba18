//! The nodes of a RedLock: are they enough, are they independent, does a majority answer?

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::join_all;

use crate::clock::{self, Instant};
use crate::script::node::{CallError, Node};
use crate::strategy::redlock::NODES_MIN;
use crate::strategy::redlock::member::{Member, NodeError, bounded};

/// A node whose identity is unknown is asked for it again after this long, not on every acquire.
const IDENTIFY_PAUSE: Duration = Duration::from_secs(5);

/// The configured nodes, all of which count for the majority.
#[derive(Debug)]
pub(super) struct Nodes {
    members: Vec<Arc<Member>>,
    identities: tokio::sync::Mutex<Identities>,
    /// All nodes were reached once, and no two were the same.
    independent: AtomicBool,
    trouble: Mutex<Option<Arc<NoMajority>>>,
}

#[derive(Debug)]
struct Identities {
    /// What each node said; `None` while it has not been reached.
    run_ids: Vec<Option<String>>,
    checked_at: Option<Instant>,
}

/// A set of nodes on which RedLock would not exclude.
#[derive(Debug, thiserror::Error)]
pub enum UnsafeNodes {
    #[error(
        "RedLock needs at least {NODES_MIN} independent Redis and {given} are given: add nodes, or use \
         redis-set-nx with one"
    )]
    TooFew { given: usize },
    #[error(
        "{given} RedLock nodes tolerate no more failures than {}: leave one out, or add one",
        given - 1
    )]
    Even { given: usize },
    #[error("{address} is given twice as a RedLock node: each must be a server of its own")]
    Twice { address: String },
    #[error("a RedLock node's URL is not a Redis URL: {0}")]
    Url(#[from] redis::RedisError),
}

/// Two addresses lead to the same server, so its vote would count twice.
#[derive(Debug, thiserror::Error)]
#[error(
    "{first} and {second} are the same Redis (run_id {run_id}): RedLock needs independent servers; \
     correct the addresses"
)]
pub(super) struct SameServer {
    first: String,
    second: String,
    run_id: String,
}

/// Fewer nodes answer than a majority.
#[derive(Debug, thiserror::Error)]
#[error(
    "{answered} of {count} nodes answer and {quorum} are needed; the first that does not: {source}"
)]
pub(super) struct NoMajority {
    answered: usize,
    count: usize,
    quorum: usize,
    source: NodeError,
}

// === impl Nodes ===

impl Nodes {
    pub(super) fn new(urls: &[String]) -> Result<Self, UnsafeNodes> {
        let given = urls.len();
        if given < NODES_MIN {
            return Err(UnsafeNodes::TooFew { given });
        }
        if given.is_multiple_of(2) {
            return Err(UnsafeNodes::Even { given });
        }
        let members = urls
            .iter()
            .map(|url| Member::new(url).map(Arc::new))
            .collect::<Result<Vec<_>, _>>()?;
        let mut seen = HashSet::new();
        for member in &members {
            let address = address(member.node());
            if !seen.insert(address.clone()) {
                return Err(UnsafeNodes::Twice { address });
            }
        }
        Ok(Self {
            members,
            identities: tokio::sync::Mutex::new(Identities {
                run_ids: vec![None; given],
                checked_at: None,
            }),
            independent: AtomicBool::new(false),
            trouble: Mutex::default(),
        })
    }

    pub(super) fn count(&self) -> usize {
        self.members.len()
    }

    /// More than half of all that are configured, whether they answer or not.
    pub(super) fn quorum(&self) -> usize {
        self.members.len() / 2 + 1
    }

    /// Those to ask, and those to spare because they did not answer lately. Without a majority among
    /// the first, all are asked: one may be back.
    pub(super) fn to_ask(&self) -> (Vec<Arc<Member>>, Vec<Arc<Member>>) {
        let (trusted, suspected): (Vec<_>, Vec<_>) =
            self.members.iter().cloned().partition(|m| m.is_trusted());
        if trusted.len() < self.quorum() {
            (self.members.clone(), Vec::new())
        } else {
            (trusted, suspected)
        }
    }

    /// Why there was no majority when last looked for.
    pub(super) fn trouble(&self) -> Option<Arc<NoMajority>> {
        self.lock_trouble().clone()
    }

    /// A majority has answered.
    pub(super) fn forget_trouble(&self) {
        *self.lock_trouble() = None;
    }

    fn lock_trouble(&self) -> MutexGuard<'_, Option<Arc<NoMajority>>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks every node whether it is there; takes 250 ms at most.
    pub(super) async fn require_majority(&self) -> Result<(), Arc<NoMajority>> {
        let ping = redis::cmd("PING");
        let calls = self
            .members
            .iter()
            .map(|m| m.answer(m.node().query::<String>(&ping)));
        let answers = join_all(calls).await;
        let answered = answers.iter().filter(|a| a.is_ok()).count();
        let missing = answers.into_iter().find_map(Result::err);
        match missing.filter(|_| answered < self.quorum()) {
            Some(source) => Err(self.no_majority(answered, source)),
            None => {
                self.forget_trouble();
                Ok(())
            }
        }
    }

    /// Notes that only `answered` did.
    pub(super) fn no_majority(&self, answered: usize, source: NodeError) -> Arc<NoMajority> {
        let trouble = Arc::new(NoMajority {
            answered,
            count: self.count(),
            quorum: self.quorum(),
            source,
        });
        *self.lock_trouble() = Some(trouble.clone());
        trouble
    }

    /// Compares the run_id of all nodes that have been reached. Costs a round trip until all have.
    pub(super) async fn check_independent(&self) -> Result<(), SameServer> {
        if self.independent.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut known = self.identities.lock().await;
        let unknown = known.run_ids.iter().any(Option::is_none);
        let due = known
            .checked_at
            .is_none_or(|at| clock::now() >= at + IDENTIFY_PAUSE);
        if unknown && due {
            known.checked_at = Some(clock::now());
            let calls = self.members.iter().map(|m| bounded(run_id(m.node())));
            for (known, said) in known.run_ids.iter_mut().zip(join_all(calls).await) {
                if let Ok(run_id) = said {
                    *known = run_id;
                }
            }
        }
        let mut seen: HashMap<&str, usize> = HashMap::new();
        for (index, run_id) in known.run_ids.iter().enumerate() {
            let Some(run_id) = run_id else { continue };
            if let Some(earlier) = seen.insert(run_id, index) {
                let error = SameServer {
                    first: address(self.members[earlier].node()),
                    second: address(self.members[index].node()),
                    run_id: run_id.clone(),
                };
                // Asked again next time: the addresses may be put right behind the same names.
                known.run_ids.fill(None);
                known.checked_at = None;
                return Err(error);
            }
        }
        let all_known = known.run_ids.iter().all(Option::is_some);
        self.independent.store(all_known, Ordering::Release);
        Ok(())
    }
}

async fn run_id(node: &Node) -> Result<Option<String>, CallError> {
    let info: String = node.query(redis::cmd("INFO").arg("server")).await?;
    Ok(info
        .lines()
        .find_map(|line| line.strip_prefix("run_id:"))
        .map(|id| id.trim().to_string()))
}

/// Host and port, without what the URL may keep secret.
fn address(node: &Node) -> String {
    node.client().get_connection_info().addr().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn urls(ports: &[u16]) -> Vec<String> {
        ports
            .iter()
            .map(|p| format!("redis://127.0.0.1:{p}"))
            .collect()
    }

    #[test]
    fn too_few_or_an_even_number_of_nodes_are_refused_with_advice() {
        let few = Nodes::new(&urls(&[1])).unwrap_err().to_string();
        assert!(
            few.contains("at least 3") && few.contains("redis-set-nx"),
            "{few}"
        );
        let even = Nodes::new(&urls(&[1, 2, 3, 4])).unwrap_err().to_string();
        assert!(even.contains("no more failures than 3"), "{even}");
    }

    #[test]
    fn the_same_address_twice_is_refused() {
        let error = Nodes::new(&urls(&[1, 2, 1])).unwrap_err();
        assert!(matches!(error, UnsafeNodes::Twice { .. }), "{error}");
    }
}
