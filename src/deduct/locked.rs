//! The critical section that every lock shares: lock, read, check, begin, insert, write the stock
//! row last, commit, release. The only place that knows this order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use super::allot::{allot, lines_of, skus_of};
use super::replay::{after_conflict, closed_endings, failed};
use super::stopped::Stopped;
use super::{Closed, Contention, Deduct, DeductError, Ending};
use crate::keys::LockKey;
use crate::lock::{AcquireError, Guarantees, Guard, Lock, Released, Terms};
use crate::order::{CloseReason, NewOrder, Order};
use crate::sale::{Activity, ActivityId, GuardMode, OrderId, Sku};
use crate::store::{Claim, Claimed, Contended, Store, StoreError};

/// Sells under a lock. The stock is read before the writing transaction and written absolutely, so
/// that the lock alone keeps two buyers apart: without it this oversells.
#[derive(Debug)]
pub struct Locked<L> {
    lock: L,
    store: Store,
}

/// What the holder saw, and the claims under which it may write it.
#[derive(Debug, Default)]
struct Seen {
    available: BTreeMap<Sku, i64>,
    /// Empty unless it is fenced.
    claims: BTreeMap<Sku, Claim>,
}

/// A lock that was granted, and the SKUs that were claimed under it: their token is this grant's own,
/// where the same token found elsewhere is another's.
#[derive(Debug)]
struct Grant<G> {
    guard: G,
    claimed: Mutex<BTreeSet<Sku>>,
}

/// Tries of the critical section under one grant, after deadlocks. Not after a wait that was over: it
/// was as long as a buyer may be kept.
const TRIES_MAX: u32 = 3;
/// Grants for one batch: a second one after the token's source had lost its history.
const GRANTS_MAX: u32 = 2;

// === impl Grant ===

impl<G: Guard> Grant<G> {
    fn is_held(&self) -> bool {
        self.guard.is_held()
    }

    fn claimed(&self) -> MutexGuard<'_, BTreeSet<Sku>> {
        self.claimed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Locked ===

impl<L: Lock> Locked<L> {
    pub fn new(lock: L, store: Store) -> Self {
        Self { lock, store }
    }

    /// Takes the lock, or says for everyone in the batch why not.
    async fn enter(
        &self,
        activity: &Activity,
    ) -> Result<Grant<L::Guard>, Result<Ending, DeductError>> {
        let key = LockKey::of(&activity.id);
        match self.lock.acquire(&key, &Terms::of(activity)).await {
            Ok(guard) => Ok(Grant {
                guard,
                claimed: Mutex::default(),
            }),
            Err(AcquireError::Busy) => Err(Ok(Ending::Busy(Contention::LockTimeout))),
            // Nothing was sold in either case: the lock comes before any write.
            Err(
                AcquireError::Unavailable { server, source }
                | AcquireError::Unknown { server, source },
            ) => Err(Err(DeductError::Unavailable {
                server,
                reason: source.to_string(),
            })),
        }
    }

    async fn leave(&self, activity: &Activity, grant: Grant<L::Guard>) {
        match grant.guard.release().await {
            Released::Released => {}
            Released::NotOwner => {
                metrics::counter!("flashlock_lock_not_owner_total").increment(1);
                tracing::warn!(activity = %activity.id, strategy = %activity.strategy,
                    "the lease had ended before the lock was released");
            }
            Released::Pending => {
                tracing::warn!(activity = %activity.id, strategy = %activity.strategy,
                    "the release is not confirmed yet; it goes on in the background");
            }
        }
    }

    /// What is available of `skus`: claimed first under `fence`, plainly read otherwise.
    async fn look(
        &self,
        activity: &Activity,
        skus: &[Sku],
        guard: &Grant<L::Guard>,
    ) -> Result<Seen, Stopped> {
        let mut seen = Seen::default();
        if activity.guard != GuardMode::Fence {
            seen.available = self.store.available(&activity.id).await?;
            return Ok(seen);
        }
        let generation = activity.fence_generation;
        let mut mine = std::mem::take(&mut *guard.claimed());
        let fence = guard.guard.fence();
        let claimed = self
            .store
            .claim(&activity.id, skus, generation, fence, &mut mine)
            .await;
        *guard.claimed() = mine;
        match claimed? {
            Claimed::Mine(claimed) => {
                for (sku, found) in claimed {
                    seen.claims.insert(sku.clone(), found.claim);
                    seen.available.insert(sku, found.available);
                }
                Ok(seen)
            }
            Claimed::FencedOut(younger) if younger.generation == generation => {
                Err(Stopped::FencedOut(younger.fence))
            }
            Claimed::FencedOut(_) => Err(Stopped::Contention(Contention::FencedOut)),
            Claimed::UnknownSku(_) => Ok(Seen::default()),
        }
    }

