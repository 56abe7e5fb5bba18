//! `zookeeper`: a queue of ephemeral sequential nodes per activity.
//!
//! The recipe is "Locks" of the ZooKeeper documentation: the contender with the lowest node holds
//! the lock, each of the others watches the one before it. Session, requests and watches are the
//! crate `zookeeper-client`'s; its ready-made recipe is not used, since its guard deletes the node a
//! second time and cannot be told not to.
//!
//! # What it costs
//! An acquire that finds nobody is one round trip: the list of contenders is asked for together with
//! the creation, and answered after it. A release is one delete. Within a process a release deletes
//! its own node and creates the next contender's in one transaction: that one goes to the end of the
//! line, so other processes are served in the order in which they came.
//!
//! # The lease
//! A lease here is the session: it lives while the server hears from this process, so
//! `Terms::ttl` and `Terms::watchdog` have no meaning. The holder does not trust the crate's
//! heartbeat alone: it confirms its own node at a third of the session timeout, and stops when that
//! is not answered in time. A holder that is not done after 20 ms watches its node and its session
//! besides; one that is done sooner learns by its release whether its node was still there.

use std::sync::Arc;
use std::time::Duration;

use zookeeper_client::{Client, Error, OneshotWatcher, SessionState};

use super::{Entry, Kind, Missing, Need, Servers};
use crate::clock;
use crate::deduct::Deduct;
use crate::keys::LockKey;
use crate::lock::guard::LeasedGuard;
use crate::lock::lease::{Event, Timing};
use crate::lock::leased::{Asked, LeaseServer, LeasedLock, Look, Others, Passed, Source};
use crate::lock::watchdog::{Care, HOLD_MAX, Renewal};
use crate::lock::{AcquireError, Fence, Guarantees, Lock, Released, Terms};
use crate::sale::Watchdog;
use crate::strategy::zookeeper::contender::{Moved, Name, Node, Place};
use crate::strategy::zookeeper::session::Sessions;

mod contender;
mod session;

pub use session::SESSION_TIMEOUT;

/// Longest wait for a session.
const SESSION_WAIT: Duration = Duration::from_millis(1_500);
/// Times a contender joins the queue again when its session ended or its node was deleted.
const JOINS_MAX: u32 = 3;
/// When a holder sets its watches: most are done by then.
const WATCH_AFTER: Duration = Duration::from_millis(20);

/// Exclusion by ZooKeeper. Clones share session and queue.
#[derive(Debug, Clone)]
pub struct ZookeeperLock(LeasedLock<Ensemble>);

/// The servers, and this process's session with them.
#[derive(Debug, Clone)]
pub struct Ensemble(Arc<Sessions>);

/// One acquisition.
#[derive(Debug)]
pub struct Claim {
    name: Name,
    /// The session in which its node may have been created.
    client: Option<Client>,
    node: Option<Node>,
    /// Fires when the one before it is gone.
    before: Option<OneshotWatcher>,
}

pub(super) const ENTRY: Entry = Entry {
    kind: Kind::Lock,
    needs: &[Need::Zookeeper],
    open,
};

fn open(servers: &Servers) -> Result<Box<dyn Deduct>, Missing> {
    let advice = "no ZooKeeper is configured: set zookeeper to host:port,host:port";
    let ensemble = servers
        .zookeeper
        .as_deref()
        .ok_or_else(|| Missing(advice.to_string()))?;
    Ok(servers.locked(ZookeeperLock::new(ensemble)))
}

/// The session timeout that the servers grant where `SESSION_TIMEOUT` is asked for. They change what
/// is outside of 2 to 20 of their ticks (ZooKeeper Programmer's Guide, "ZooKeeper Sessions").
///
/// Bounded by its caller: servers that do not answer are waited for.
///
/// # Errors
/// Why there is no session.
///
/// # Cancel safety
/// Dropped, the session ends with its time.
pub async fn granted_session_timeout(servers: &str) -> Result<Duration, String> {
    let session = session::connect(servers).await;
    Ok(session
        .map_err(|e| format!("no session with {servers}: {e}"))?
        .session_timeout())
}

// === impl ZookeeperLock ===

