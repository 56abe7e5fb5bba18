//! What will be compared, under which load: the options once they have been checked.

use std::path::PathBuf;
use std::time::Duration;

use crate::run::PlanInfo;
use crate::sale::{GuardMode, Sku, Watchdog};
use crate::strategy::Strategy;

/// Fewest service processes: inside one process a mutex would do.
pub const INSTANCES_MIN: u16 = 2;
/// Most service processes on one machine.
pub const INSTANCES_MAX: u16 = 32;
/// Most requests in flight: each is a socket here and one in the service.
pub const CONCURRENCY_MAX: u32 = 4096;
/// Most buyers of one burst: each is a task and a history in memory.
pub const USERS_MAX: u32 = 1_000_000;

/// What the service takes as `batch_max`.
pub const BATCH_MAX: i64 = 256;

/// How long a comparison may take and how much it may be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Profile {
    /// All strategies within two minutes on two cores.
    Quick,
    /// Enough buyers for a p99 of the answers.
    Standard,
    /// A long sale.
    Thorough,
}

/// The kind of database the orders are in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum DatabaseKind {
    Sqlite,
    Postgres,
    Mysql,
}

/// Whose servers are used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServersFrom {
    /// A private lab, started for this run and gone after it.
    Lab,
    /// Servers that run already.
    Given(Servers),
}

/// Where the servers are. What is `None` is not there.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Servers {
    pub database_url: Option<String>,
    pub redis_url: Option<String>,
    pub redlock_urls: Option<Vec<String>>,
    /// `host:port,host:port`.
    pub zookeeper: Option<String>,
}

/// Whether the service's rate limits take part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LimitsMode {
    On,
    Off,
}

/// A comparison that can be run.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// In the order of `strategy.rs`; the control comes last.
    pub strategies: Vec<Strategy>,
    pub database: DatabaseKind,
    pub profile: Profile,
    pub seed: u64,
    pub out: PathBuf,
    pub servers: ServersFrom,
    pub zookeeper_nodes: u8,
    pub instances: u16,
    pub guard: GuardMode,
    pub batch_max: i64,
    pub limits: LimitsMode,
    pub load: LoadPlan,
    /// The service's binary.
    pub service: PathBuf,
    /// As it was typed, for the report.
    pub command: String,
}

/// The burst that every strategy gets.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadPlan {
    pub users: u32,
    pub stock: i64,
    /// Most requests in flight.
    pub concurrency: u32,
    /// Share of buyers, 0-1, that click twice with the same key.
    pub same_key_share: f64,
    /// Share of buyers, 0-1, that click twice with another key.
    pub other_key_share: f64,
    pub patience: Patience,
}

/// How long a buyer goes on after 503.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    pub tries_max: u32,
    /// From the buyer's click until they give up.
    pub total: Duration,
    /// Longest wait for one answer.
    pub one_answer: Duration,
    /// A `Retry-After` is cut to this: its unit is whole seconds, and a buyer presses again sooner.
    pub pause_max: Duration,
}

/// Why a plan cannot be run. The message says which option and what is allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error("--{option} {given} is out of range: {allowed}")]
    OutOfRange {
        option: &'static str,
        given: String,
        allowed: String,
    },
    #[error("--strategies names `{0}` twice")]
    Twice(String),
    #[error("--strategies is empty: name at least one")]
    NoStrategy,
    #[error("--servers config needs a {0} database in FLASHLOCK_DATABASE_URL, and it is {1}")]
    OtherDatabase(&'static str, String),
}

// === impl Plan ===

