//! The options of `serve`, from a TOML file, `FLASHLOCK_*` variables and the command line, the
//! later ones first; and which set-ups are refused.

mod source;

use std::net::SocketAddr;
use std::path::Path;

use clap::ValueEnum;
use figment::Figment;
use figment::providers::Serialized;
use serde::{Deserialize, Serialize};

use source::{CommandLine, File, Variables};

use crate::store::{Dialect, UnknownDatabase};

/// The background work a process does beside answering requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The REST API.
    Api,
    /// Books orders that were accepted for later.
    Booker,
    /// Closes orders whose pay window is over, and moves activities on: a pause, an end.
    Closer,
    /// Delivers the outbox, and carries out what its events ask for.
    Relay,
    /// Ends what interrupted purchases left behind.
    Sweeper,
    /// Compares the stores and mends what differs.
    Reconciler,
}

/// Where the token buckets of the rate limits are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum LimiterPlace {
    /// In each process: several behind a balancer let in several times as many.
    Local,
    /// In Redis: all processes together let in what the limits say.
    Redis,
}

/// Every option of the service. An unknown field is an error.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where to listen. Port 0 takes a free one.
    #[serde(deserialize_with = "address")]
    pub listen: SocketAddr,
    /// `sqlite:FILE`, `postgres://…` or `mysql://…`.
    pub database_url: String,
    /// Most database connections of this process.
    pub database_connections_max: u32,
    /// The Redis of `redis-set-nx` and `redis-lua`.
    pub redis_url: Option<String>,
    /// Where the rate limits are kept: in Redis where `redis_url` is set, unless it is said.
    pub limiter: Option<LimiterPlace>,
    /// The independent Redis nodes of `redlock`: an odd number, three or more.
    #[serde(deserialize_with = "list")]
    pub redlock_urls: Vec<String>,
    /// The ZooKeeper ensemble: `host:port,host:port`.
    pub zookeeper: Option<String>,
    /// Bearer token for activities, reconciliation and dead letters.
    pub operator_token: Option<String>,
    /// Bearer token for buying, paying and reading.
    pub caller_token: Option<String>,
    /// Allow `no-lock` and `guard = none`, for experiments on loopback.
    pub allow_control: bool,
    #[serde(deserialize_with = "list")]
    pub roles: Vec<Role>,
    /// Largest request body, in bytes.
    pub body_bytes_max: usize,
    /// Longest wait for requests in flight when the service stops, in seconds.
    pub shutdown_s: u64,
    /// An activity that is not warmed up this long before it opens raises an alarm, in seconds.
    pub alarm_before_open_s: u64,
}

/// Why these options are not used. The message says what to change.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("{0}")]
    Read(Box<figment::Error>),
    #[error("the configuration file {0} does not exist")]
    Missing(String),
    #[error(transparent)]
    Database(#[from] UnknownDatabase),
    #[error(
        "the database URL {0} has no file that several connections could share; use sqlite:FILE"
    )]
    InMemory(String),
    #[error(
        "listening on {0}, which others can reach, needs operator_token and caller_token; set both, or listen on 127.0.0.1"
    )]
    OpenToAll(SocketAddr),
    #[error("allow_control works on loopback only, and {0} is not")]
    ControlInPublic(SocketAddr),
    #[error("only one of operator_token and caller_token is set; set both, or neither")]
    OneToken,
    #[error("operator_token and caller_token are the same; give each scope a token of its own")]
    SameTokens,
    #[error("{0} is set and empty; leave it out, or give it a value")]
    Empty(&'static str),
    #[error(
        "redlock_urls names {0} nodes; RedLock needs an odd number, three or more, of independent Redis"
    )]
    Quorum(usize),
    #[error("limiter is redis and no Redis is configured; set redis_url, or leave limiter out")]
    LimiterWithoutRedis,
    #[error("redlock_urls names {0} twice; the nodes must be independent")]
    SameNode(String),
    #[error("{name} = {value} is out of range; {allowed}")]
    Range {
        name: &'static str,
        value: u64,
        allowed: &'static str,
    },
}