    /// Whether a write may be invoked. Under `none` always: the textbook trusts its lock.
    fn may_write(activity: &Activity, guard: &Grant<L::Guard>) -> Result<(), Stopped> {
        match activity.guard {
            GuardMode::None => Ok(()),
            GuardMode::Lease | GuardMode::Fence if guard.is_held() => Ok(()),
            GuardMode::Lease | GuardMode::Fence => Err(Stopped::Contention(Contention::LeaseLost)),
        }
    }

    /// Runs the critical section again where that helps: after a deadlock, and once after the
    /// token's source had lost its history and was told where the store stands.
    async fn stopped(
        &self,
        activity: &Activity,
        guard: &Grant<L::Guard>,
        why: Stopped,
        tries: u32,
    ) -> Result<(), Stopped> {
        match why {
            Stopped::Store(StoreError::Retry(Contended::Database(_))) if tries < TRIES_MAX => {
                Ok(())
            }
            // A holder that still has its lease is the youngest there is; when its token is not above
            // the store's, the source went back. The next grant is above.
            Stopped::FencedOut(fence) if guard.is_held() => {
                let key = LockKey::of(&activity.id);
                if let Err(error) = self.lock.reseed(&key, fence).await {
                    tracing::warn!(%error, activity = %activity.id, "cannot reseed the fencing token");
                }
                Err(Stopped::FencedOut(fence))
            }
            Stopped::FencedOut(_) => Err(Stopped::Contention(Contention::FencedOut)),
            other @ (Stopped::Store(_) | Stopped::Contention(_)) => Err(other),
        }
    }

    async fn sell(
        &self,
        activity: &Activity,
        batch: &[&NewOrder],
        guard: &Grant<L::Guard>,
    ) -> Result<Vec<Ending>, Stopped> {
        let skus = skus_of(lines_of(batch));
        let mut seen = self.look(activity, &skus, guard).await?;
        let (endings, sold) = allot(activity, batch, &mut seen.available);
        if sold.is_empty() {
            return Ok(endings);
        }
        Self::may_write(activity, guard)?;
        let mut tx = self.store.begin().await?;
        if let Err(error) = tx.insert_orders(activity, &sold).await {
            tx.rollback().await;
            return Err(error.into());
        }
        let changed = skus_of(lines_of(&sold));
        if let Err(why) = self.write(&mut tx, activity, &changed, &seen, guard).await {
            tx.rollback().await;
            return Err(why);
        }
        tx.commit().await?;
        Ok(endings)
    }

    /// Writes the stock rows, ascending, and checks once more that the commit may be invoked.
    async fn write(
        &self,
        tx: &mut crate::store::Tx,
        activity: &Activity,
        skus: &[Sku],
        seen: &Seen,
        guard: &Grant<L::Guard>,
    ) -> Result<(), Stopped> {
        for sku in skus {
            let Some(available) = seen.available.get(sku) else {
                continue;
            };
            let claim = seen.claims.get(sku).copied();
            Self::may_write(activity, guard)?;
            let written = tx
                .write_available(&activity.id, sku, *available, claim)
                .await?;
            if !written {
                return Err(Stopped::Contention(Contention::FencedOut));
            }
        }
        Self::may_write(activity, guard)
    }

    async fn sell_again(
        &self,
        activity: &Activity,
        batch: &[&NewOrder],
        guard: &Grant<L::Guard>,
    ) -> Result<Vec<Ending>, Stopped> {
        let mut tries = 1;
        loop {
            match self.sell(activity, batch, guard).await {
                Ok(endings) => return Ok(endings),
                Err(why) => self.stopped(activity, guard, why, tries).await?,
            }
            tries += 1;
        }
    }

    async fn sell_each(
        &self,
        activity: &Activity,
        batch: &[&NewOrder],
        guard: &Grant<L::Guard>,
    ) -> Vec<Result<Ending, DeductError>> {
        let mut endings = Vec::with_capacity(batch.len());
        for order in batch {
            endings.push(match self.sell_again(activity, &[*order], guard).await {
                Ok(mut one) => Ok(one.remove(0)),
                Err(Stopped::Store(StoreError::Conflict(_))) => {
                    after_conflict(&self.store, activity, order).await
                }
                Err(why) => why.into_ending(),
            });
        }
        endings
    }

