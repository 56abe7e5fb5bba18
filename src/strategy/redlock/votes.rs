//! What do the nodes say together? Counts the answers to one call until they decide it.

use std::future::Future;
use std::sync::Arc;

use futures::StreamExt;
use futures::stream::FuturesUnordered;

use crate::script::lock::Owned;
use crate::strategy::redlock::member::{Member, NodeError};
use crate::strategy::redlock::nodes::Nodes;

/// Votes on whether the lock is the owner's. All configured nodes count, whether they answer or not.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Votes {
    mine: usize,
    not_mine: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// A majority says so.
    Mine,
    /// So many say no that there is no majority any more.
    NotMine,
    Undecided,
}

/// One call to several nodes at once.
pub(super) struct Round<F: Future> {
    calls: FuturesUnordered<F>,
}

// === impl Votes ===

impl Votes {
    pub(super) fn count(&mut self, vote: Owned) {
        match vote {
            Owned::Mine => self.mine += 1,
            Owned::NotMine => self.not_mine += 1,
        }
    }

    /// How many have voted.
    pub(super) fn cast(self) -> usize {
        self.mine + self.not_mine
    }

    pub(super) fn verdict(self, nodes: &Nodes) -> Verdict {
        if self.mine >= nodes.quorum() {
            Verdict::Mine
        } else if self.not_mine > nodes.count() - nodes.quorum() {
            Verdict::NotMine
        } else {
            Verdict::Undecided
        }
    }
}

// === impl Round ===

impl<T, F> Round<F>
where
    T: Send + 'static,
    F: Future<Output = Result<T, NodeError>> + Send + 'static,
{
    pub(super) fn of(members: Vec<Arc<Member>>, call: impl Fn(Arc<Member>) -> F) -> Self {
        Self {
            calls: members.into_iter().map(call).collect(),
        }
    }

    /// The next answer, in the order in which they come; `None` when all have answered or were out
    /// of time.
    pub(super) async fn next(&mut self) -> Option<Result<T, NodeError>> {
        self.calls.next().await
    }

    /// Lets the slower nodes answer in the background: each must get the call, and one that hangs
    /// must be found out.
    pub(super) fn finish(mut self) {
        if !self.calls.is_empty() {
            // Spawned because a majority is enough for the caller; each call is bounded.
            tokio::spawn(async move { while self.calls.next().await.is_some() {} });
        }
    }
}
