//! A contender's node in a lock's directory: made, found again, compared with the others, deleted.

use std::sync::Arc;
use std::time::Duration;

use zookeeper_client::{
    Acls, Client, CreateMode, CreateOptions, Error, EventType, MultiWriteError, MultiWriteResult,
    OneshotWatcher, Stat,
};

use crate::lock::{self, Released};

/// What every contender's name begins with.
const CONTENDER: &str = "lk-";
/// Digits of the number that the server appends.
const SEQUENCE_DIGITS: usize = 10;
/// Longest time to wait for the answer to one request of a holder.
const CALL_TIMEOUT: Duration = Duration::from_secs(1);
const NODE: CreateOptions<'static> = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
/// Containers: the server removes the directories of activities that are over.
const DIRECTORY: CreateOptions<'static> = CreateMode::Container.with_acls(Acls::anyone_all());

/// What a contender calls its node; a name of its own per acquisition, so that it can be found, and
/// deleted, when the answer to its creation was lost.
#[derive(Debug, Clone)]
pub(super) struct Name {
    directory: String,
    prefix: String,
}

/// A node by the transaction that created it: ZooKeeper numbers them in one order.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) client: Client,
    pub(super) path: Arc<str>,
    pub(super) czxid: i64,
}

/// Where a node stands.
#[derive(Debug)]
pub(super) enum Place {
    /// It is the lowest: it has the lock.
    First,
    /// The next lower node is watched; `None` when that has gone meanwhile.
    Behind(Option<OneshotWatcher>),
    /// It is not there.
    Gone,
}

/// What passing on came to.
#[derive(Debug)]
pub(super) enum Moved {
    /// The one node is deleted and the other made, in one transaction.
    Moved { node: Node, place: Place },
    /// The first was gone already; nothing was made.
    Gone,
}

// === impl Name ===