impl Plan {
    /// Checks every bound, and puts the strategies in the order of the report.
    pub fn checked(mut self) -> Result<Self, PlanError> {
        let load = &self.load;
        in_range("users", i64::from(load.users), 1, i64::from(USERS_MAX))?;
        in_range("stock", load.stock, 1, crate::sale::STOCK_MAX)?;
        in_range(
            "concurrency",
            i64::from(load.concurrency),
            1,
            i64::from(CONCURRENCY_MAX),
        )?;
        in_range(
            "instances",
            i64::from(self.instances),
            i64::from(INSTANCES_MIN),
            i64::from(INSTANCES_MAX),
        )?;
        in_range("batch-max", self.batch_max, 1, BATCH_MAX)?;
        share("same-key-share", load.same_key_share)?;
        share("other-key-share", load.other_key_share)?;
        share(
            "same-key-share + other-key-share",
            load.same_key_share + load.other_key_share,
        )?;
        if !matches!(self.zookeeper_nodes, 1 | 3) {
            return Err(PlanError::OutOfRange {
                option: "zookeeper-nodes",
                given: self.zookeeper_nodes.to_string(),
                allowed: "1 or 3".to_string(),
            });
        }
        if let ServersFrom::Given(servers) = &self.servers {
            let url = servers.database_url.as_deref().unwrap_or("not set");
            if !self.database.is_kind_of(url) {
                let shown = crate::store::without_password(url);
                return Err(PlanError::OtherDatabase(self.database.as_str(), shown));
            }
        }
        if self.strategies.is_empty() {
            return Err(PlanError::NoStrategy);
        }
        self.strategies.sort_by_key(|s| (s.is_control(), *s));
        if let Some(pair) = self.strategies.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(PlanError::Twice(pair[0].name().to_string()));
        }
        Ok(self)
    }

    pub fn info(&self) -> PlanInfo {
        PlanInfo {
            database: self.database.as_str().to_string(),
            users: u64::from(self.load.users),
            stock: u64::try_from(self.load.stock).unwrap_or(0),
            concurrency: u64::from(self.load.concurrency),
            instances: u64::from(self.instances),
            same_key_share: self.load.same_key_share,
            other_key_share: self.load.other_key_share,
            limits_on: self.limits == LimitsMode::On,
        }
    }

    /// The one thing on sale.
    pub fn sku() -> Sku {
        "FLASH-1".parse().expect("a valid sku")
    }

    /// Leases of a comparison: far longer than a critical section, so that only a fault ends one.
    pub const LOCK_TTL: Duration = Duration::from_secs(10);
    /// Waiting for the lock ends well before the buyer's client gives up on the answer.
    pub const LOCK_WAIT: Duration = Duration::from_secs(3);
    pub const WATCHDOG: Watchdog = Watchdog::On;
}

fn in_range(option: &'static str, given: i64, min: i64, max: i64) -> Result<(), PlanError> {
    if (min..=max).contains(&given) {
        return Ok(());
    }
    Err(PlanError::OutOfRange {
        option,
        given: given.to_string(),
        allowed: format!("from {min} to {max}"),
    })
}

fn share(option: &'static str, given: f64) -> Result<(), PlanError> {
    if (0.0..=1.0).contains(&given) {
        return Ok(());
    }
    Err(PlanError::OutOfRange {
        option,
        given: given.to_string(),
        allowed: "from 0 to 1".to_string(),
    })
}

// === impl Profile ===

impl Profile {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Quick => "quick",
            Self::Standard => "standard",
            Self::Thorough => "thorough",
        }
    }

    /// Buyers unless told otherwise: quick has 100 answers beyond the p90, standard and thorough
    /// beyond the p99 as well.
    pub fn users(self) -> u32 {
        match self {
            Self::Quick => 1_000,
            Self::Standard => 10_000,
            Self::Thorough => 30_000,
        }
    }

    pub fn stock(self) -> i64 {
        match self {
            Self::Quick => 300,
            Self::Standard => 3_000,
            Self::Thorough => 9_000,
        }
    }

    /// Bursts before the one that counts, at most: a JVM's first one costs double.
    pub fn warm_ups_max(self) -> u32 {
        match self {
            Self::Quick => 1,
            Self::Standard => 5,
            Self::Thorough => 10,
        }
    }

    /// How long a buyer goes on after 503. Longer than the slowest strategy takes for its sale.
    pub fn patience(self) -> Duration {
        match self {
            Self::Quick => Duration::from_secs(30),
            Self::Standard => Duration::from_secs(240),
            Self::Thorough => Duration::from_secs(900),
        }
    }
}

