//! `zookeeper-client`'s own recipe: `Client::lock`, released when it is dropped.

use zookeeper_client::{Acls, Client, CreateMode, LockOptions, LockPrefix, OwnedLockClient};

use super::Peer;

const ROOT: &str = "/peers-zookeeper-client";

#[derive(Debug, Clone)]
pub(super) struct Recipe(Client);

impl Recipe {
    pub(super) async fn open(servers: &str) -> Result<Self, String> {
        let client = Client::connect(servers).await;
        Ok(Self(client.map_err(|error| error.to_string())?))
    }
}

impl Peer for Recipe {
    type Held = OwnedLockClient;

    async fn acquire(&self, key: &str) -> Result<OwnedLockClient, String> {
        let directory = format!("{ROOT}/{key}");
        #[expect(
            clippy::disallowed_methods,
            reason = "a peer is measured as its documentation uses it; no acquire is dropped here"
        )]
        let prefix = LockPrefix::new_curator(&directory, "lock-").map_err(|e| e.to_string())?;
        let parents = CreateMode::Persistent.with_acls(Acls::anyone_all());
        let options = LockOptions::new(Acls::anyone_all())
            .with_ancestor_options(parents)
            .map_err(|e| e.to_string())?;
        let lock = self.0.lock(prefix, b"", options).await;
        Ok(lock.map_err(|error| error.to_string())?.into_owned())
    }

    /// Deletes the node in the background: the crate has no release that is waited for.
    async fn release(&self, held: OwnedLockClient) -> Result<(), String> {
        drop(held);
        Ok(())
    }
}
