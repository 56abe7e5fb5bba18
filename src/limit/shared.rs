//! Buckets in Redis, which several processes share; and what is done while it is out of reach.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::{Refusal, Scope};
use crate::clock::{self, Instant};
use crate::keys::GateKeys;
use crate::sale::{Activity, UserId};
use crate::script::bucket::{Kept, Token, take};
use crate::script::node::Node;

/// Longest wait for an answer, as for a RedLock node: it is some milliseconds when all is well.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(250);
/// Longest wait of a purchase, with the time to connect.
const ASK_MAX: Duration = Duration::from_millis(300);
/// After a failure Redis is left alone this long; then one purchase finds out for all.
const AWAY_PAUSE: Duration = Duration::from_secs(1);

/// The buckets in one Redis.
#[derive(Debug)]
pub(super) struct SharedBuckets {
    node: Node,
    /// Not asked before this; `None` while it answers.
    away_until: Mutex<Option<Instant>>,
}

// === impl SharedBuckets ===

impl SharedBuckets {
    pub(super) fn new(url: &str) -> Result<Self, redis::RedisError> {
        Ok(Self {
            node: Node::new(url, RESPONSE_TIMEOUT)?,
            away_until: Mutex::default(),
        })
    }

    /// What the buckets in Redis say; `None` when it is out of reach.
    pub(super) async fn check(
        &self,
        activity: &Activity,
        user: &UserId,
    ) -> Option<Result<(), Refusal>> {
        if !self.may_ask() {
            return None;
        }
        let user_key = GateKeys::user_bucket(&activity.id, user);
        let activity_key = GateKeys::bucket(&activity.id);
        let of_user = Kept {
            key: &user_key,
            size: activity.limits.per_user,
        };
        let of_activity = Kept {
            key: &activity_key,
            size: activity.limits.activity,
        };
        let asked = take(&self.node, of_user, of_activity);
        let token = match tokio::time::timeout(ASK_MAX, asked).await {
            Ok(Ok(token)) => token,
            Ok(Err(error)) => return self.away(&error.to_string()),
            Err(_elapsed) => return self.away("no answer in time"),
        };
        self.answered();
        let (scope, size, retry_after) = match token {
            Token::Taken => return Some(Ok(())),
            Token::UserEmpty { wait } => (Scope::User, of_user.size, wait),
            Token::ActivityEmpty { wait } => (Scope::Activity, of_activity.size, wait),
        };
        // A bucket without a size does not limit, so one that is empty has a size.
        let refusal = size.map(|bucket| Refusal {
            scope,
            bucket,
            retry_after,
        });
        Some(refusal.map_or(Ok(()), Err))
    }

    /// Whether it answers as far as is known, or it is this purchase's turn to find out.
    fn may_ask(&self) -> bool {
        let now = clock::now();
        let mut until = self.lock();
        match *until {
            None => true,
            Some(at) if now < at => false,
            Some(_over) => {
                *until = Some(now + AWAY_PAUSE);
                true
            }
        }
    }

    fn away(&self, why: &str) -> Option<Result<(), Refusal>> {
        let before = self.lock().replace(clock::now() + AWAY_PAUSE);
        if before.is_none() {
            tracing::warn!(
                why,
                "the rate limits in Redis are out of reach: each process limits by itself"
            );
        }
        None
    }

    fn answered(&self) {
        if self.lock().take().is_some() {
            tracing::info!("the rate limits in Redis are there again");
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.away_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