// === impl Config ===

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            database_url: "sqlite:flashlock.db".to_string(),
            database_connections_max: 16,
            redis_url: None,
            limiter: None,
            redlock_urls: Vec::new(),
            zookeeper: None,
            operator_token: None,
            caller_token: None,
            allow_control: false,
            roles: Role::value_variants().to_vec(),
            body_bytes_max: 16 * 1024,
            shutdown_s: 20,
            alarm_before_open_s: 60,
        }
    }
}

impl Config {
    /// Defaults, then the file, then `FLASHLOCK_*`, then `overrides` (the command line's options
    /// that were given, as a map of field to value).
    pub fn read(
        file: Option<&Path>,
        overrides: serde_json::Map<String, serde_json::Value>,
    ) -> Result<Self, ConfigError> {
        let mut figment = Figment::from(Serialized::defaults(Self::default()));
        if let Some(file) = file {
            if !file.is_file() {
                return Err(ConfigError::Missing(file.display().to_string()));
            }
            figment = figment.merge(File(file));
        }
        let config: Self = figment
            .merge(Variables)
            .merge(CommandLine(overrides))
            .extract()
            .map_err(|e| ConfigError::Read(Box::new(e)))?;
        config.validate()?;
        Ok(config)
    }

    /// Refuses what would not be safe or cannot work.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let dialect = Dialect::of_url(&self.database_url)?;
        if dialect == Dialect::Sqlite && !names_a_file(&self.database_url) {
            return Err(ConfigError::InMemory(self.database_url.clone()));
        }
        let loopback = self.listen.ip().is_loopback();
        if !loopback && (self.operator_token.is_none() || self.caller_token.is_none()) {
            return Err(ConfigError::OpenToAll(self.listen));
        }
        if self.allow_control && !loopback {
            return Err(ConfigError::ControlInPublic(self.listen));
        }
        let texts = [
            ("operator_token", &self.operator_token),
            ("caller_token", &self.caller_token),
            ("redis_url", &self.redis_url),
            ("zookeeper", &self.zookeeper),
        ];
        for (name, value) in texts {
            if value.as_ref().is_some_and(|v| v.trim().is_empty()) {
                return Err(ConfigError::Empty(name));
            }
        }
        if self.operator_token.is_some() != self.caller_token.is_some() {
            return Err(ConfigError::OneToken);
        }
        if self.operator_token.is_some() && self.operator_token == self.caller_token {
            return Err(ConfigError::SameTokens);
        }
        if self.limiter == Some(LimiterPlace::Redis) && self.redis_url.is_none() {
            return Err(ConfigError::LimiterWithoutRedis);
        }
        let nodes = self.redlock_urls.len();
        if nodes != 0 && (nodes < 3 || nodes.is_multiple_of(2)) {
            return Err(ConfigError::Quorum(nodes));
        }
        let mut seen = std::collections::BTreeSet::new();
        if let Some(twice) = self.redlock_urls.iter().find(|url| !seen.insert(*url)) {
            return Err(ConfigError::SameNode(twice.clone()));
        }
        self.range(
            "database_connections_max",
            u64::from(self.database_connections_max),
            1,
            1000,
            "1 to 1000",
        )?;
        self.range(
            "body_bytes_max",
            self.body_bytes_max as u64,
            1024,
            1 << 20,
            "1024 to 1048576 bytes",
        )?;
        self.range("shutdown_s", self.shutdown_s, 1, 300, "1 to 300 seconds")?;
        self.range(
            "alarm_before_open_s",
            self.alarm_before_open_s,
            1,
            86_400,
            "1 to 86400 seconds",
        )
    }

    /// Where the rate limits are kept. Shared where they can be: several processes behind a
    /// balancer are one sale to its buyers.
    pub fn limiter_place(&self) -> LimiterPlace {
        self.limiter.unwrap_or(match self.redis_url {
            Some(_) => LimiterPlace::Redis,
            None => LimiterPlace::Local,
        })
    }

    fn range(
        &self,
        name: &'static str,
        value: u64,
        min: u64,
        max: u64,
        allowed: &'static str,
    ) -> Result<(), ConfigError> {
        if (min..=max).contains(&value) {
            Ok(())
        } else {
            Err(ConfigError::Range {
                name,
                value,
                allowed,
            })
        }
    }
}

