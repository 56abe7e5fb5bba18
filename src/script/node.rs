//! One Redis server: connected on first use and again after a loss, with every call bounded, and
//! with errors that say whether a command may have run.
//!
//! A command that was not answered may lie on its way, and a connection that is given up does not take
//! it back: it could run after what is sent over the next one, such as a lock's SET after its release.
//! So a new connection first has the server end the one before it. What was sent over that has run by
//! then, or never will. A server that refuses `CLIENT INFO` or `CLIENT KILL` is taken as it is; a late
//! SET lasts for its lease there.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, FromRedisValue, IntoConnectionInfo, ProtocolVersion,
    PushInfo, PushKind, RedisError, ScriptInvocation,
};

use crate::clock::{self, Instant};
use crate::script::node::listen::Channels;

pub use crate::script::node::listen::{Hearing, Listener};

mod listen;

/// Longest time to connect and to greet: a server in the same data centre answers in a
/// millisecond, so one that takes a second is away.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest time to wait for an answer, for the same reason.
pub const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);

/// One Redis server.
#[derive(Debug)]
pub struct Node {
    link: Arc<Link>,
    trouble: Mutex<Option<CallError>>,
}

/// How the server is reached.
#[derive(Debug)]
struct Link {
    client: Client,
    response_timeout: Duration,
    live: Mutex<Option<Live>>,
    /// Whoever connects; how the last attempt failed.
    connecting: tokio::sync::Mutex<Option<(Instant, Arc<RedisError>)>>,
    channels: Arc<Channels>,
}

#[derive(Debug, Clone)]
struct Live {
    connection: MultiplexedConnection,
    /// `None` when the server does not tell: before Redis 6.2, or where the user may not ask.
    seat: Option<Seat>,
    /// Set once the socket is closed: nothing can be sent any more.
    dead: Arc<AtomicBool>,
}

/// A connection as its server names it. The number alone could be another's after a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seat {
    id: String,
    address: String,
}

