//! How is a Redis of the lab set up, the gate's and RedLock's alike?

use std::collections::BTreeMap;
use std::path::PathBuf;

use async_trait::async_trait;

use super::find::Binaries;
use super::process::WardSpec;
use super::server::{ANSWER_WAIT, Recipe, ServerDir, StartError};

/// What is missing when there is no Redis.
pub(super) const INSTALL: &str = "run compose/deps.sh, or install the package redis-server";

/// The settings of every Redis here; `compose/redis.yaml` and `redlock.yaml` have the same.
pub const SETTINGS: &[(&str, &str)] = &[
    ("appendonly", "yes"),
    // At most one second of a sale is lost with the machine; the database is what settles.
    ("appendfsync", "everysec"),
    // An evicted lock is a lock that two hold.
    ("maxmemory-policy", "noeviction"),
    // Snapshots would fork in the middle of a measurement.
    ("save", ""),
];

/// One Redis on one port.
#[derive(Debug)]
pub(super) struct Redis {
    program: PathBuf,
    dir: ServerDir,
    port: u16,
}

// === impl Redis ===

impl Redis {
    pub(super) fn program(binaries: &Binaries) -> Option<PathBuf> {
        binaries.program("redis-server")
    }

    pub(super) fn new(program: PathBuf, dir: ServerDir, port: u16) -> Self {
        Self { program, dir, port }
    }
}

#[async_trait]
impl Recipe for Redis {
    async fn prepare(&self) -> Result<(), StartError> {
        std::fs::create_dir_all(self.dir.data())
            .map_err(|error| StartError::new(format!("data directory: {error}"), ""))
    }

    fn spec(&self) -> WardSpec {
        let mut spec = self
            .dir
            .spec(self.program.clone(), Vec::new())
            .args(["--bind", "127.0.0.1", "--port"])
            .arg(self.port.to_string())
            .arg("--dir")
            .arg(self.dir.data());
        for (name, value) in SETTINGS {
            spec = spec.arg(format!("--{name}")).arg(*value);
        }
        spec
    }

    fn port(&self) -> u16 {
        self.port
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    async fn answers(&self, pid: u32) -> Result<(), String> {
        let pong: String = redis::cmd("PING")
            .query_async(&mut connect(&self.url()).await?)
            .await
            .map_err(|error| error.to_string())?;
        let info = info(&self.url()).await?;
        match info.get::<u32>("process_id") {
            Some(theirs) if theirs == pid && pong == "PONG" => Ok(()),
            Some(_) | None => Err("another Redis answers on this port".to_owned()),
        }
    }

    async fn settings(&self, _pid: u32) -> Result<BTreeMap<String, String>, String> {
        let mut settings: BTreeMap<String, String> = redis::cmd("CONFIG")
            .arg("GET")
            .arg(&["appendonly", "appendfsync", "maxmemory-policy", "save"])
            .query_async(&mut connect(&self.url()).await?)
            .await
            .map_err(|error| error.to_string())?;
        let version = info(&self.url())
            .await?
            .get("redis_version")
            .unwrap_or_default();
        settings.insert("version".to_owned(), version);
        settings.insert("file_system".to_owned(), self.dir.file_system());
        Ok(settings)
    }
}

/// Whether the Redis at `url` serves requests now.
pub async fn ping(url: &str) -> Result<(), String> {
    redis::cmd("PING")
        .query_async(&mut connect(url).await?)
        .await
        .map_err(|error| error.to_string())
}

async fn info(url: &str) -> Result<redis::InfoDict, String> {
    redis::cmd("INFO")
        .arg("server")
        .query_async(&mut connect(url).await?)
        .await
        .map_err(|error| error.to_string())
}

async fn connect(url: &str) -> Result<redis::aio::MultiplexedConnection, String> {
    let config = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(Some(ANSWER_WAIT))
        .set_response_timeout(Some(ANSWER_WAIT));
    let client = redis::Client::open(url).map_err(|error| error.to_string())?;
    client
        .get_multiplexed_async_connection_with_config(&config)
        .await
        .map_err(|error| error.to_string())
}
