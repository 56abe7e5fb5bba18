//! The name of every Redis key, znode path and lock row.

use crate::sale::{ActivityId, InvalidId, LockName, UserId};

/// What a lock protects: one activity, or whatever a program that uses the locks alone has named.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LockKey(Protected);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Protected {
    Activity(ActivityId),
    Named(LockName),
}

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
    /// The stream that hands holds to the booking workers. What is in it and what is in `pend` must
    /// be gone before an activity is drained.
    pub q: String,
    /// The activity's token bucket.
    pub b: String,
}

/// The group of all booking workers at each stream `q`.
pub const BOOKERS: &str = "bookers";

// === impl LockKey ===

impl LockKey {
    pub fn of(activity: &ActivityId) -> Self {
        Self(Protected::Activity(activity.clone()))
    }

    /// The lock of this name: everyone who names it on the same servers contends for it. It is never
    /// an activity's.
    ///
    /// # Errors
    /// A name that is empty, longer than 64 bytes, or not of letters, digits and `._-`.
    pub fn named(name: &str) -> Result<Self, InvalidId> {
        Ok(Self(Protected::Named(name.parse()?)))
    }

    /// The row of `distributed_lock` and `lock_fence`.
    pub fn row(&self) -> String {
        match &self.0 {
            Protected::Activity(id) => format!("activity/{id}"),
            Protected::Named(name) => format!("named/{name}"),
        }
    }

    /// The Redis key that holds the owner's token.
    pub fn redis(&self) -> String {
        self.tagged("lock")
    }

    /// The Redis key of the fencing counter; it outlives the lock.
    pub fn redis_fence(&self) -> String {
        self.tagged("lock-fence")
    }

    /// The pub/sub channel on which a release is announced.
    pub fn redis_channel(&self) -> String {
        self.tagged("lock-released")
    }

    /// The Redis key of the mark that another process waits, on a node of several that vote.
    pub fn redis_waiting(&self) -> String {
        self.tagged("lock-waiting")
    }

    /// The znode under which contenders queue; one directory per lock, because the recipe's name
    /// filter is *contains*.
    pub fn znode(&self) -> String {
        match &self.0 {
            Protected::Activity(id) => format!("{ZNODE_ROOT}/{id}"),
            Protected::Named(name) => format!("{ZNODE_ROOT}/named:{name}"),
        }
    }

    /// A Redis key of the one slot in which everything of this lock lives.
    fn tagged(&self, name: &str) -> String {
        match &self.0 {
            Protected::Activity(id) => format!("{{fs:{id}}}:{name}"),
            Protected::Named(lock) => format!("{{fs:named:{lock}}}:{name}"),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_lock_is_never_an_activitys() {
        let id: ActivityId = "0190c0de".parse().expect("an id");
        let activity = LockKey::of(&id);
        let named = LockKey::named(id.as_str()).expect("a name");
        let places = |key: &LockKey| [key.row(), key.redis(), key.redis_fence(), key.znode()];
        for (a, b) in places(&activity).iter().zip(places(&named)) {
            assert_ne!(*a, b);
        }
        assert_eq!(activity.redis(), "{fs:0190c0de}:lock");
        assert_eq!(named.redis(), "{fs:named:0190c0de}:lock");
    }

    #[test]
    fn a_name_that_would_break_a_key_or_a_path_is_refused() {
        for name in ["", "a/b", "a}b", "a b", "é", &"x".repeat(65)] {
            assert!(LockKey::named(name).is_err(), "{name}");
        }
        assert!(LockKey::named("nightly-report.v2").is_ok());
    }
}