impl ZookeeperLock {
    /// `servers` is a connect string, `host:port,host:port/chroot`. Connects on first use, and again
    /// whenever the session has ended.
    pub fn new(servers: &str) -> Self {
        let sessions = Arc::new(Sessions::new(servers));
        Self(LeasedLock::new(Ensemble(sessions)))
    }
}

impl Lock for ZookeeperLock {
    type Guard = LeasedGuard<Ensemble>;

    fn guarantees(&self) -> Guarantees {
        Guarantees {
            protects_by: "the lowest ephemeral sequential node of a directory, watched by its successor",
            stock_lives_in: "database",
            fair: true,
            fenced: true,
            survives_failover: true,
            frees_after_crash: "session",
            note: "First come, first served across processes, which send one contender each. The lease is \
                   the session: lock.ttl_ms and lock.watchdog have no effect. Survives the loss of a \
                   minority of an ensemble; with a single server, its restart.",
        }
    }

    async fn ready(&self) -> Result<(), AcquireError> {
        let prepared = self.0.server().prepare().await;
        prepared.map_err(|source| AcquireError::Unavailable {
            server: Ensemble::NAME,
            source,
        })
    }

    async fn acquire(&self, key: &LockKey, terms: &Terms) -> Result<Self::Guard, AcquireError> {
        self.0.acquire(key, terms).await
    }
}

// === impl Ensemble ===

impl LeaseServer for Ensemble {
    const NAME: &'static str = "zookeeper";
    /// A few round trips.
    const PROBE: Duration = Duration::from_millis(100);
    type Claim = Claim;

    fn claim(&self, key: &LockKey, _ttl: Duration) -> Claim {
        Claim {
            name: Name::new(key.znode()),
            client: None,
            node: None,
            before: None,
        }
    }

    async fn prepare(&self) -> Result<(), Source> {
        let session = self.0.client(clock::now() + SESSION_WAIT).await;
        session.map(|_client| ()).map_err(Into::into)
    }

    async fn ask(&self, claim: &mut Claim) -> Asked {
        let mut last = Error::SessionExpired;
        for _ in 0..JOINS_MAX {
            let client = match self.0.client(clock::now() + SESSION_WAIT).await {
                Ok(client) => client,
                Err(e) => return Asked::Unreached(Box::new(e)),
            };
            match claim.place(&client).await {
                Ok(Place::First) => return claim.granted(),
                Ok(Place::Behind(before)) => {
                    claim.before = before;
                    return Asked::Queued;
                }
                Ok(Place::Gone) => last = Error::NoNode,
                Err(e) if is_over(&e) => last = e,
                Err(e) => return Asked::Unanswered(Box::new(e)),
            }
            // The node is gone, with its session or without: from the start.
            claim.forget();
        }
        Asked::Unreached(Box::new(last))
    }

    async fn changed(&self, claim: &mut Claim, _left: Option<Duration>) {
        if let Some(before) = claim.before.take() {
            before.changed().await;
        }
    }

    /// A read alone may come from a server that has lost its leader; `sync` asks the leader, and
    /// requests of one session are answered in order.
    async fn renew(&self, claim: &Claim) -> Renewal {
        let Some(node) = &claim.node else {
            return Renewal::Gone;
        };
        let synced = node.client.sync(&node.path);
        let stat = node.client.check_stat(&node.path);
        match tokio::try_join!(synced, stat) {
            Ok(((), Some(stat))) if stat.czxid == node.czxid => Renewal::Renewed,
            Ok(((), _)) | Err(Error::SessionExpired | Error::ClientClosed) => Renewal::Gone,
            Err(_) => Renewal::Failed,
        }
    }

    async fn release(&self, claim: &Claim) -> Released {
        match &claim.node {
            Some(node) => node.delete().await,
            None => claim.delete_unknown().await,
        }
    }

