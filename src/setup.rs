//! Are the servers set up so that what is promised of a sale holds?
//!
//! Asked when the service starts, and of a server that is away then, once a second until it is
//! there: it must not keep the others from serving. What is unsafe is refused with what to do, and
//! the strategies that need it are not available until it has been put right.

mod redis;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::strategy::zookeeper::{SESSION_TIMEOUT, granted_session_timeout};
use crate::strategy::{Need, Strategy};

/// Longest wait for the servers of one need to tell their settings.
const ASK_MAX: Duration = Duration::from_secs(3);
/// Between two looks for what was away or refused.
const PAUSE: Duration = Duration::from_secs(1);

/// What is known of the configured servers.
#[derive(Debug)]
pub struct Setup {
    redis_url: Option<String>,
    redlock_urls: Vec<String>,
    zookeeper: Option<String>,
    known: Mutex<BTreeMap<Need, Judged>>,
}

/// What the servers of one need are set up like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Judged {
    /// As it should be, but for what the warnings say.
    Safe { warnings: Vec<String> },
    /// What is promised would not hold; says what to do.
    Refused(String),
    /// Not all could be asked; says why.
    Away(String),
}

/// Set-ups under which the service does not start.
#[derive(Debug, thiserror::Error)]
#[error("this set-up is refused: {}", .0.join("; "))]
pub struct Unsafe(pub Vec<String>);

// === impl Setup ===

impl Setup {
    /// Asks nobody yet.
    pub fn new(config: &Config) -> Self {
        Self {
            redis_url: config.redis_url.clone(),
            redlock_urls: config.redlock_urls.clone(),
            zookeeper: config.zookeeper.clone(),
            known: Mutex::default(),
        }
    }

    /// Asks the servers that are configured. Those that are away do no harm. Takes 3 s at most.
    ///
    /// # Errors
    /// What is refused, and what to do about it.
    pub async fn check(&self) -> Result<(), Unsafe> {
        self.ask().await;
        let known = self.lock();
        let refused: Vec<String> = known
            .values()
            .filter_map(|judged| match judged {
                Judged::Refused(why) => Some(why.clone()),
                Judged::Safe { .. } | Judged::Away(_) => None,
            })
            .collect();
        if refused.is_empty() {
            Ok(())
        } else {
            Err(Unsafe(refused))
        }
    }

    /// Asks again what was away or refused, until all is safe or `stop`.
    pub async fn watch(&self, stop: CancellationToken) {
        while !self.is_settled() {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(PAUSE) => {}
            }
            self.ask().await;
        }
    }

    /// Why the strategy must not be used; `None` when nothing is known against it.
    pub fn refusal(&self, strategy: Strategy) -> Option<String> {
        let needs = strategy.entry().needs;
        let known = self.lock();
        needs.iter().find_map(|need| match known.get(need) {
            Some(Judged::Refused(why)) => Some(why.clone()),
            Some(Judged::Safe { .. } | Judged::Away(_)) | None => None,
        })
    }

    /// What an operator should know of the strategy's servers.
    pub fn warnings(&self, strategy: Strategy) -> Vec<String> {
        let needs = strategy.entry().needs;
        let known = self.lock();
        let warnings = needs.iter().filter_map(|need| match known.get(need) {
            Some(Judged::Safe { warnings }) => Some(warnings.clone()),
            Some(Judged::Refused(_) | Judged::Away(_)) | None => None,
        });
        warnings.flatten().collect()
    }

    fn is_settled(&self) -> bool {
        self.to_ask().is_empty()
    }

    /// What is configured and not known to be safe.
    fn to_ask(&self) -> Vec<Need> {
        let known = self.lock();
        let configured = [
            (Need::Redis, self.redis_url.is_some()),
            (Need::Redlock, !self.redlock_urls.is_empty()),
            (Need::Zookeeper, self.zookeeper.is_some()),
        ];
        configured
            .into_iter()
            .filter(|(need, configured)| {
                *configured && !matches!(known.get(need), Some(Judged::Safe { .. }))
            })
            .map(|(need, _)| need)
            .collect()
    }

    async fn ask(&self) {
        let asked = self.to_ask().into_iter().map(async |need| {
            let judged = match tokio::time::timeout(ASK_MAX, self.judge(need)).await {
                Ok(judged) => judged,
                Err(_elapsed) => Judged::Away(format!("no answer within {} s", ASK_MAX.as_secs())),
            };
            self.learn(need, judged);
        });
        futures::future::join_all(asked).await;
    }

    async fn judge(&self, need: Need) -> Judged {
        match need {
            Need::Redis => match &self.redis_url {
                Some(url) => redis::judge_gate(url).await,
                None => Judged::Away("no Redis is configured".to_string()),
            },
            Need::Redlock => redis::judge_nodes(&self.redlock_urls).await,
            Need::Zookeeper => match &self.zookeeper {
                Some(servers) => judge_zookeeper(servers).await,
                None => Judged::Away("no ZooKeeper is configured".to_string()),
            },
        }
    }

    fn learn(&self, need: Need, judged: Judged) {
        let before = self.lock().insert(need, judged.clone());
        if before.as_ref() == Some(&judged) {
            return;
        }
        match judged {
            Judged::Safe { warnings } => {
                for warning in warnings {
                    tracing::warn!("{warning}");
                }
                if before.is_some() {
                    tracing::info!("{} is there, and set up as it should be", need.option());
                }
            }
            Judged::Refused(why) => tracing::error!("this set-up is refused: {why}"),
            // Told once; the reasons of a server that is away differ from time to time.
            Judged::Away(why) if !matches!(before, Some(Judged::Away(_))) => tracing::warn!(
                "{} is away, its settings are looked at when it is there: {why}",
                need.option()
            ),
            Judged::Away(_) => {}
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Need, Judged>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A server that grants another session timeout than is asked for keeps the locks of a crashed
/// holder longer, or ends those of a living one sooner, than is promised.
async fn judge_zookeeper(servers: &str) -> Judged {
    match granted_session_timeout(servers).await {
        Ok(granted) if granted == SESSION_TIMEOUT => Judged::Safe {
            warnings: Vec::new(),
        },
        Ok(granted) => Judged::Refused(format!(
            "zookeeper grants sessions of {granted:?} where {SESSION_TIMEOUT:?} are asked for; set \
             tickTime to between {:?} and {:?} (a session is 2 to 20 ticks long), or \
             minSessionTimeout and maxSessionTimeout so that {SESSION_TIMEOUT:?} lies between them",
            SESSION_TIMEOUT / 20,
            SESSION_TIMEOUT / 2,
        )),
        Err(why) => Judged::Away(why),
    }
}
