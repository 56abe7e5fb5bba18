//! The project's locks, as the service opens them: watchdog and fencing token included.

use std::sync::Arc;
use std::time::Duration;

use flashlock::keys::LockKey;
use flashlock::lock::{Guard, Lock, Released, Terms};
use flashlock::sale::{ActivityId, Watchdog};
use flashlock::strategy::redis_set_nx::RedisSetNxLock;
use flashlock::strategy::redlock::RedlockLock;
use flashlock::strategy::zookeeper::ZookeeperLock;

use super::Peer;

/// The defaults of an activity.
const TERMS: Terms = Terms {
    ttl: Duration::from_secs(10),
    wait: Duration::from_secs(5),
    watchdog: Watchdog::On,
};

pub(super) async fn redis_set_nx(url: &str) -> Result<Ours<RedisSetNxLock>, String> {
    ready(RedisSetNxLock::new(url).map_err(|error| error.to_string())?).await
}

pub(super) async fn redlock(urls: &[String]) -> Result<Ours<RedlockLock>, String> {
    ready(RedlockLock::new(urls).map_err(|error| error.to_string())?).await
}

pub(super) async fn zookeeper(servers: &str) -> Result<Ours<ZookeeperLock>, String> {
    ready(ZookeeperLock::new(servers)).await
}

async fn ready<L: Lock>(lock: L) -> Result<Ours<L>, String> {
    lock.ready().await.map_err(|error| error.to_string())?;
    Ok(Ours(Arc::new(lock)))
}

#[derive(Debug)]
pub(super) struct Ours<L>(Arc<L>);

impl<L> Clone for Ours<L> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<L: Lock> Peer for Ours<L> {
    type Held = L::Guard;

    async fn acquire(&self, key: &str) -> Result<L::Guard, String> {
        let activity: ActivityId = key.parse().map_err(|error| format!("{error}"))?;
        let key = LockKey::of(&activity);
        let guard = self.0.acquire(&key, &TERMS).await;
        guard.map_err(|error| error.to_string())
    }

    async fn release(&self, held: L::Guard) -> Result<(), String> {
        match held.release().await {
            Released::Released => Ok(()),
            Released::NotOwner => Err("the lease had ended at the release".to_owned()),
            Released::Pending => Err("the release was not confirmed".to_owned()),
        }
    }
}
