//! The bare deduct script that `reserve.lua` is measured beside.

use redis::{Cmd, Script};

const KEY: &str = "speed:bare:stock";

/// `bare.lua` on one key.
pub(crate) struct Bare(Script);

// === impl Bare ===

impl Bare {
    /// Loads the script, and puts `stock` under its key.
    pub(crate) async fn load(
        con: &mut redis::aio::MultiplexedConnection,
        stock: i64,
    ) -> Result<Self, redis::RedisError> {
        let script = Script::new(include_str!("bare.lua"));
        script.load_async(con).await?;
        redis::cmd("SET")
            .arg(KEY)
            .arg(stock)
            .query_async::<()>(con)
            .await?;
        Ok(Self(script))
    }

    /// Takes one unit.
    pub(crate) fn command(&self) -> Cmd {
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(self.0.get_hash()).arg(1).arg(KEY).arg(1);
        cmd
    }

    /// What is left.
    pub(crate) async fn left(
        &self,
        con: &mut redis::aio::MultiplexedConnection,
    ) -> Result<i64, redis::RedisError> {
        redis::cmd("GET").arg(KEY).query_async(con).await
    }
}
