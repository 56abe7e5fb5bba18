//! `zookeeper`: a queue of ephemeral sequential nodes per activity, by the crate `zookeeper-client`.
//!
//! The recipe is "Locks" of the ZooKeeper documentation: the contender with the lowest node holds
//! the lock, each of the others watches the one before it.
//!
//! A lease here is the session: it lives while the server hears from this process, so
//! `Terms::ttl` and `Terms::watchdog` have no meaning. The holder does not trust the crate's
//! heartbeat alone: it confirms its own node at a third of the session timeout, and stops when that
//! is not answered in time.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use uuid::Uuid;
use zookeeper_client::{
    Acls, Client, CreateMode, Error, EventType, LockOptions, LockPrefix, OneshotWatcher,
    OwnedLockClient, SessionState, StateWatcher,
};

use super::{Entry, Kind, Missing, Need, Servers};
use crate::clock::{self, Instant};
use crate::deduct::Deduct;
use crate::keys::LockKey;
use crate::lock::detached::{CALL_MIN, Caller, detached};
use crate::lock::lease::{Event, Lease, Timing};
use crate::lock::wait::{Queue, Turn};
use crate::lock::watchdog::{HOLD_MAX, Informant, Renew, Renewal, Tenure};
use crate::lock::{AcquireError, Fence, Guarantees, Guard, Lock, Released, Terms};
use crate::strategy::zookeeper::session::Sessions;

mod session;

pub use session::SESSION_TIMEOUT;

/// How errors name the servers.
const SERVER: &str = "zookeeper";
/// Longest wait for a session when asked whether there is one.
const READY_WAIT: Duration = Duration::from_millis(1_500);
/// What every name in a lock's directory contains; the crate finds contenders by it.
const CONTENDER: &str = "lk-";
/// Longest time to wait for the answer to one request of a holder.
const CALL_TIMEOUT: Duration = Duration::from_secs(1);
/// Left of the wait for finding out whether the servers answer at all: a few round trips.
const PROBE: Duration = Duration::from_millis(100);
/// Times a contender joins the queue again when its session ended or its node was deleted.
const JOINS_MAX: u32 = 3;
/// Releases tried in the background: together they outlast the session, which ends the node too.
const RELEASE_TRIES_MAX: u32 = 20;
const RELEASE_PAUSE: Duration = Duration::from_millis(250);

/// Exclusion by ZooKeeper.
#[derive(Debug, Clone)]
pub struct ZookeeperLock {
    sessions: Arc<Sessions>,
    queue: Queue,
}

/// The lowest node of a lock's directory.
#[derive(Debug)]
pub struct ZookeeperGuard {
    tenure: Tenure,
    /// The transaction that created the node: ZooKeeper numbers them in one order.
    czxid: i64,
    /// Watches the session and the node on behalf of the tenure.
    watch: AbortHandle,
    /// Taken by the release; a guard that is dropped with it releases in the background.
    ownership: Option<Ownership>,
}

/// One node that was the lowest.
#[derive(Debug)]
struct Ownership {
    contender: Contender,
    /// Deletes the node once more when it is dropped; there is no way to tell it not to.
    lock: OwnedLockClient,
}

/// A node of a lock's directory, by the transaction that created it.
#[derive(Debug, Clone)]
struct Contender {
    client: Client,
    path: String,
    czxid: i64,
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
    /// whenever the session has ended. Clones share session and queue.
    pub fn new(servers: &str) -> Self {
        Self {
            sessions: Arc::new(Sessions::new(servers)),
            queue: Queue::default(),
        }
    }
}

impl Lock for ZookeeperLock {
    type Guard = ZookeeperGuard;

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
        let deadline = clock::now() + READY_WAIT;
        self.sessions
            .client(deadline)
            .await
            .map(|_session| ())
            .map_err(unavailable)
    }

    async fn acquire(&self, key: &LockKey, terms: &Terms) -> Result<ZookeeperGuard, AcquireError> {
        let deadline = clock::now() + terms.wait;
        let turn = match self.queue.turn(&key.znode(), deadline).await {
            Ok(turn) => turn,
            Err(_no_turn) => {
                return Err(match self.sessions.trouble() {
                    Some(e) => unavailable(e),
                    None => AcquireError::Busy,
                });
            }
        };
        let (sessions, key) = (self.sessions.clone(), key.clone());
        detached(SERVER, deadline, |caller| {
            contend(sessions, key, turn, deadline, caller)
        })
        .await
    }
}

