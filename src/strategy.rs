//! The strategies by name, and how each is opened. A new one is a file and three lines here.

use clap::ValueEnum;

use crate::sale::StrategyName;

/// How an activity's stock is protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum)]
pub enum Strategy {
    RedisSetNx,
    Redlock,
    Zookeeper,
    DbUniqueInsert,
    DbConditionalUpdate,
    RedisLua,
    NoLock,
}

// === impl Strategy ===

impl Strategy {
    pub fn all() -> &'static [Self] {
        Self::value_variants()
    }

    pub fn name(self) -> StrategyName {
        let value = self.to_possible_value().expect("no variant is hidden");
        StrategyName::new(value.get_name())
    }

    /// The strategy of this name; the error lists the names there are.
    pub fn parse(name: &str) -> Result<Self, UnknownStrategy> {
        Self::from_str(name, false).map_err(|_no| UnknownStrategy {
            name: name.to_string(),
        })
    }
}

/// A name that no strategy has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownStrategy {
    pub name: String,
}

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
            self.name,
            names.join(", ")
        )
    }
}
