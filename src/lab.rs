//! Real servers on free loopback ports, ended with their parent.
//!
//! A `Lab` starts what a `LabPlan` asks for, all at once, in one private temporary directory,
//! and asks each server until it serves. What is not installed is said to be so, and the rest
//! starts. Each server can be killed, restarted, paused and resumed.

pub mod command;
mod fault;
mod find;
pub mod mariadb;
pub mod port;
pub mod postgres;
pub mod process;
pub mod redis;
mod server;
mod start;
mod state;
pub mod zookeeper;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tempfile::TempDir;

pub use find::Binaries;
pub use port::Ports;
pub use server::{ServerId, StartError};

use process::Ward;
use server::Server;

/// Which servers to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LabPlan {
    pub redis: bool,
    pub redlock: bool,
    /// 0 for none, 1, or 3 for an ensemble.
    pub zookeeper_nodes: u8,
    pub postgres: bool,
    pub mariadb: bool,
}

/// How to start them.
#[derive(Debug, Clone)]
pub struct LabOptions {
    pub ports: Ports,
    pub binaries: Binaries,
}

/// The running servers. Dropped, they are told to end; [`Lab::stop`] also waits for it. They end
/// as well when this process is killed.
#[derive(Debug)]
pub struct Lab {
    entries: Vec<Entry>,
    /// Removes the directory, also when this process is killed. After the servers, so that they
    /// are told to end first.
    keeper: Ward,
    directory: TempDir,
}

/// One server that was asked for.
#[derive(Debug)]
struct Entry {
    id: ServerId,
    outcome: Result<Server, NotStarted>,
}

#[derive(Debug, Clone)]
enum NotStarted {
    NotInstalled { install: String },
    Failed { log: String },
}

/// What became of a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerState {
    Running {
        pid: u32,
        port: u16,
    },
    /// It ran, and was killed or ended; [`Lab::restart`] starts it again on this port.
    Stopped {
        port: u16,
    },
    NotInstalled {
        install: String,
    },
    Failed {
        log: String,
    },
}

/// A row of `flashlock lab status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerStatus {
    pub id: ServerId,
    pub name: String,
    pub state: ServerState,
    pub url: Option<String>,
}

/// A kind of database server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatabaseKind {
    Postgres,
    Mysql,
}

/// Why the lab could not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    #[error("the lab's temporary directory cannot be made")]
    Directory(#[source] io::Error),
    #[error("the lab has no {0}: it was not asked for, is not installed, or did not start")]
    Absent(ServerId),
    #[error("{id}: {source}")]
    Start { id: ServerId, source: StartError },
    #[error("{id}: {why}")]
    Server { id: ServerId, why: String },
    #[error("`{0}` is no name for a database: a letter, then up to 40 of a-z, 0-9 and _")]
    DatabaseName(String),
    #[error("a ZooKeeper of {0} nodes: it is 0, 1 or 3")]
    ZookeeperNodes(u8),
    #[error("{0}")]
    State(String),
}

// === impl LabPlan ===

impl LabPlan {
    /// Everything, ZooKeeper with one node.
    pub fn all() -> Self {
        Self {
            redis: true,
            redlock: true,
            zookeeper_nodes: 1,
            postgres: true,
            mariadb: true,
        }
    }

    pub fn nothing() -> Self {
        Self {
            redis: false,
            redlock: false,
            zookeeper_nodes: 0,
            postgres: false,
            mariadb: false,
        }
    }
}

// === impl LabOptions ===

impl Default for LabOptions {
    fn default() -> Self {
        Self {
            ports: Ports::Free,
            binaries: Binaries::of_system(),
        }
    }
}

// === impl Lab ===

impl Lab {
    /// Starts the servers of the plan on free ports. See [`Lab::start_with`].
    pub async fn start(plan: &LabPlan) -> Result<Self, LabError> {
        Self::start_with(plan, &LabOptions::default()).await
    }

    /// Starts the servers of the plan side by side. `Ok` when each either answers, or is reported
    /// by [`Lab::servers`] as not installed or failed; `Err` when there is no directory to start
    /// in, or the plan makes no sense.
    ///
    /// # Cancel safety
    /// Dropped on the way, the servers end, as they do with a dropped `Lab`.
    pub async fn start_with(plan: &LabPlan, options: &LabOptions) -> Result<Self, LabError> {
        let directory = start::directory()?;
        let keeper = start::keeper(directory.path()).await?;
        let entries = start::all(plan, options, directory.path()).await?;
        Ok(Self {
            entries,
            keeper,
            directory,
        })
    }

