//! The ZooKeeper session of this process: begun on first use, and anew when it has ended.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use zookeeper_client::{Client, Error, SessionState};

use crate::clock::{self, Instant};

/// How long the servers keep a session they do not hear from, and so how long a crashed holder is
/// waited for. The least that a server with the default tick of 2 s agrees to (two ticks).
pub const SESSION_TIMEOUT: Duration = Duration::from_secs(4);
/// Longest time to begin a session, or to wait for one whose connection is broken: an ensemble
/// elects a leader within a second, and a buyer does not wait for longer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The present session, if there is one.
#[derive(Debug)]
pub(super) struct Sessions {
    servers: String,
    present: tokio::sync::Mutex<Option<Client>>,
    /// The same, for a look that must not wait for whoever is connecting.
    seen: Mutex<Option<Client>>,
    trouble: Mutex<Option<(Instant, NoSession)>>,
}

/// Why there is no session.
#[derive(Debug, Clone, thiserror::Error)]
#[error("no session with {servers}: {source}")]
pub(super) struct NoSession {
    servers: String,
    source: Error,
}

// === impl Sessions ===

impl Sessions {
    pub(super) fn new(servers: &str) -> Self {
        Self {
            servers: servers.to_string(),
            present: tokio::sync::Mutex::default(),
            seen: Mutex::default(),
            trouble: Mutex::default(),
        }
    }

    /// Why the last caller had no session, or would have none now; `None` while there is one.
    pub(super) fn trouble(&self) -> Option<NoSession> {
        if let Some((_at, e)) = self.lock_trouble().clone() {
            return Some(e);
        }
        // The connection breaks before anybody has asked for it again: those who queue behind a
        // contender that hears nothing are not waiting for a lock.
        let state = self.lock_seen().as_ref().map(Client::state)?;
        let broken = state != SessionState::SyncConnected;
        broken.then(|| NoSession {
            servers: self.servers.clone(),
            source: Error::ConnectionLoss,
        })
    }

    /// A session that is connected. Those who wait for one attempt share its failure.
    pub(super) async fn client(&self, deadline: Instant) -> Result<Client, NoSession> {
        let asked_at = clock::now();
        let bound = deadline.min(asked_at + CONNECT_TIMEOUT);
        let attempt = async {
            let mut present = self.present.lock().await;
            if let Some((at, e)) = self.lock_trouble().clone()
                && at >= asked_at
            {
                return Err(e.source);
            }
            match &*present {
                Some(client) if !client.state().is_terminated() => connected(client).await,
                Some(_) | None => {
                    let client = connect(&self.servers).await?;
                    *self.lock_seen() = Some(client.clone());
                    Ok(present.insert(client).clone())
                }
            }
        };
        let result = match tokio::time::timeout_at(bound, attempt).await {
            Ok(Ok(client)) => Ok(client),
            Ok(Err(source)) => Err(source),
            Err(_elapsed) => Err(Error::Timeout),
        };
        let result = result.map_err(|source| NoSession {
            servers: self.servers.clone(),
            source,
        });
        *self.lock_trouble() = result.as_ref().err().map(|e| (clock::now(), e.clone()));
        result
    }

    fn lock_seen(&self) -> std::sync::MutexGuard<'_, Option<Client>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_trouble(&self) -> std::sync::MutexGuard<'_, Option<(Instant, NoSession)>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Begins a session; tries each server once.
pub(super) async fn connect(servers: &str) -> Result<Client, Error> {
    Client::connector()
        .with_session_timeout(SESSION_TIMEOUT)
        .with_fail_eagerly()
        .connect(servers)
        .await
}

/// Waits until the connection of a living session is there again.
async fn connected(client: &Client) -> Result<Client, Error> {
    let mut states = client.state_watcher();
    let mut state = states.state();
    loop {
        match state {
            SessionState::SyncConnected => return Ok(client.clone()),
            SessionState::Disconnected | SessionState::ConnectedReadOnly => {
                state = states.changed().await;
            }
            SessionState::AuthFailed => return Err(Error::AuthFailed),
            SessionState::Expired => return Err(Error::SessionExpired),
            SessionState::Closed => return Err(Error::ClientClosed),
        }
    }
}