// === impl DatabaseKind ===

impl DatabaseKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
            Self::Mysql => "mysql",
        }
    }

    fn is_kind_of(self, url: &str) -> bool {
        let scheme = url.split(':').next().unwrap_or_default();
        match self {
            Self::Sqlite => scheme == "sqlite",
            Self::Postgres => matches!(scheme, "postgres" | "postgresql"),
            Self::Mysql => matches!(scheme, "mysql" | "mariadb"),
        }
    }
}

// === impl Patience ===

impl Patience {
    pub fn lasting(total: Duration) -> Self {
        Self {
            // Bounded by `total` first; this is for a service that refuses at once.
            tries_max: 200,
            total,
            one_answer: Duration::from_secs(10),
            pause_max: Duration::from_millis(250),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn plan() -> Plan {
        Plan {
            strategies: Strategy::all().to_vec(),
            database: DatabaseKind::Sqlite,
            profile: Profile::Quick,
            seed: 7,
            out: PathBuf::from("out"),
            servers: ServersFrom::Lab,
            zookeeper_nodes: 1,
            instances: 2,
            guard: GuardMode::Fence,
            batch_max: 1,
            limits: LimitsMode::Off,
            load: LoadPlan {
                users: 100,
                stock: 10,
                concurrency: 16,
                same_key_share: 0.1,
                other_key_share: 0.1,
                patience: Patience::lasting(Duration::from_secs(5)),
            },
            service: PathBuf::from("flashlock"),
            command: "flashlock compare".to_string(),
        }
    }

    #[test]
    fn the_control_comes_last_whatever_was_typed() {
        let mut typed = plan();
        typed.strategies = vec![Strategy::NoLock, Strategy::RedisLua, Strategy::RedisSetNx];
        let checked = typed.checked().expect("a valid plan");
        let want = [Strategy::RedisSetNx, Strategy::RedisLua, Strategy::NoLock];
        assert_eq!(checked.strategies, want);
    }

    #[test]
    fn what_is_out_of_range_is_refused_by_the_name_of_its_option() {
        type Break = fn(&mut Plan);
        let broken: [(&str, Break); 7] = [
            ("--users", |p| p.load.users = 0),
            ("--stock", |p| p.load.stock = 0),
            ("--stock", |p| p.load.stock = -1),
            ("--instances", |p| p.instances = 1),
            ("--concurrency", |p| p.load.concurrency = 0),
            ("--same-key-share", |p| p.load.same_key_share = f64::NAN),
            ("--zookeeper-nodes", |p| p.zookeeper_nodes = 2),
        ];
        for (option, broken) in broken {
            let mut typed = plan();
            broken(&mut typed);
            let error = typed.checked().expect_err(option).to_string();
            assert!(error.starts_with(option), "{error}");
        }
    }

    #[test]
    fn a_strategy_named_twice_is_refused() {
        let mut typed = plan();
        typed.strategies = vec![Strategy::Redlock, Strategy::RedisLua, Strategy::Redlock];
        let error = typed.checked().expect_err("twice").to_string();
        assert_eq!(error, "--strategies names `redlock` twice");
    }

    #[test]
    fn given_servers_must_have_the_kind_of_database_that_was_asked_for() {
        let mut typed = plan();
        typed.servers = ServersFrom::Given(Servers {
            database_url: Some("postgres://u:secret@127.0.0.1/x".to_string()),
            ..Servers::default()
        });
        let error = typed.checked().expect_err("another kind").to_string();
        assert!(
            error.contains("sqlite") && !error.contains("secret"),
            "{error}"
        );
    }
}
