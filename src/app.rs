//! The opened servers and strategies of one process.

use std::collections::HashMap;
use std::sync::Arc;

use crate::config::{Config, LimiterPlace};
use crate::deduct::Deduct;
use crate::limit::Limiter;
use crate::sale::StrategyName;
use crate::setup::Setup;
use crate::store::{OpenError, Store, StoreOptions};
use crate::strategy::{Servers, Strategy};

/// What a request needs.
#[derive(Debug)]
pub struct App {
    pub config: Config,
    pub store: Store,
    pub limiter: Limiter,
    /// What is known of the servers' settings.
    pub setup: Setup,
    strategies: HashMap<StrategyName, Opened>,
}

/// A strategy, or why this process does not have it and what to configure.
#[derive(Debug, Clone)]
pub enum Opened {
    Here(Arc<dyn Deduct>),
    Missing(String),
}

// === impl App ===

impl App {
    /// Opens the database (it must answer) and the strategies (their servers need not: they are
    /// connected to when first used, and again after they were away).
    pub async fn open(config: Config) -> Result<Self, OpenError> {
        let store = Store::open(&StoreOptions {
            url: config.database_url.clone(),
            connections_max: config.database_connections_max,
        })
        .await?;
        store.migrate().await?;
        let servers = Servers {
            store: store.clone(),
            redis_url: config.redis_url.clone(),
            redlock_urls: config.redlock_urls.clone(),
            zookeeper: config.zookeeper.clone(),
        };
        let strategies = Strategy::all()
            .iter()
            .map(|strategy| {
                let opened = match strategy.open(&servers) {
                    Ok(deduct) => Opened::Here(Arc::from(deduct)),
                    Err(missing) => Opened::Missing(missing.to_string()),
                };
                (strategy.name(), opened)
            })
            .collect();
        Ok(Self {
            limiter: limiter(&config),
            setup: Setup::new(&config),
            config,
            store,
            strategies,
        })
    }

    /// Adds a strategy of one's own, or puts it in place of another: for a program that embeds the
    /// service. Activities name it as they name the others.
    pub fn with_strategy(mut self, name: StrategyName, strategy: Arc<dyn Deduct>) -> Self {
        self.strategies.insert(name, Opened::Here(strategy));
        self
    }

    /// The strategy as this process has it. An unknown name is one that a later version wrote.
    /// One whose servers are set up unsafely is missing.
    pub fn strategy(&self, name: &StrategyName) -> Opened {
        let known = Strategy::parse(name.as_str());
        if let Some(why) = known.ok().and_then(|known| self.setup.refusal(known)) {
            return Opened::Missing(why);
        }
        self.strategies.get(name).cloned().unwrap_or_else(|| {
            Opened::Missing(format!(
                "this version does not know the strategy `{name}`; upgrade it"
            ))
        })
    }

    /// The strategies here that are told from the outbox what became of their orders, by name.
    pub fn mirrored(&self) -> Vec<StrategyName> {
        let is_told = |name: &&StrategyName| match self.strategy(name) {
            Opened::Here(strategy) => strategy.has_mirror(),
            Opened::Missing(_) => false,
        };
        let mut names: Vec<StrategyName> =
            self.strategies.keys().filter(is_told).cloned().collect();
        names.sort_by(|a, b| a.as_str().cmp(b.as_str()));
        names
    }

    /// What whoever starts the service should know: who may reach it, and what is missing.
    pub fn notices(&self) -> Vec<String> {
        let mut notices = vec![format!("database: {}", self.store.dialect().as_str())];
        if self.config.operator_token.is_none() {
            notices.push(
                "no tokens are configured: anyone on this machine may do anything, and only loopback is listened on"
                    .to_string(),
            );
        }
        for strategy in Strategy::all() {
            if let Opened::Missing(why) = self.strategy(&strategy.name()) {
                notices.push(format!(
                    "strategy {} is not available: {why}",
                    strategy.name()
                ));
            }
        }
        notices
    }
}

/// The rate limits where the configuration has them.
fn limiter(config: &Config) -> Limiter {
    let url = match (config.limiter_place(), &config.redis_url) {
        (LimiterPlace::Redis, Some(url)) => url,
        (LimiterPlace::Local, _) | (LimiterPlace::Redis, None) => return Limiter::local(),
    };
    Limiter::shared(url).unwrap_or_else(|error| {
        tracing::error!(%error, "redis_url is not a Redis URL: each process limits by itself");
        Limiter::local()
    })
}