impl Name {
    pub(super) fn new(directory: String) -> Self {
        let id = lock::random_owner();
        Self {
            prefix: format!("{CONTENDER}{id}-"),
            directory,
        }
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.directory)
    }

    /// Creates the node and looks at its place, in one round trip: the server answers in order.
    pub(super) async fn join(&self, client: &Client) -> Result<(Node, Place), Error> {
        let path = self.path(&self.prefix);
        let (stat, sequence, children) = match self.create(client, &path).await {
            Err(Error::NoNode) => {
                client.mkdir(&self.directory, &DIRECTORY).await?;
                self.create(client, &path).await?
            }
            Ok(created) => created,
            Err(e) => return Err(e),
        };
        let node = node(client, format!("{path}{sequence}"), stat).await?;
        // A node with a lower number was created before ours, so this list has it if it is there.
        let place = self.place(&node, &children?).await?;
        Ok((node, place))
    }

    async fn create(
        &self,
        client: &Client,
        path: &str,
    ) -> Result<(Stat, String, Result<Vec<String>, Error>), Error> {
        let (created, children) = tokio::join! {
            biased;
            client.create(path, b"", &NODE),
            client.list_children(&self.directory),
        };
        let (stat, sequence) = created?;
        Ok((stat, sequence.to_string(), children))
    }

    /// Looks where the node stands now. A list alone may come from a server that has lost its leader
    /// and so our session; `sync` asks the leader, and requests of one session are answered in order.
    pub(super) async fn look(&self, node: &Node) -> Result<Place, Error> {
        let ((), children) = tokio::try_join! {
            biased;
            node.client.sync(&self.directory),
            node.client.list_children(&self.directory),
        }?;
        self.place(node, &children).await
    }

    /// Finds the node of a creation whose answer was lost.
    pub(super) async fn find(&self, client: &Client) -> Result<Option<Node>, Error> {
        let children = match client.list_children(&self.directory).await {
            Ok(children) => children,
            Err(Error::NoNode) => return Ok(None),
            Err(e) => return Err(e),
        };
        let Some(mine) = children.iter().find(|c| c.starts_with(&self.prefix)) else {
            return Ok(None);
        };
        let path = self.path(mine);
        let stat = client.check_stat(&path).await?;
        Ok(stat.map(|stat| Node {
            client: client.clone(),
            path: path.into(),
            czxid: stat.czxid,
        }))
    }

    async fn place(&self, node: &Node, children: &[String]) -> Result<Place, Error> {
        let mut line: Vec<(&str, &str)> = children
            .iter()
            .filter(|name| name.starts_with(CONTENDER) && name.len() > SEQUENCE_DIGITS)
            .map(|name| (&name[name.len() - SEQUENCE_DIGITS..], name.as_str()))
            .collect();
        line.sort_unstable();
        let mine = line.iter().position(|(_, name)| node.path.ends_with(name));
        match mine {
            None => Ok(Place::Gone),
            Some(0) => Ok(Place::First),
            Some(at) => {
                let before = self.path(line[at - 1].1);
                let (stat, watcher) = node.client.check_and_watch_stat(&before).await?;
                Ok(Place::Behind(stat.map(|_there| watcher)))
            }
        }
    }

    /// Deletes `from` and creates this one's node at the end of the line, in one transaction.
    pub(super) async fn take_over(&self, from: &Node) -> Result<Moved, Error> {
        let client = &from.client;
        let path = self.path(&self.prefix);
        let mut writer = client.new_multi_writer();
        writer.add_delete(&from.path, None)?;
        writer.add_create(&path, b"", &NODE)?;
        let (written, children) = tokio::join! {
            biased;
            writer.commit(),
            client.list_children(&self.directory),
        };
        let (path, stat) = match written {
            Ok(mut results) => match results.pop() {
                Some(MultiWriteResult::Create { path, stat }) => (path, stat),
                Some(_) | None => return Err(Error::RuntimeInconsistent),
            },
            Err(MultiWriteError::OperationFailed {
                index: 0,
                source: Error::NoNode,
            }) => return Ok(Moved::Gone),
            Err(e) => return Err(e.into()),
        };
        let node = node(client, path, stat).await?;
        let children = children?;
        let names = children.iter().filter(|name| name.starts_with(CONTENDER));
        // Whom it stands behind is looked up by the contender itself, who has the time.
        let place = if names.count() == 1 {
            self.place(&node, &children).await?
        } else {
            Place::Behind(None)
        };
        Ok(Moved::Moved { node, place })
    }
}

/// Some servers do not tell what they created in a transaction (ZOOKEEPER-4026, ZOOKEEPER-4667).
async fn node(client: &Client, path: String, stat: Stat) -> Result<Node, Error> {
    let stat = if stat.is_invalid() {
        client.check_stat(&path).await?.ok_or(Error::NoNode)?
    } else {
        stat
    };
    Ok(Node {
        client: client.clone(),
        path: path.into(),
        czxid: stat.czxid,
    })
}

// === impl Node ===

impl Node {
    pub(super) async fn delete(&self) -> Released {
        match tokio::time::timeout(CALL_TIMEOUT, self.client.delete(&self.path, None)).await {
            Ok(Ok(())) => Released::Released,
            // A session that has ended took its nodes with it.
            Ok(Err(Error::NoNode | Error::SessionExpired)) => Released::NotOwner,
            Ok(Err(_)) | Err(_) => Released::Pending,
        }
    }

    /// Resolves once it is deleted, whoever did it. When the watch cannot be set, never: the state
    /// of the session tells why.
    pub(super) async fn deleted(&self) {
        loop {
            let watcher = match self.client.check_and_watch_stat(&self.path).await {
                Ok((Some(stat), watcher)) if stat.czxid == self.czxid => watcher,
                Ok(_gone_or_another) => return,
                Err(_) => std::future::pending().await,
            };
            match watcher.changed().await.event_type {
                EventType::NodeDeleted => return,
                EventType::Session => std::future::pending().await,
                // Nobody writes to a contender's node; should somebody, it is still there.
                EventType::NodeCreated
                | EventType::NodeDataChanged
                | EventType::NodeChildrenChanged => {}
            }
        }
    }
}