    /// Ends every server and removes the directory. An error names what is still there after 15 s.
    pub async fn stop(self) -> Result<(), LabError> {
        let ends = self
            .servers_started()
            .map(|(id, server)| async move { (id, server.end().await) });
        let ended = futures::future::join_all(ends).await;
        if let Some((id, _)) = ended.into_iter().find(|(_, ended)| !ended) {
            let why = "it did not end".to_owned();
            return Err(LabError::Server { id, why });
        }
        self.keeper.end(server::END_WAIT).await;
        match self.directory.close() {
            // The keeper has removed it.
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(LabError::Directory(error))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Where the servers' data and logs lie, for as long as the lab runs.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// `redis://127.0.0.1:PORT` of the gate's Redis.
    pub fn redis_url(&self) -> Option<String> {
        self.url(ServerId::Redis)
    }

    /// The five URLs; `None` unless all five started.
    pub fn redlock_urls(&self) -> Option<Vec<String>> {
        (1..=5)
            .map(|node| self.url(ServerId::Redlock(node)))
            .collect()
    }

    /// `127.0.0.1:PORT` of each node, separated by commas.
    pub fn zookeeper(&self) -> Option<String> {
        let nodes: Vec<String> = (1..=3)
            .filter_map(|node| self.url(ServerId::Zookeeper(node)))
            .collect();
        (!nodes.is_empty()).then(|| nodes.join(","))
    }

    pub fn postgres_url(&self) -> Option<String> {
        self.url(ServerId::Postgres)
    }

    pub fn mysql_url(&self) -> Option<String> {
        self.url(ServerId::Mariadb)
    }

    /// The `FLASHLOCK_*` variables that make a service use this lab. The database is PostgreSQL
    /// where there is one, else MariaDB.
    pub fn environment(&self) -> Vec<(String, String)> {
        [
            ("FLASHLOCK_REDIS_URL", self.redis_url()),
            (
                "FLASHLOCK_REDLOCK_URLS",
                self.redlock_urls().map(|urls| urls.join(",")),
            ),
            ("FLASHLOCK_ZOOKEEPER", self.zookeeper()),
            (
                "FLASHLOCK_DATABASE_URL",
                self.postgres_url().or_else(|| self.mysql_url()),
            ),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect()
    }

    /// Every server that was asked for, and what became of it.
    pub fn servers(&self) -> Vec<ServerStatus> {
        self.entries.iter().map(Entry::status).collect()
    }

    /// The processes of each running server, for accounting: the server first, then what it
    /// forked, such as PostgreSQL's backends. The CPU time of a backend that has ended is in its
    /// parent's `cutime` and `cstime`.
    pub fn pids(&self) -> Vec<(ServerId, Vec<u32>)> {
        self.servers_started()
            .map(|(id, server)| (id, server.pids()))
            .filter(|(_, pids)| !pids.is_empty())
            .collect()
    }

    /// Version and durability of each kind of server that runs, read back from its first node.
    pub async fn settings(&self) -> BTreeMap<String, BTreeMap<String, String>> {
        let mut settings = BTreeMap::new();
        for (id, server) in self.servers_started() {
            if settings.contains_key(id.kind()) || server.pid().is_none() {
                continue;
            }
            match server.settings().await {
                Ok(found) => {
                    settings.insert(id.kind().to_owned(), found);
                }
                Err(why) => tracing::warn!(server = %id, why, "settings were not read back"),
            }
        }
        settings
    }

    /// Creates an empty database and answers its URL. An error when the name is taken.
    pub async fn create_database(
        &self,
        kind: DatabaseKind,
        name: &str,
    ) -> Result<String, LabError> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if !name.starts_with(|c: char| c.is_ascii_lowercase())
            || !name.chars().all(plain)
            || name.len() > 41
        {
            return Err(LabError::DatabaseName(name.to_owned()));
        }
        let (id, created) = match kind {
            DatabaseKind::Postgres => {
                let url = self.started(ServerId::Postgres)?.url();
                (
                    ServerId::Postgres,
                    postgres::create_database(&url, name).await,
                )
            }
            DatabaseKind::Mysql => {
                let url = self.started(ServerId::Mariadb)?.url();
                (
                    ServerId::Mariadb,
                    mariadb::create_database(&url, name).await,
                )
            }
        };
        created.map_err(|why| LabError::Server { id, why })
    }

    fn servers_started(&self) -> impl Iterator<Item = (ServerId, &Server)> {
        self.entries
            .iter()
            .filter_map(|entry| Some((entry.id, entry.outcome.as_ref().ok()?)))
    }

    fn started(&self, id: ServerId) -> Result<&Server, LabError> {
        self.servers_started()
            .find_map(|(found, server)| (found == id).then_some(server))
            .ok_or(LabError::Absent(id))
    }

    fn url(&self, id: ServerId) -> Option<String> {
        self.started(id).ok().map(Server::url)
    }
}

// === impl Entry ===

impl Entry {
    fn status(&self) -> ServerStatus {
        let state = match &self.outcome {
            Ok(server) => match server.pid() {
                Some(pid) => ServerState::Running {
                    pid,
                    port: server.port(),
                },
                None => ServerState::Stopped {
                    port: server.port(),
                },
            },
            Err(NotStarted::NotInstalled { install }) => ServerState::NotInstalled {
                install: install.clone(),
            },
            Err(NotStarted::Failed { log }) => ServerState::Failed { log: log.clone() },
        };
        ServerStatus {
            id: self.id,
            name: self.id.to_string(),
            state,
            url: self.outcome.as_ref().ok().map(Server::url),
        }
    }
}
