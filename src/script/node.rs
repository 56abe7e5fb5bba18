//! One Redis server: connected on first use and again after a loss, with every call bounded, and
//! with errors that say whether a command may have run.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, FromRedisValue, IntoConnectionInfo, ProtocolVersion,
    PushInfo, PushKind, RedisError, ScriptInvocation,
};

use crate::clock::{self, Instant};

/// Longest time to connect and to greet: a server in the same data centre answers in a
/// millisecond, so one that takes a second is away.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest time to wait for an answer, for the same reason.
pub const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);

/// One Redis server.
#[derive(Debug)]
pub struct Node {
    client: Client,
    response_timeout: Duration,
    link: tokio::sync::Mutex<Link>,
    trouble: Mutex<Option<CallError>>,
}

/// The present connection, and how the last attempt to make one failed.
#[derive(Debug, Default)]
struct Link {
    live: Option<Live>,
    failed: Option<(Instant, Arc<RedisError>)>,
}

#[derive(Debug, Clone)]
struct Live {
    connection: MultiplexedConnection,
    /// Set once the socket is closed: nothing can be sent any more.
    dead: Arc<AtomicBool>,
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
            client: Client::open(info.set_redis_settings(resp3))?,
            response_timeout,
            link: tokio::sync::Mutex::default(),
            trouble: Mutex::default(),
        })
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Why the last call had no answer; `None` once one was answered.
    pub fn trouble(&self) -> Option<CallError> {
        self.trouble
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Runs a script by its hash; loads it first where the server does not know it.
    ///
    /// # Cancel safety
    /// A dropped call may have been sent, and then runs.
    pub async fn invoke<T: FromRedisValue>(
        &self,
        script: &ScriptInvocation<'_>,
    ) -> Result<T, CallError> {
        let answer = match self.live().await {
            Ok(mut live) => judge(&live.dead, script.invoke_async(&mut live.connection).await),
            Err(e) => Err(e),
        };
        self.note(answer)
    }

    /// Runs one command.
    ///
    /// # Cancel safety
    /// A dropped call may have been sent, and then runs.
    pub async fn query<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, CallError> {
        let answer = match self.live().await {
            Ok(mut live) => judge(&live.dead, command.query_async(&mut live.connection).await),
            Err(e) => Err(e),
        };
        self.note(answer)
    }

    fn note<T>(&self, answer: Result<T, CallError>) -> Result<T, CallError> {
        let trouble = match &answer {
            Ok(_) | Err(CallError::Refused(_)) => None,
            Err(e @ (CallError::Unreached(_) | CallError::Unanswered(_))) => Some(e.clone()),
        };
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
        answer
    }

    /// The present connection, or a new one. Those who wait for one attempt share its failure, so
    /// that a server which is away costs each of them one timeout and not a queue of timeouts.
    async fn live(&self) -> Result<Live, CallError> {
        let asked_at = clock::now();
        let mut link = self.link.lock().await;
        if let Some(live) = &link.live
            && !live.dead.load(Ordering::Acquire)
        {
            return Ok(live.clone());
        }
        if let Some((failed_at, error)) = &link.failed
            && *failed_at >= asked_at
        {
            return Err(CallError::Unreached(error.clone()));
        }
        link.live = None;
        match self.connect().await {
            Ok(live) => {
                link.live = Some(live.clone());
                link.failed = None;
                Ok(live)
            }
            Err(e) => {
                let error = Arc::new(e);
                link.failed = Some((clock::now(), error.clone()));
                Err(CallError::Unreached(error))
            }
        }
    }

    async fn connect(&self) -> Result<Live, RedisError> {
        let dead = Arc::new(AtomicBool::new(false));
        let ended = dead.clone();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(self.response_timeout))
            .set_push_sender(move |push: PushInfo| {
                if push.kind == PushKind::Disconnection {
                    ended.store(true, Ordering::Release);
                }
                Ok::<(), redis::aio::SendError>(())
            });
        let connection = self
            .client
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        Ok(Live { connection, dead })
    }
}

/// Sorts an error by whether the command may have run.
fn judge<T>(dead: &AtomicBool, answer: Result<T, RedisError>) -> Result<T, CallError> {
    let error = match answer {
        Ok(value) => return Ok(value),
        Err(e) => e,
    };
    if error.is_io_error() || error.is_unrecoverable_error() {
        // Not used again: after a timeout the next answer may be as late.
        dead.store(true, Ordering::Release);
        return Err(CallError::Unanswered(Arc::new(error)));
    }
    Err(CallError::Refused(Arc::new(error)))
}