    async fn give_back(
        &self,
        activity: &Activity,
        orders: &[Order],
        why: CloseReason,
        guard: &Grant<L::Guard>,
    ) -> Result<Vec<bool>, Stopped> {
        let skus = skus_of(orders.iter().flat_map(|order| &order.lines));
        let mut seen = self.look(activity, &skus, guard).await?;
        Self::may_write(activity, guard)?;
        let mut tx = self.store.begin().await?;
        let orders: Vec<&Order> = orders.iter().collect();
        let closed = match tx.close_orders(activity, &orders, why).await {
            Ok(closed) => closed,
            Err(error) => {
                tx.rollback().await;
                return Err(error.into());
            }
        };
        for (order, closed) in orders.iter().zip(&closed) {
            for line in order.lines.iter().filter(|_| *closed) {
                if let Some(available) = seen.available.get_mut(&line.sku) {
                    *available += line.quantity;
                }
            }
        }
        if let Err(why) = self.write(&mut tx, activity, &skus, &seen, guard).await {
            tx.rollback().await;
            return Err(why);
        }
        tx.commit().await?;
        Ok(closed)
    }
}

#[async_trait]
impl<L: Lock> Deduct for Locked<L> {
    fn guarantees(&self) -> Guarantees {
        self.lock.guarantees()
    }

    async fn ready(&self) -> Result<(), DeductError> {
        self.lock.ready().await.map_err(away)
    }

    async fn retire(&self, id: &ActivityId, grace: Duration) -> Result<(), DeductError> {
        let retired = self.lock.retire(&LockKey::of(id), grace).await;
        retired.map_err(away)
    }

    async fn deduct(
        &self,
        activity: &Activity,
        batch: &[NewOrder],
    ) -> Vec<Result<Ending, DeductError>> {
        let batch: Vec<&NewOrder> = batch.iter().collect();
        let mut grants = 1;
        loop {
            let guard = match self.enter(activity).await {
                Ok(guard) => guard,
                Err(Ok(busy)) => return batch.iter().map(|_| Ok(busy.clone())).collect(),
                Err(Err(error)) => return failed(batch.len(), error),
            };
            let tried = self.sell_again(activity, &batch, &guard).await;
            // The token's source has been told where the store stands: the next grant is above.
            if matches!(tried, Err(Stopped::FencedOut(_))) && grants < GRANTS_MAX {
                self.leave(activity, guard).await;
                grants += 1;
                continue;
            }
            let endings = match tried {
                Ok(endings) => endings.into_iter().map(Ok).collect(),
                // One of them is there already: one at a time, so that it spoils only its own.
                Err(Stopped::Store(StoreError::Conflict(_))) => {
                    self.sell_each(activity, &batch, &guard).await
                }
                Err(why) => match why.into_ending() {
                    Ok(ending) => batch.iter().map(|_| Ok(ending.clone())).collect(),
                    Err(error) => failed(batch.len(), error),
                },
            };
            // Released after the commit: a reader that got the lock earlier would see the old stock.
            self.leave(activity, guard).await;
            return endings;
        }
    }

    async fn close(
        &self,
        activity: &Activity,
        orders: &[OrderId],
        why: CloseReason,
    ) -> Vec<Result<Closed, DeductError>> {
        // Lock first: what is read before it may be another's by the time it is granted.
        let guard = match self.enter(activity).await {
            Ok(guard) => guard,
            Err(Ok(_busy)) => {
                return failed(
                    orders.len(),
                    DeductError::Unavailable {
                        server: "lock",
                        reason: "the lock was not granted in time".to_string(),
                    },
                );
            }
            Err(Err(error)) => return failed(orders.len(), error),
        };
        let closed = closed_endings(&self.store, activity, orders, async |found| {
            let mut tries = 1;
            loop {
                match self.give_back(activity, found, why, &guard).await {
                    Ok(closed) => return Ok(closed),
                    Err(stopped) => {
                        if let Err(stopped) = self.stopped(activity, &guard, stopped, tries).await {
                            return Err(stopped.into_error());
                        }
                    }
                }
                tries += 1;
            }
        })
        .await;
        self.leave(activity, guard).await;
        closed
    }
}

fn away(error: AcquireError) -> DeductError {
    let (server, reason) = match error {
        AcquireError::Unavailable { server, source } | AcquireError::Unknown { server, source } => {
            (server, source.to_string())
        }
        AcquireError::Busy => ("lock", error.to_string()),
    };
    DeductError::Unavailable { server, reason }
}