    async fn pass(&self, from: &Claim, to: &mut Claim, _look: Look) -> Passed {
        let moved = match &from.node {
            Some(node) => {
                to.client = Some(node.client.clone());
                to.name.take_over(node).await
            }
            None => Ok(Moved::Gone),
        };
        let (released, next) = match moved {
            Ok(Moved::Moved { node, place }) => {
                to.node = Some(node);
                let next = match place {
                    Place::First => to.granted(),
                    Place::Behind(_) | Place::Gone => Asked::Queued,
                };
                (Released::Released, Some(next))
            }
            Ok(Moved::Gone) => (Released::NotOwner, None),
            Err(e) if is_over(&e) => (Released::NotOwner, None),
            Err(e) => (Released::Pending, Some(Asked::Unanswered(Box::new(e)))),
        };
        Passed {
            released,
            next,
            // They need no consideration: the server has the line.
            others: Others::None,
        }
    }

    /// Tells when its node is deleted, its session ends, or its connection breaks.
    async fn watch(&self, claim: &Claim, told: &(dyn Fn(Event) + Send + Sync)) {
        let Some(node) = &claim.node else { return };
        let half = node.client.session_timeout() / 2;
        let mut states = node.client.state_watcher();
        let mut state = states.state();
        loop {
            match state {
                // The server forgets a session one timeout after it last heard from it, which was
                // before this edge: half of it is on the safe side.
                SessionState::Disconnected => told(Event::Suspected {
                    until: clock::now() + half - WATCH_AFTER,
                }),
                SessionState::SyncConnected | SessionState::ConnectedReadOnly => {
                    told(Event::Reassured);
                }
                SessionState::AuthFailed | SessionState::Expired | SessionState::Closed => {
                    return told(Event::Gone);
                }
            }
            tokio::select! {
                changed = states.changed() => state = changed,
                () = node.deleted() => return told(Event::Gone),
            }
        }
    }

    fn timing(&self, claim: &Claim, _ttl: Duration) -> Timing {
        let client = claim.client.as_ref();
        let session_timeout = client.map_or(SESSION_TIMEOUT, Client::session_timeout);
        // A quarter is left for a follower that has not yet told its leader about our last request.
        Timing {
            ttl: session_timeout * 3 / 4,
            hold_max: HOLD_MAX,
        }
    }

    fn care(&self, _watchdog: Watchdog) -> Care {
        Care::Watched { after: WATCH_AFTER }
    }

    fn trouble(&self) -> Option<Source> {
        self.0.trouble().map(|e| Box::new(e) as Source)
    }

    async fn answers(&self) -> Result<(), Source> {
        let client = self.0.client(clock::now() + SESSION_WAIT).await?;
        client.check_stat("/").await?;
        Ok(())
    }
}

// === impl Claim ===

impl Claim {
    /// Joins the queue, or looks where its node stands in it.
    async fn place(&mut self, client: &Client) -> Result<Place, Error> {
        let known = self.client.as_ref();
        let is_same = known.is_some_and(|known| known.session_id() == client.session_id());
        if let Some(node) = &self.node
            && is_same
        {
            return self.name.look(node).await;
        }
        // Its session, if there was another, has ended and taken the node with it.
        self.node = None;
        self.client = Some(client.clone());
        if is_same && let Some(node) = self.name.find(client).await? {
            // The answer to its creation was lost.
            return self.name.look(self.node.insert(node)).await;
        }
        let (node, place) = self.name.join(client).await?;
        self.node = Some(node);
        Ok(place)
    }

    fn granted(&mut self) -> Asked {
        match &self.node {
            Some(node) => Asked::Granted {
                fence: Fence::Token(node.czxid),
            },
            None => Asked::Unanswered(Box::new(Error::NoNode)),
        }
    }

    fn forget(&mut self) {
        (self.client, self.node, self.before) = (None, None, None);
    }

    /// Deletes the node of a creation whose answer nobody has.
    async fn delete_unknown(&self) -> Released {
        let Some(client) = &self.client else {
            return Released::NotOwner;
        };
        match self.name.find(client).await {
            Ok(Some(node)) => node.delete().await,
            Ok(None) => Released::NotOwner,
            Err(e) if is_over(&e) => Released::NotOwner,
            Err(_) => Released::Pending,
        }
    }
}

/// The session has ended, and its nodes with it.
fn is_over(e: &Error) -> bool {
    matches!(
        e,
        Error::SessionExpired | Error::AuthFailed | Error::ClientClosed
    )
}