/// SQLite gives each connection a database of its own when there is no file.
fn names_a_file(url: &str) -> bool {
    let rest = url.strip_prefix("sqlite:").unwrap_or(url);
    let rest = rest.strip_prefix("//").unwrap_or(rest);
    let (file, parameters) = rest.split_once('?').unwrap_or((rest, ""));
    !file.is_empty() && file != ":memory:" && !parameters.contains("mode=memory")
}

/// An address with its port. A name such as `localhost` may stand for several, so it is none.
fn address<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(|_invalid| {
        serde::de::Error::custom(format!(
            "`{text}` is not an IP address and a port, such as 127.0.0.1:8080"
        ))
    })
}

/// A list, or the same as text with commas, as an environment variable has it.
fn list<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: serde::de::DeserializeOwned,
{
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Text(String),
        List(Vec<String>),
    }
    let parts = match Either::deserialize(deserializer)? {
        Either::Text(text) => text.split(',').map(|p| p.trim().to_string()).collect(),
        Either::List(list) => list,
    };
    parts
        .into_iter()
        .filter(|part| !part.is_empty())
        .map(|part| T::deserialize(serde::de::value::StringDeserializer::new(part)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn valid(change: impl FnOnce(&mut Config)) -> Result<(), ConfigError> {
        let mut config = Config::default();
        change(&mut config);
        config.validate()
    }

    #[test]
    fn the_defaults_are_valid_and_unsafe_set_ups_are_refused() {
        assert!(valid(|_| {}).is_ok());
        let open = |c: &mut Config| c.listen = SocketAddr::from(([0, 0, 0, 0], 80));
        assert!(matches!(valid(open), Err(ConfigError::OpenToAll(_))));
        let one_token = |c: &mut Config| {
            open(c);
            c.operator_token = Some("o".into());
        };
        assert!(matches!(valid(one_token), Err(ConfigError::OpenToAll(_))));
        let tokens = |c: &mut Config| {
            one_token(c);
            c.caller_token = Some("c".into());
        };
        assert!(valid(tokens).is_ok());
        let control = |c: &mut Config| {
            tokens(c);
            c.allow_control = true;
        };
        assert!(matches!(
            valid(control),
            Err(ConfigError::ControlInPublic(_))
        ));
        let same = |c: &mut Config| {
            c.operator_token = Some("x".into());
            c.caller_token = Some("x".into());
        };
        assert!(matches!(valid(same), Err(ConfigError::SameTokens)));
        let two = |c: &mut Config| c.redlock_urls = vec!["redis://a".into(), "redis://b".into()];
        assert!(matches!(valid(two), Err(ConfigError::Quorum(2))));
        let twice = |c: &mut Config| {
            c.redlock_urls = vec!["redis://a".into(), "redis://b".into(), "redis://a".into()]
        };
        assert!(matches!(valid(twice), Err(ConfigError::SameNode(_))));
        let nowhere = |c: &mut Config| c.limiter = Some(LimiterPlace::Redis);
        assert!(matches!(
            valid(nowhere),
            Err(ConfigError::LimiterWithoutRedis)
        ));
        for url in [
            "sqlite::memory:",
            "sqlite://:memory:",
            "sqlite:",
            "sqlite:x?mode=memory",
        ] {
            let memory = valid(|c| c.database_url = url.into());
            assert!(matches!(memory, Err(ConfigError::InMemory(_))), "{url}");
        }
        assert!(valid(|c| c.database_url = "sqlite:///tmp/x.db?mode=rwc".into()).is_ok());
        assert!(matches!(
            valid(|c| c.database_url = "oracle://x".into()),
            Err(ConfigError::Database(_))
        ));
    }
}
