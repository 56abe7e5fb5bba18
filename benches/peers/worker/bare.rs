//! The limits: what a lock has to ask of its server at least, through a bare connection.
//!
//! They exclude nobody who does not ask for a key of its own, so they run without contention.

use std::sync::Arc;

use futures::future::join_all;
use redis::Script;
use redis::aio::MultiplexedConnection;
use uuid::Uuid;
use zookeeper_client::{Acls, Client, CreateMode};

use super::Peer;

const TTL_MS: u32 = 10_000;
const ZNODE: &str = "/peers-raw";

/// `SET NX PX`, then compare-and-delete, on every node at once.
#[derive(Clone)]
pub(super) struct Redis {
    nodes: Vec<MultiplexedConnection>,
    release: Arc<Script>,
}

/// Create an ephemeral sequential node, then delete it.
#[derive(Debug, Clone)]
pub(super) struct Zookeeper(Client);

// === impl Redis ===

impl Redis {
    pub(super) async fn open(urls: &[String]) -> Result<Self, String> {
        let mut nodes = Vec::new();
        for url in urls {
            let client = redis::Client::open(url.as_str()).map_err(|e| e.to_string())?;
            let node = client.get_multiplexed_async_connection().await;
            nodes.push(node.map_err(|error| error.to_string())?);
        }
        let release = Arc::new(Script::new(include_str!("../release.lua")));
        Ok(Self { nodes, release })
    }
}

impl Peer for Redis {
    type Held = (String, String);

    async fn acquire(&self, key: &str) -> Result<(String, String), String> {
        let owner = Uuid::new_v4().simple().to_string();
        let mut set = redis::cmd("SET");
        set.arg(key).arg(&owner).arg("NX").arg("PX").arg(TTL_MS);
        let answers = join_all(self.nodes.iter().map(|node| {
            let (set, mut node) = (&set, node.clone());
            async move { set.query_async::<Option<String>>(&mut node).await }
        }));
        for answer in answers.await {
            if answer.map_err(|error| error.to_string())?.is_none() {
                return Err(format!("{key} is another's"));
            }
        }
        Ok((key.to_owned(), owner))
    }

    async fn release(&self, (key, owner): (String, String)) -> Result<(), String> {
        let answers = join_all(self.nodes.iter().map(|node| {
            let (key, owner, mut node) = (&key, &owner, node.clone());
            async move {
                let mut call = self.release.key(key);
                call.arg(owner).invoke_async::<i64>(&mut node).await
            }
        }));
        for answer in answers.await {
            if answer.map_err(|error| error.to_string())? != 1 {
                return Err(format!("{key} was another's at the release"));
            }
        }
        Ok(())
    }
}

// === impl Zookeeper ===

impl Zookeeper {
    pub(super) async fn open(servers: &str) -> Result<Self, String> {
        let client = Client::connect(servers).await;
        let client = client.map_err(|error| error.to_string())?;
        let parent = CreateMode::Persistent.with_acls(Acls::anyone_all());
        let made = client.mkdir(ZNODE, &parent).await;
        made.map_err(|error| error.to_string())?;
        Ok(Self(client))
    }
}

impl Peer for Zookeeper {
    type Held = String;

    async fn acquire(&self, key: &str) -> Result<String, String> {
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let path = format!("{ZNODE}/{key}-");
        let made = self.0.create(&path, b"", &options).await;
        let (_stat, sequence) = made.map_err(|error| error.to_string())?;
        Ok(format!("{path}{sequence}"))
    }

    async fn release(&self, node: String) -> Result<(), String> {
        let gone = self.0.delete(&node, None).await;
        gone.map_err(|error| error.to_string())
    }
}