/// Why a call has no answer, by what the caller has to assume.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CallError {
    /// There is no connection; the command was not sent.
    #[error("cannot connect: {0}")]
    Unreached(#[source] Arc<RedisError>),
    /// The command was sent and may have run.
    #[error("no answer: {0}")]
    Unanswered(#[source] Arc<RedisError>),
    /// The server refused the command; it did not run.
    #[error("refused: {0}")]
    Refused(#[source] Arc<RedisError>),
}

// === impl Node ===

impl Node {
    /// Does not connect.
    ///
    /// # Errors
    /// When `url` is not a Redis URL.
    pub fn new(url: &str, response_timeout: Duration) -> Result<Self, RedisError> {
        let info = url.into_connection_info()?;
        // RESP3 tells a lost connection when it is lost, not when it is next used: only so is a
        // command that was never sent told from one that may have run.
        let resp3 = info
            .redis_settings()
            .clone()
            .set_protocol(ProtocolVersion::RESP3);
        Ok(Self {
            link: Arc::new(Link {
                client: Client::open(info.set_redis_settings(resp3))?,
                response_timeout,
                live: Mutex::default(),
                connecting: tokio::sync::Mutex::default(),
                channels: Arc::default(),
            }),
            trouble: Mutex::default(),
        })
    }

    pub fn client(&self) -> &Client {
        &self.link.client
    }

    /// Why the last call had no answer; `None` once one was answered.
    pub fn trouble(&self) -> Option<CallError> {
        lock(&self.trouble).clone()
    }

    /// Runs a script by its hash; loads it first where the server does not know it.
    ///
    /// # Cancel safety
    /// A dropped call may have been sent, and then runs.
    pub async fn invoke<T: FromRedisValue>(
        &self,
        script: &ScriptInvocation<'_>,
    ) -> Result<T, CallError> {
        let answer = match self.link.live().await {
            Ok(mut live) => judge(&live.dead, script.invoke_async(&mut live.connection).await),
            Err(e) => Err(e),
        };
        self.note(answer)
    }

    /// As `invoke`, on the connection on which `listener` hears of what happens after it: it is
    /// subscribed first, in the same round trip.
    ///
    /// # Cancel safety
    /// As `invoke`.
    pub async fn invoke_listening<T: FromRedisValue>(
        &self,
        listener: &mut Listener,
        script: &ScriptInvocation<'_>,
    ) -> Result<T, CallError> {
        let answer = match self.link.live().await {
            Ok(mut live) => {
                let on = live.clone();
                let call = script.invoke_async(&mut live.connection);
                judge(&live.dead, listener.subscribed(&on, call).await)
            }
            Err(e) => Err(e),
        };
        self.note(answer)
    }

    /// Runs one command.
    ///
    /// # Cancel safety
    /// A dropped call may have been sent, and then runs.
    pub async fn query<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, CallError> {
        let answer = match self.link.live().await {
            Ok(mut live) => judge(&live.dead, command.query_async(&mut live.connection).await),
            Err(e) => Err(e),
        };
        self.note(answer)
    }

    /// Hears what is published on a channel, from the first `invoke_listening` on.
    pub fn listener(&self, channel: String) -> Listener {
        Listener::new(self.link.clone(), channel)
    }

    fn note<T>(&self, answer: Result<T, CallError>) -> Result<T, CallError> {
        let trouble = match &answer {
            Ok(_) | Err(CallError::Refused(_)) => None,
            Err(e @ (CallError::Unreached(_) | CallError::Unanswered(_))) => Some(e.clone()),
        };
        *lock(&self.trouble) = trouble;
        answer
    }
}

// === impl Link ===

impl Link {
    /// The present connection, or a new one.
    async fn live(self: &Arc<Self>) -> Result<Live, CallError> {
        if let Some(live) = self.present() {
            return Ok(live);
        }
        // In a task of its own: a caller that does not wait for it to end must not make the next
        // one start over.
        let attempt = tokio::spawn(self.clone().reconnect(clock::now()));
        let stopped = |e: tokio::task::JoinError| {
            let error = RedisError::from(std::io::Error::other(e.to_string()));
            CallError::Unreached(Arc::new(error))
        };
        attempt.await.map_err(stopped)?
    }

    fn present(&self) -> Option<Live> {
        let live = lock(&self.live);
        live.as_ref()
            .filter(|live| !live.dead.load(Ordering::Acquire))
            .cloned()
    }

    /// Those who wait for one attempt share its failure, so that a server which is away costs each
    /// of them one timeout and not a queue of timeouts.
    async fn reconnect(self: Arc<Self>, asked_at: Instant) -> Result<Live, CallError> {
        let mut failed = self.connecting.lock().await;
        if let Some(live) = self.present() {
            return Ok(live);
        }
        if let Some((failed_at, error)) = &*failed
            && *failed_at >= asked_at
        {
            return Err(CallError::Unreached(error.clone()));
        }
        match self.connect().await {
            Ok(live) => {
                *lock(&self.live) = Some(live.clone());
                *failed = None;
                Ok(live)
            }
            Err(e) => {
                let error = Arc::new(e);
                *failed = Some((clock::now(), error.clone()));
                Err(CallError::Unreached(error))
            }
        }
    }

    async fn connect(&self) -> Result<Live, RedisError> {
        let dead = Arc::new(AtomicBool::new(false));
        let ended = dead.clone();
        let channels = self.channels.clone();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(self.response_timeout))
            .set_push_sender(move |push: PushInfo| {
                if push.kind == PushKind::Disconnection {
                    ended.store(true, Ordering::Release);
                }
                channels.hear(&push);
                Ok::<(), redis::aio::SendError>(())
            });
        let mut connection = self
            .client
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        let before = lock(&self.live).as_ref().and_then(|live| live.seat.clone());
        let seat = match sit_down(&mut connection, before.as_ref()).await {
            Ok(seat) => seat,
            Err(e) if is_lost(&e) => return Err(e),
            Err(_refused) => None,
        };
        Ok(Live {
            connection,
            seat,
            dead,
        })
    }
}

/// Ends the connection `before` this one, and asks for this one's own seat.
async fn sit_down(
    connection: &mut MultiplexedConnection,
    before: Option<&Seat>,
) -> Result<Option<Seat>, RedisError> {
    let mut both = redis::pipe();
    if let Some(Seat { id, address }) = before {
        let kill = both.cmd("CLIENT").arg("KILL").arg("ID").arg(id);
        kill.arg("ADDR").arg(address).ignore();
    }
    let (said,): (String,) = both
        .cmd("CLIENT")
        .arg("INFO")
        .query_async(connection)
        .await?;
    Ok(Seat::read(&said))
}

/// Sorts an error by whether the command may have run.
fn judge<T>(dead: &AtomicBool, answer: Result<T, RedisError>) -> Result<T, CallError> {
    let error = match answer {
        Ok(value) => return Ok(value),
        Err(e) => e,
    };
    if is_lost(&error) {
        // Not used again: after a timeout the next answer may be as late.
        dead.store(true, Ordering::Release);
        return Err(CallError::Unanswered(Arc::new(error)));
    }
    Err(CallError::Refused(Arc::new(error)))
}

/// Whether there was no answer, rather than a refusal.
fn is_lost(error: &RedisError) -> bool {
    error.is_io_error() || error.is_unrecoverable_error()
}

// === impl Seat ===

impl Seat {
    /// From the answer to CLIENT INFO: `id=3 addr=127.0.0.1:60188 laddr=… …`.
    fn read(said: &str) -> Option<Self> {
        let field = |name: &str| {
            let mut words = said.split_ascii_whitespace();
            words.find_map(|word| Some(word.strip_prefix(name)?.to_string()))
        };
        Some(Self {
            id: field("id=")?,
            address: field("addr=")?,
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
