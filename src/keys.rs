//! The name of every Redis key, znode path and lock row.

use crate::sale::{ActivityId, UserId};

/// What a lock protects: one activity. Displayed as the lock's name in each store.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LockKey(String);

/// The keys of one activity's gate. All share one hash tag, so that one script may touch them on a
/// Redis Cluster.
#[derive(Debug, Clone)]
pub struct GateKeys {
    pub meta: String,
    pub total: String,
    pub stock: String,
    pub pending: String,
    pub committed: String,
    pub rsv: String,
    pub pend: String,
    pub user: String,
    pub q: String,
    /// The activity's token bucket.
    pub b: String,
}

// === impl LockKey ===

impl LockKey {
    pub fn of(activity: &ActivityId) -> Self {
        Self(activity.to_string())
    }

    /// The row of `distributed_lock` and `lock_fence`.
    pub fn row(&self) -> String {
        format!("activity/{}", self.0)
    }

    /// The Redis key that holds the owner's token.
    pub fn redis(&self) -> String {
        format!("{{fs:{}}}:lock", self.0)
    }

    /// The Redis key of the fencing counter; it outlives the lock.
    pub fn redis_fence(&self) -> String {
        format!("{{fs:{}}}:lock-fence", self.0)
    }

    /// The pub/sub channel on which a release is announced.
    pub fn redis_channel(&self) -> String {
        format!("{{fs:{}}}:lock-released", self.0)
    }

    /// The znode under which contenders queue; one directory per lock, because the recipe's name
    /// filter is *contains*.
    pub fn znode(&self) -> String {
        format!("{ZNODE_ROOT}/{}", self.0)
    }
}

/// The parent of all lock directories in ZooKeeper.
pub const ZNODE_ROOT: &str = "/flashlock/locks";

/// The stream of the orders' events of one deployment. Its name is kept in its database, since a
/// database's URL says too little: `sqlite:flashlock.db` is another one in every directory, and
/// `localhost` on every machine.
pub fn event_stream(deployment: &str) -> String {
    format!("flashlock:events:{deployment}")
}

// === impl GateKeys ===

impl GateKeys {
    pub fn of(activity: &ActivityId) -> Self {
        let key = |name: &str| format!("{{fs:{activity}}}:{name}");
        Self {
            meta: key("meta"),
            total: key("total"),
            stock: key("stock"),
            pending: key("pending"),
            committed: key("committed"),
            rsv: key("rsv"),
            pend: key("pend"),
            user: key("user"),
            q: key("q"),
            b: Self::bucket(activity),
        }
    }

    /// The activity's token bucket.
    pub fn bucket(activity: &ActivityId) -> String {
        format!("{{fs:{activity}}}:b")
    }

    /// One user's token bucket.
    pub fn user_bucket(activity: &ActivityId, user: &UserId) -> String {
        format!("{{fs:{activity}}}:ub:{user}")
    }
}
