//! How are the service processes of one cell started, and how do they end?

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::plan::Servers;
use crate::lab::process::{EndSignal, Signal, Stdout, Ward, WardError, WardSpec, log_tail};

/// A debug build on a busy machine opens its pools within this.
const READY_WAIT: Duration = Duration::from_secs(30);
/// Creating the tables on a slow disk.
const MIGRATE_WAIT: Duration = Duration::from_secs(60);
/// Longer than the service lets a purchase in flight take when it stops (`shutdown_s`).
const END_WAIT: Duration = Duration::from_secs(25);
const READY_LINE: &str = "listening on ";

/// What the processes need to know.
#[derive(Debug, Clone)]
pub struct ServiceSpec {
    pub binary: PathBuf,
    pub servers: Servers,
    /// Where the logs go.
    pub logs: PathBuf,
    /// Begins the logs' names.
    pub name: String,
}

/// The processes of one cell. Dropped, they are ended.
#[derive(Debug)]
pub struct Services {
    wards: Vec<Ward>,
    urls: Vec<String>,
}

/// Why the service does not run. The message ends with what it logged.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    #[error("cannot start {binary}: {source}")]
    Spawn {
        binary: String,
        #[source]
        source: WardError,
    },
    #[error("`{what}` ended with status {status} before it was ready; it logged:\n{log}")]
    Ended {
        what: String,
        status: i32,
        log: String,
    },
    #[error("`{what}` was not ready within {} s; it logged:\n{log}", wait.as_secs())]
    Late {
        what: String,
        wait: Duration,
        log: String,
    },
}

// === impl ServiceSpec ===

impl ServiceSpec {
    fn log(&self, which: &str) -> PathBuf {
        self.logs.join(format!("{}-{which}.log", self.name))
    }

    fn ward(&self, command: &str, log: &Path) -> WardSpec {
        // What this shell has set for a service of its own, such as its tokens, is not for these.
        let foreign = std::env::vars_os()
            .map(|(name, _)| name)
            .filter(|name| name.to_string_lossy().starts_with("FLASHLOCK_"))
            .flat_map(|name| [OsString::from("-u"), name]);
        let set = |name: &str, value: &str| OsString::from(format!("{name}={value}"));
        let mut ward = WardSpec::new("env", log).args(foreign);
        let servers = [
            ("FLASHLOCK_DATABASE_URL", self.servers.database_url.clone()),
            ("FLASHLOCK_REDIS_URL", self.servers.redis_url.clone()),
            (
                "FLASHLOCK_REDLOCK_URLS",
                self.servers
                    .redlock_urls
                    .as_ref()
                    .map(|urls| urls.join(",")),
            ),
            ("FLASHLOCK_ZOOKEEPER", self.servers.zookeeper.clone()),
        ];
        for (name, value) in servers {
            if let Some(value) = value {
                ward = ward.arg(set(name, &value));
            }
        }
        ward.arg(set("FLASHLOCK_LISTEN", "127.0.0.1:0"))
            .arg(set("FLASHLOCK_ALLOW_CONTROL", "true"))
            // A line per request would be measured too.
            .arg(set("FLASHLOCK_LOG", "warn,flashlock=warn"))
            .arg(&self.binary)
            .arg(command)
    }

    /// Creates the tables.
    pub async fn migrate(&self) -> Result<(), ServiceError> {
        let log = self.log("migrate");
        let ward = self.spawn(&self.ward("migrate", &log)).await?;
        match tokio::time::timeout(MIGRATE_WAIT, ward.ended()).await {
            Ok(0) => Ok(()),
            Ok(status) => Err(ServiceError::Ended {
                what: "flashlock migrate".to_string(),
                status,
                log: log_tail(&log, 0),
            }),
            Err(_late) => Err(ServiceError::Late {
                what: "flashlock migrate".to_string(),
                wait: MIGRATE_WAIT,
                log: log_tail(&log, 0),
            }),
        }
    }

    /// Starts `instances` processes and waits until each listens.
    ///
    /// # Cancel safety
    /// Dropped on the way, what was started is ended.
    pub async fn start(&self, instances: u16) -> Result<Services, ServiceError> {
        let all = (1..=instances).map(|n| self.start_one(n));
        let started = futures::future::try_join_all(all).await?;
        let (wards, urls) = started.into_iter().unzip();
        Ok(Services { wards, urls })
    }

    async fn start_one(&self, number: u16) -> Result<(Ward, String), ServiceError> {
        let log = self.log(&number.to_string());
        let spec = self
            .ward("serve", &log)
            .stdout(Stdout::Lines)
            .end(EndSignal::Term);
        let mut ward = self.spawn(&spec).await?;
        let ready = async {
            while let Some(line) = ward.next_line().await {
                if let Some(url) = line.trim().strip_prefix(READY_LINE) {
                    return Some(url.to_string());
                }
            }
            None
        };
        match tokio::time::timeout(READY_WAIT, ready).await {
            Ok(Some(url)) => Ok((ward, url)),
            Ok(None) => {
                let status = ward.ended().await;
                Err(ServiceError::Ended {
                    what: "flashlock serve".to_string(),
                    status,
                    log: log_tail(&log, 0),
                })
            }
            Err(_late) => Err(ServiceError::Late {
                what: "flashlock serve".to_string(),
                wait: READY_WAIT,
                log: log_tail(&log, 0),
            }),
        }
    }

    async fn spawn(&self, spec: &WardSpec) -> Result<Ward, ServiceError> {
        Ward::spawn(spec)
            .await
            .map_err(|source| ServiceError::Spawn {
                binary: self.binary.display().to_string(),
                source,
            })
    }
}

// === impl Services ===

impl Services {
    /// `http://127.0.0.1:PORT` of each process.
    pub fn urls(&self) -> &[String] {
        &self.urls
    }

    pub fn pids(&self) -> Vec<u32> {
        self.wards.iter().map(Ward::pid).collect()
    }

    /// How many have ended by themselves.
    pub fn ended(&self) -> usize {
        self.wards
            .iter()
            .filter(|w| w.has_ended().is_some())
            .count()
    }

    /// SIGTERM to all, then waits until each has answered what it was asked. `false` when one did
    /// not end in time and was killed.
    pub async fn stop(self) -> bool {
        for ward in &self.wards {
            ward.signal(Signal::TERM);
        }
        let mut in_time = true;
        for ward in &self.wards {
            if tokio::time::timeout(END_WAIT, ward.ended()).await.is_err() {
                in_time = false;
                ward.kill(END_WAIT).await;
            }
        }
        in_time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(binary: &str, logs: &Path) -> ServiceSpec {
        ServiceSpec {
            binary: PathBuf::from(binary),
            servers: Servers::default(),
            logs: logs.to_path_buf(),
            name: "cell".to_string(),
        }
    }

    #[tokio::test]
    async fn a_service_that_ends_early_is_told_with_its_log() {
        let dir = tempfile::tempdir().expect("a directory");
        // `ls serve` fails and says why on stderr, as a service without its database does.
        let error = spec("ls", dir.path())
            .start(2)
            .await
            .expect_err("no service");
        let text = error.to_string();
        assert!(
            text.contains("flashlock serve") && text.contains("No such file"),
            "{text}"
        );
    }
}
