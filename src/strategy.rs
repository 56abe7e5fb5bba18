//! The strategies by name, and how each is opened. A new one is a file and three lines here.

pub mod db_conditional_update;
pub mod db_for_update;
pub mod db_unique_insert;
pub mod db_version;
pub mod no_lock;
pub mod redis_lua;
pub mod redis_set_nx;
pub mod redlock;
pub mod zookeeper;

use clap::ValueEnum;

use crate::deduct::{Deduct, Form, Locked, Transacted};
use crate::lock::{Guarantees, Lock};
use crate::sale::{Activity, GuardMode, StrategyName};
use crate::store::Store;

/// How an activity's stock is protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum)]
pub enum Strategy {
    RedisSetNx,
    Redlock,
    Zookeeper,
    DbUniqueInsert,
    DbConditionalUpdate,
    DbForUpdate,
    DbVersion,
    RedisLua,
    NoLock,
}

/// Where the strategies find their servers; what is not configured is `None` or empty.
#[derive(Debug, Clone)]
pub struct Servers {
    pub store: Store,
    pub redis_url: Option<String>,
    pub redlock_urls: Vec<String>,
    pub zookeeper: Option<String>,
}

/// Why a strategy cannot be opened here; a sentence that says what to configure.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Missing(pub String);

/// A name that no strategy has; displayed with the names there are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownStrategy(pub String);

/// What a strategy's file says of it before it is opened.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    pub kind: Kind,
    /// Beside the database.
    pub needs: &'static [Need],
    open: fn(&Servers) -> Result<Box<dyn Deduct>, Missing>,
}

/// How a strategy keeps buyers apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// By a lock with a lease: an activity's guard means something.
    Lock,
    /// By the database alone, within one transaction.
    Transaction,
    /// By the gate in Redis, which has books of its own.
    Gate,
    /// Not at all: it is there to be seen failing, and not for a sale.
    Control,
}

/// A server that has to be configured.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, utoipa::ToSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Need {
    Redis,
    Redlock,
    Zookeeper,
}

// === impl Need ===

impl Need {
    /// The option that configures it.
    pub fn option(self) -> &'static str {
        match self {
            Self::Redis => "redis_url",
            Self::Redlock => "redlock_urls",
            Self::Zookeeper => "zookeeper",
        }
    }
}

// === impl Strategy ===

impl Strategy {
    /// What its file says of it.
    pub fn entry(self) -> Entry {
        match self {
            Self::RedisSetNx => redis_set_nx::ENTRY,
            Self::Redlock => redlock::ENTRY,
            Self::Zookeeper => zookeeper::ENTRY,
            Self::DbUniqueInsert => db_unique_insert::ENTRY,
            Self::DbConditionalUpdate => db_conditional_update::ENTRY,
            Self::DbForUpdate => db_for_update::ENTRY,
            Self::DbVersion => db_version::ENTRY,
            Self::RedisLua => redis_lua::ENTRY,
            Self::NoLock => no_lock::ENTRY,
        }
    }

    /// Opens the strategy. Its servers need not answer yet.
    pub fn open(self, servers: &Servers) -> Result<Box<dyn Deduct>, Missing> {
        (self.entry().open)(servers)
    }

    /// The shortest lease its lock can keep, in milliseconds.
    pub fn lease_ms_min(self) -> i64 {
        let mins = self.entry().needs.iter().map(|need| match need {
            Need::Redlock => redlock::LEASE_MS_MIN,
            Need::Redis | Need::Zookeeper => 1,
        });
        mins.max().unwrap_or(1)
    }

    pub fn needs(self, server: Need) -> bool {
        self.entry().needs.contains(&server)
    }

    pub fn all() -> &'static [Self] {
        Self::value_variants()
    }

    pub fn name(self) -> StrategyName {
        let value = self.to_possible_value().expect("no variant is hidden");
        StrategyName::new(value.get_name())
    }

    /// The strategy of this name; the error lists the names there are.
    pub fn parse(name: &str) -> Result<Self, UnknownStrategy> {
        Self::from_str(name, false).map_err(|_no| UnknownStrategy(name.to_string()))
    }

    /// Whether `activity` is there to be seen failing: nothing protects its stock, or a lock that is
    /// trusted though it may have lapsed.
    pub fn controls(activity: &Activity) -> bool {
        let strategy = Self::parse(activity.strategy.as_str());
        strategy.is_ok_and(|strategy| match strategy.entry().kind {
            Kind::Control => true,
            Kind::Lock => activity.guard == GuardMode::None,
            Kind::Transaction | Kind::Gate => false,
        })
    }

    /// It is there to be seen failing, and not for a sale.
    pub fn is_control(self) -> bool {
        self.entry().kind == Kind::Control
    }
}

// === impl Servers ===

impl Servers {
    /// A lock that lives beside the database, in the one critical section there is.
    fn locked<L: Lock>(&self, lock: L) -> Box<dyn Deduct> {
        Box::new(Locked::new(lock, self.store.clone()))
    }

    /// A form of the database's own, with what such forms share around it.
    fn transacted(&self, form: impl Form, guarantees: Guarantees) -> Box<dyn Deduct> {
        Box::new(Transacted::new(form, guarantees, self.store.clone()))
    }

    fn not_redis(error: impl std::fmt::Display) -> Missing {
        Missing(format!(
            "redis_url is not a Redis URL, such as redis://127.0.0.1:6379: {error}"
        ))
    }

    fn redis_url(&self) -> Result<&str, Missing> {
        self.redis_url.as_deref().ok_or_else(|| {
            Missing(
                "no Redis is configured: set redis_url, such as redis://127.0.0.1:6379".to_string(),
            )
        })
    }
}

// === impl UnknownStrategy ===

impl std::error::Error for UnknownStrategy {}

impl std::fmt::Display for UnknownStrategy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<String> = Strategy::all()
            .iter()
            .map(|s| s.name().to_string())
            .collect();
        write!(
            f,
            "unknown strategy `{}`; the strategies are {}",
            self.0,
            names.join(", ")
        )
    }
}