// === impl ZookeeperGuard ===

impl Guard for ZookeeperGuard {
    fn fence(&self) -> Fence {
        Fence::Token(self.czxid)
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
        // A task of its own: a release must reach the server even if its caller is dropped.
        tokio::spawn(ownership.release(turn, answer));
        answered.await.unwrap_or(Released::Pending)
    }
}

impl Drop for ZookeeperGuard {
    fn drop(&mut self) {
        self.watch.abort();
        let Some(ownership) = self.ownership.take() else {
            return;
        };
        let turn = self.tenure.end();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let (nobody, _) = oneshot::channel();
            // Spawned because drop cannot wait.
            runtime.spawn(ownership.release(turn, nobody));
        } else {
            // Its drop needs a runtime. There is none, so the session ends with the process.
            std::mem::forget(ownership.lock);
        }
    }
}

// === impl Ownership ===

impl Ownership {
    async fn release(self, turn: Option<Turn>, answer: oneshot::Sender<Released>) {
        let mut released = self.contender.delete().await;
        let _ = answer.send(released);
        drop(turn);
        for _ in 1..RELEASE_TRIES_MAX {
            if released != Released::Pending {
                break;
            }
            tokio::time::sleep(RELEASE_PAUSE).await;
            released = self.contender.delete().await;
        }
        drop(self.lock);
    }
}

// === impl Contender ===

impl Contender {
    async fn delete(&self) -> Released {
        match tokio::time::timeout(CALL_TIMEOUT, self.client.delete(&self.path, None)).await {
            Ok(Ok(())) => Released::Released,
            // A session that has ended took its nodes with it.
            Ok(Err(Error::NoNode | Error::SessionExpired)) => Released::NotOwner,
            Ok(Err(_)) | Err(_) => Released::Pending,
        }
    }
}

impl Renew for Contender {
    /// A read alone may come from a server that has lost its leader; `sync` asks the leader, and
    /// requests of one session are answered in order.
    async fn renew(&mut self) -> Renewal {
        let synced = self.client.sync(&self.path);
        let stat = self.client.check_stat(&self.path);
        match tokio::try_join!(synced, stat) {
            Ok(((), Some(stat))) if stat.czxid == self.czxid => Renewal::Renewed,
            Ok(((), _)) | Err(Error::SessionExpired | Error::ClientClosed) => Renewal::Gone,
            Err(_) => Renewal::Failed,
        }
    }
}

/// Joins the queue and waits in it until the lock is granted, the wait is over, or nobody waits.
async fn contend(
    sessions: Arc<Sessions>,
    key: LockKey,
    turn: Turn,
    deadline: Instant,
    mut caller: Caller<ZookeeperGuard>,
) {
    let deadline = deadline.max(clock::now() + CALL_MIN);
    let mut last = Error::SessionExpired;
    for _ in 0..JOINS_MAX {
        caller.asks();
        let client = match sessions.client(deadline).await {
            Ok(client) => client,
            Err(e) => return caller.answer(Err(unavailable(e))),
        };
        // Stopped a little before the deadline, to find out why it was not granted.
        let stop_at = deadline - PROBE.min(deadline.saturating_duration_since(clock::now()) / 2);
        let joined = tokio::select! {
            joined = join(&client, &key) => joined,
            () = tokio::time::sleep_until(stop_at) => {
                return caller.answer(Err(refusal(&client, deadline).await));
            }
            // Dropping the crate's future deletes the node in the background.
            () = caller.gone() => return,
        };
        match joined {
            Ok(joined) => return caller.answer(Ok(joined.grant(turn))),
            // The session or the node is gone, and nothing is left behind: from the start.
            Err(
                e @ (Error::SessionExpired
                | Error::AuthFailed
                | Error::ClientClosed
                | Error::Timeout
                | Error::NoHosts
                | Error::RuntimeInconsistent
                | Error::NoNode),
            ) => last = e,
            Err(e) => return caller.answer(Err(unknown(e))),
        }
    }
    caller.answer(Err(unavailable(last)));
}

/// What a contender is granted.
struct Joined {
    ownership: Ownership,
    watcher: OneshotWatcher,
    /// Subscribed before the grant was confirmed, so no change of the session is missed.
    states: StateWatcher,
    confirmed_at: Instant,
}

