//! What the database already knows of a request, and what its errors mean for an ending.

use std::collections::HashMap;

use super::{Closed, Contention, DeductError, Ending};
use crate::order::{Fingerprint, NewOrder, Order, OrderState};
use crate::sale::{Activity, ActivityId, OrderId, Rid, UserId};
use crate::store::{Lookup, Store, StoreError};

/// The ending of a request that is known already: replay, then a reused key, then a live order of
/// the same user. `None`: it is new.
pub async fn known_ending(
    store: &Store,
    activity: &ActivityId,
    rid: Rid,
    fingerprint: &Fingerprint,
    lookup: &Lookup,
) -> Result<Option<Ending>, StoreError> {
    if let Some(same) = &lookup.same {
        return Ok(Some(if same.state == OrderState::Abandoned {
            Ending::Abandoned
        } else if same.fingerprint != *fingerprint {
            Ending::KeyReused
        } else {
            match store.order(rid).await? {
                Some(order) => Ending::Replayed(Box::new(order)),
                // Rows of orders are never deleted.
                None => return Err(StoreError::Refused(sqlx::Error::RowNotFound)),
            }
        }));
    }
    Ok(lookup.live.map(|rid| {
        Ending::AlreadyPurchased(OrderId {
            activity: activity.clone(),
            rid,
        })
    }))
}

/// Who was first, after an insert found a unique key taken.
pub async fn after_conflict(
    store: &Store,
    activity: &Activity,
    order: &NewOrder,
) -> Result<Ending, DeductError> {
    match look_again(store, activity, order.rid, &order.user, &order.fingerprint).await {
        Ok(ending) => Ok(ending),
        Err(error) => store_ending(error),
    }
}

async fn look_again(
    store: &Store,
    activity: &Activity,
    rid: Rid,
    user: &UserId,
    fingerprint: &Fingerprint,
) -> Result<Ending, StoreError> {
    let Some(lookup) = store.look_up(&activity.id, rid, user).await? else {
        return Err(StoreError::Refused(sqlx::Error::RowNotFound));
    };
    let known = known_ending(store, &activity.id, rid, fingerprint, &lookup).await?;
    // The order that was in the way has been closed meanwhile: the same key may try again.
    Ok(known.unwrap_or(Ending::Busy(Contention::OtherPurchase)))
}

/// What a database error means for one purchase.
pub fn store_ending(error: StoreError) -> Result<Ending, DeductError> {
    match error {
        StoreError::Retry(why) => {
            tracing::debug!(%why, "the database asks to try again");
            Ok(Ending::Busy(Contention::Database))
        }
        error @ (StoreError::Conflict(_)
        | StoreError::Unavailable(_)
        | StoreError::Unknown(_)
        | StoreError::Refused(_)) => Err(DeductError::from(error)),
    }
}

impl From<StoreError> for DeductError {
    fn from(error: StoreError) -> Self {
        let server = "database";
        match error {
            StoreError::Unavailable(source) => Self::Unavailable {
                server,
                reason: source.to_string(),
            },
            StoreError::Retry(why) => Self::Unavailable {
                server,
                reason: why.to_string(),
            },
            StoreError::Unknown(source) => Self::Unknown {
                server,
                reason: source.to_string(),
            },
            StoreError::Conflict(source) => Self::Corrupt {
                what: format!("a unique key is taken that nobody should hold: {source}"),
            },
            StoreError::Refused(source) => Self::Corrupt {
                what: format!("the database refused a statement: {source}"),
            },
        }
    }
}

/// The same bad news for everyone in a batch.
pub fn failed<T>(n: usize, error: DeductError) -> Vec<Result<T, DeductError>> {
    (0..n).map(|_| Err(same(&error))).collect()
}

fn same(error: &DeductError) -> DeductError {
    match error {
        DeductError::Unavailable { server, reason } => DeductError::Unavailable {
            server,
            reason: reason.clone(),
        },
        DeductError::Unknown { server, reason } => DeductError::Unknown {
            server,
            reason: reason.clone(),
        },
        DeductError::Corrupt { what } => DeductError::Corrupt { what: what.clone() },
    }
}

/// Loads the orders, lets `close` close those that exist (it answers which it closed), and tells
/// each of `orders` how it ended.
pub async fn closed_endings(
    store: &Store,
    activity: &Activity,
    orders: &[OrderId],
    close: impl AsyncFnOnce(&[Order]) -> Result<Vec<bool>, DeductError>,
) -> Vec<Result<Closed, DeductError>> {
    let rids: Vec<Rid> = orders.iter().map(|id| id.rid).collect();
    let found = match store.orders(&rids).await {
        Ok(found) => found,
        Err(error) => return failed(orders.len(), error.into()),
    };
    let mut found: Vec<Order> = found
        .into_iter()
        .filter(|order| order.id.activity == activity.id)
        .collect();
    // Ascending, so that two closers lock the rows in one order.
    found.sort_by_key(|order| order.id.rid);
    let mut closed = vec![false; found.len()];
    if !found.is_empty() {
        closed = match close(&found).await {
            Ok(closed) => closed,
            Err(error) => return failed(orders.len(), error),
        };
    }
    let mut known: HashMap<Rid, Closed> = HashMap::with_capacity(found.len());
    let mut rest = Vec::new();
    for (order, closed) in found.iter().zip(closed) {
        if closed {
            known.insert(order.id.rid, Closed::Closed);
        } else {
            rest.push(order.id.rid);
        }
    }
    // Somebody else was first with these: how they stand now.
    let unread = match store.orders(&rest).await {
        Ok(now) => {
            known.extend(now.into_iter().map(|o| (o.id.rid, Closed::NotPending(o))));
            None
        }
        Err(error) => Some(DeductError::from(error)),
    };
    let ending = |id: &OrderId| match (known.get(&id.rid), &unread) {
        _ if id.activity != activity.id => Ok(Closed::NotFound),
        (Some(closed), _) => Ok(closed.clone()),
        (None, Some(error)) if rest.contains(&id.rid) => Err(same(error)),
        (None, Some(_) | None) => Ok(Closed::NotFound),
    };
    orders.iter().map(ending).collect()
}
