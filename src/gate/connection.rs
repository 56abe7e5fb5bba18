//! How the gate reaches its Redis, and what an error of the connection says about the command.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Client, ErrorKind, RedisError, ServerErrorKind};

use super::{GateError, Mismatch};
use crate::keys::GateKeys;
use crate::order::NewOrder;
use crate::sale::{Activity, ActivityId, Booking};
use crate::script::gate::{GateScripts, ReserveAnswer, ScriptError, Stamp, Stamped};

/// Longest wait for a connection: a listening Redis on the same network accepts within one second.
const CONNECT_MAX: Duration = Duration::from_secs(1);
/// Longest wait for an answer; the longest script takes some milliseconds.
const RESPONSE_MAX: Duration = Duration::from_secs(1);
/// Openings whose script texts are kept, about 16 KB each; beyond that they are computed again.
const OPENINGS_MAX: usize = 128;

/// The gate's Redis. Cloning shares the connection.
#[derive(Clone)]
pub struct Gate {
    client: Client,
    con: ConnectionManager,
    pub(super) scripts: Arc<GateScripts>,
    openings: Arc<Mutex<HashMap<ActivityId, Arc<Opening>>>>,
}

/// One opening of one gate, as this process uses it.
#[derive(Debug)]
pub(super) struct Opening {
    stamp: Stamp,
    pub(super) stamped: Stamped,
    /// The highest sequence number that an answer of this opening carried.
    seq: AtomicI64,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").finish_non_exhaustive()
    }
}

// === impl Gate ===

impl Gate {
    /// Connects with the first command, and again whenever the connection breaks; the server need
    /// not be there yet. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// `Unavailable` when `url` is not a Redis URL.
    pub fn new(url: &str) -> Result<Self, GateError> {
        let unusable = |e: RedisError| GateError::Unavailable(Arc::new(e.into()));
        let client = Client::open(url).map_err(unusable)?;
        Ok(Self {
            con: lazy(&client).map_err(unusable)?,
            client,
            scripts: Arc::default(),
            openings: Arc::default(),
        })
    }

    /// A connection apart, for what blocks. Connects with its first command.
    pub(super) fn new_con(&self) -> Result<ConnectionManager, GateError> {
        lazy(&self.client).map_err(from_redis)
    }

    pub async fn ping(&self) -> Result<(), GateError> {
        let ping = redis::cmd("PING");
        let pong: Result<String, _> = ping.query_async(&mut self.con()).await;
        pong.map(drop).map_err(from_redis)
    }

    /// What this Redis calls this start of itself; another after every restart.
    pub async fn run_id(&self) -> Result<String, GateError> {
        let mut cmd = redis::cmd("INFO");
        cmd.arg("server");
        let info: String = cmd.query_async(&mut self.con()).await.map_err(from_redis)?;
        info.lines()
            .find_map(|line| line.strip_prefix("run_id:"))
            .map(|id| id.trim().to_string())
            .ok_or_else(|| GateError::Corrupt {
                what: "INFO server has no run_id".to_string(),
            })
    }

    /// Loads the stamped scripts of the activity's epoch; only the elected process calls it.
    pub(super) async fn load(&self, activity: &Activity) -> Result<(), GateError> {
        let opening = self.opening(activity);
        let loaded = opening.stamped.load(&mut self.con()).await;
        loaded.map_err(GateError::from)
    }

    pub(super) fn con(&self) -> ConnectionManager {
        self.con.clone()
    }

    /// The stamped scripts of the activity's present epoch; computing a SHA of 8 KB for every call
    /// would cost more than the call.
    pub(super) fn opening(&self, activity: &Activity) -> Arc<Opening> {
        let mut openings = self.openings.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = openings.get(&activity.id)
            && known.stamp.epoch == activity.gate_epoch
            && known.stamp.run_id == activity.gate_run_id
        {
            return Arc::clone(known);
        }
        let stamp = super::stamp(activity);
        let opening = Arc::new(Opening {
            stamped: Stamped::new(&stamp),
            stamp,
            seq: AtomicI64::new(0),
        });
        if openings.len() >= OPENINGS_MAX {
            openings.clear();
        }
        openings.insert(activity.id.clone(), Arc::clone(&opening));
        opening
    }

    pub(super) async fn reserve_call(
        &self,
        activity: &Activity,
        orders: &[NewOrder],
    ) -> Result<Vec<ReserveAnswer>, GateError> {
        let opening = self.opening(activity);
        let keys = GateKeys::of(&activity.id);
        // Read before the call is sent: answers of calls that overlap may come in any order, but
        // one that was asked for later than `seen` was answered must not be older.
        let seen = opening.seq.load(Ordering::Acquire);
        let mut con = self.con();
        let done = match activity.booking {
            Booking::Sync => opening.stamped.reserve(&mut con, &keys, orders).await,
            Booking::Async => opening.stamped.accept(&mut con, &keys, orders).await,
        };
        let done = done.map_err(GateError::from)?;
        if done.answers.first() == Some(&ReserveAnswer::NotWarmed) {
            return Err(super::NOT_WARMED);
        }
        if done.seq < seen {
            return Err(GateError::NotThisRedis(Mismatch::SeqWentBack {
                seen,
                now: done.seq,
            }));
        }
        opening.seq.fetch_max(done.seq, Ordering::AcqRel);
        Ok(done.answers)
    }
}

/// No retries in the connection: one attempt per command keeps every wait within the two timeouts,
/// and the next command tries again.
fn lazy(client: &Client) -> Result<ConnectionManager, RedisError> {
    let config = ConnectionManagerConfig::new()
        .set_connection_timeout(Some(CONNECT_MAX))
        .set_response_timeout(Some(RESPONSE_MAX))
        .set_number_of_retries(0);
    ConnectionManager::new_lazy_with_config(client.clone(), config)
}

// === reading errors ===

pub(super) fn from_redis(e: RedisError) -> GateError {
    GateError::from(ScriptError::from(e))
}

impl From<ScriptError> for GateError {
    fn from(error: ScriptError) -> Self {
        let e = match &error {
            ScriptError::Unreadable(u) => {
                return Self::Corrupt {
                    what: u.to_string(),
                };
            }
            ScriptError::Redis(e) => e,
        };
        let refusal = match e.kind() {
            ErrorKind::Server(ServerErrorKind::NoScript) => {
                return Self::NotThisRedis(Mismatch::NoScript);
            }
            ErrorKind::Server(
                ServerErrorKind::BusyLoading
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::MasterDown
                | ServerErrorKind::ReadOnly
                | ServerErrorKind::TryAgain
                | ServerErrorKind::Moved
                | ServerErrorKind::Ask
                | ServerErrorKind::NoPerm,
            )
            | ErrorKind::AuthenticationFailed
            | ErrorKind::InvalidClientConfig => true,
            // The scripts declare their writes (`#!lua`), so Redis refuses them before the first
            // command when it is out of memory, cannot persist or lacks replicas.
            _ => matches!(
                e.code(),
                Some("OOM" | "MISCONF" | "NOREPLICAS" | "BUSY" | "NOAUTH")
            ),
        };
        if refusal || e.is_connection_refusal() {
            return Self::Unavailable(Arc::new(error));
        }
        match e.kind() {
            ErrorKind::Server(_) | ErrorKind::Extension => Self::Corrupt {
                what: e.to_string(),
            },
            _ => Self::Unknown(Arc::new(error)),
        }
    }
}
