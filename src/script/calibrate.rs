//! The script that a comparison times to know what any script costs here.

use redis::Script;
use redis::aio::ConnectionLike;

/// `calibrate.lua`, by its SHA once it is loaded.
#[derive(Debug)]
pub struct Calibrate(Script);

// === impl Calibrate ===

impl Default for Calibrate {
    fn default() -> Self {
        Self(Script::new(include_str!("../../lua/calibrate.lua")))
    }
}

impl Calibrate {
    /// Sets `key` to `value` by EVALSHA; loads the script if the server does not know it.
    pub async fn set<C: ConnectionLike>(
        &self,
        con: &mut C,
        key: &str,
        value: usize,
    ) -> Result<(), redis::RedisError> {
        self.0.key(key).arg(value).invoke_async(con).await
    }
}