async fn join(client: &Client, key: &LockKey) -> Result<Joined, Error> {
    let states = client.state_watcher();
    // A name of its own per acquisition, so that the crate can find its node again, and delete it,
    // when the answer to its creation was lost. With `new_curator` it cannot.
    let prefix = format!("{}/{CONTENDER}{}-", key.znode(), Uuid::new_v4().simple());
    let prefix = LockPrefix::new_custom(prefix, CONTENDER)?;
    // Containers: the server removes the directories of activities that are over.
    let parents = CreateMode::Container.with_acls(Acls::anyone_all());
    let options = LockOptions::new(Acls::anyone_all()).with_ancestor_options(parents)?;
    let lock = client.lock(prefix, b"", options).await?.into_owned();
    let confirmed_at = clock::now();
    let path = lock.lock_path().to_string();
    let synced = client.sync(&path);
    let watched = client.check_and_watch_stat(&path);
    let ((), (stat, watcher)) = tokio::try_join!(synced, watched)?;
    let czxid = stat.ok_or(Error::NoNode)?.czxid;
    let contender = Contender {
        client: client.clone(),
        path: path.clone(),
        czxid,
    };
    Ok(Joined {
        ownership: Ownership { contender, lock },
        watcher,
        states,
        confirmed_at,
    })
}

// === impl Joined ===

impl Joined {
    fn grant(self, turn: Turn) -> ZookeeperGuard {
        let contender = &self.ownership.contender;
        let session_timeout = contender.client.session_timeout();
        // A quarter is left for a follower that has not yet told its leader about our last request.
        let timing = Timing {
            ttl: session_timeout * 3 / 4,
            hold_max: HOLD_MAX,
        };
        let lease = Lease::granted(self.confirmed_at, timing);
        let tenure = Tenure::renewed(lease, turn, contender.clone());
        let informant = tenure.informant();
        // Belongs to the guard: aborted when it is dropped.
        let watching = watch(self.watcher, self.states, session_timeout, informant);
        let watch = tokio::spawn(watching).abort_handle();
        ZookeeperGuard {
            tenure,
            czxid: contender.czxid,
            watch,
            ownership: Some(self.ownership),
        }
    }
}

/// Tells the tenure when its node is deleted, its session ends, or its connection breaks.
async fn watch(
    watcher: OneshotWatcher,
    mut states: StateWatcher,
    session_timeout: Duration,
    informant: Informant,
) {
    let mut deleted = Box::pin(async {
        match watcher.changed().await.event_type {
            EventType::NodeDeleted | EventType::Session => {}
            // Nobody writes to a contender's node. Should somebody, the next confirmation sees
            // whether it is still there.
            EventType::NodeCreated
            | EventType::NodeDataChanged
            | EventType::NodeChildrenChanged => std::future::pending().await,
        }
    });
    let mut state = states.state();
    loop {
        match state {
            // The server forgets a session one timeout after it last heard from it, which was before
            // this edge: half of it is on the safe side.
            SessionState::Disconnected => informant.tell(Event::Suspected {
                until: clock::now() + session_timeout / 2,
            }),
            SessionState::SyncConnected | SessionState::ConnectedReadOnly => {
                informant.tell(Event::Reassured);
            }
            SessionState::AuthFailed | SessionState::Expired | SessionState::Closed => {
                return informant.tell(Event::Gone);
            }
        }
        tokio::select! {
            changed = states.changed() => state = changed,
            () = &mut deleted => return informant.tell(Event::Gone),
        }
    }
}

/// Why a wait that is over was in vain.
async fn refusal(client: &Client, deadline: Instant) -> AcquireError {
    match tokio::time::timeout_at(deadline, client.check_stat("/")).await {
        Ok(Ok(_)) => AcquireError::Busy,
        Ok(Err(e)) => unknown(e),
        Err(_elapsed) => unknown(Error::Timeout),
    }
}

fn unavailable(e: impl std::error::Error + Send + Sync + 'static) -> AcquireError {
    AcquireError::Unavailable {
        server: SERVER,
        source: Box::new(e),
    }
}

fn unknown(e: Error) -> AcquireError {
    AcquireError::Unknown {
        server: SERVER,
        source: Box::new(e),
    }
}
