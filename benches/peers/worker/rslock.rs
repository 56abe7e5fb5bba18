//! `rslock` as its documentation uses it: one manager, `lock` until it is granted.

use std::time::Duration;

use rslock::{Lock, LockError, LockManager};

use super::Peer;

const TTL: Duration = Duration::from_secs(10);
/// The crate's default.
const TRIES: u32 = 3;
const RETRY_DELAY: Duration = Duration::from_millis(5);

#[derive(Debug, Clone)]
pub(super) struct Rslock(LockManager);

impl Rslock {
    pub(super) fn open(urls: &[String]) -> Result<Self, String> {
        let clients: Result<Vec<_>, _> = urls
            .iter()
            .map(|url| redis::Client::open(url.as_str()))
            .collect();
        let mut manager = LockManager::from_clients(clients.map_err(|error| error.to_string())?);
        manager.set_retry(TRIES, RETRY_DELAY);
        Ok(Self(manager))
    }
}

impl Peer for Rslock {
    type Held = Lock;

    /// What `LockManager::acquire` does, but that an error which is no contention is told.
    async fn acquire(&self, key: &str) -> Result<Lock, String> {
        loop {
            match self.0.lock(key.as_bytes(), TTL).await {
                Ok(lock) => return Ok(lock),
                Err(LockError::Unavailable) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    async fn release(&self, held: Lock) -> Result<(), String> {
        self.0.unlock(&held).await;
        Ok(())
    }
}
