//! The rows of `db-unique-insert`: one owner, until it lets go or its time is over by the database's
//! clock.

use std::collections::BTreeSet;
use std::time::Duration;

use flashlock::clock;
use flashlock::store::{LockRows, RowGrant, StoreError};
use tokio::task::JoinSet;

use super::Db;
use crate::world::DATABASES;

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(150);
/// Longest wait for a short lease to end.
const PATIENCE: Duration = Duration::from_secs(20);

/// The token, if the row was granted.
async fn ask(rows: &LockRows, owner: &str, ttl: Duration) -> Option<i64> {
    match rows.try_acquire("k", owner, ttl).await {
        Ok(RowGrant::Mine { fence }) => Some(fence),
        // A deadlock or a lock wait is another contender.
        Ok(RowGrant::Held { .. }) | Err(StoreError::Retry(_)) => None,
        Err(error) => panic!("{error}"),
    }
}

async fn ask_until_granted(rows: &LockRows, owner: &str, ttl: Duration) -> i64 {
    let deadline = clock::now() + PATIENCE;
    while clock::now() < deadline {
        if let Some(fence) = ask(rows, owner, ttl).await {
            return fence;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{owner} was not granted the row within {PATIENCE:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_has_one_owner_and_only_the_owner_renews_and_releases_it() {
    for database in DATABASES {
        let db = Db::new(database).await;
        let other = db.other().await;
        let (rows, others) = (db.store.lock_rows(), other.lock_rows());
        let first = ask(rows, "a", LONG).await.expect("the row is free");
        assert_eq!(
            ask(rows, "a", LONG).await,
            Some(first),
            "{database}: asked again"
        );
        match others.try_acquire("k", "b", LONG).await.expect("an answer") {
            RowGrant::Held { for_ms } => {
                assert!((1..=60_000).contains(&for_ms), "{database}: {for_ms}")
            }
            mine @ RowGrant::Mine { .. } => panic!("{database}: {mine:?}"),
        }
        assert!(
            !others.renew("k", "b", LONG).await.expect("an answer"),
            "{database}"
        );
        assert!(
            !others.release("k", "b").await.expect("an answer"),
            "{database}"
        );
        assert!(
            rows.renew("k", "a", LONG).await.expect("an answer"),
            "{database}"
        );
        assert!(
            rows.release("k", "a").await.expect("an answer"),
            "{database}"
        );
        assert!(
            !rows.release("k", "a").await.expect("an answer"),
            "{database}: released once"
        );
        assert!(
            !rows.renew("k", "a", LONG).await.expect("an answer"),
            "{database}: not made again"
        );
        let second = ask(others, "b", LONG).await.expect("the row is free again");
        assert!(second > first, "{database}: {second} after {first}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_row_is_taken_over_and_lost_to_its_owner() {
    for database in DATABASES {
        let db = Db::new(database).await;
        let rows = db.store.lock_rows();
        let first = ask(rows, "a", SHORT).await.expect("the row is free");
        let second = ask_until_granted(rows, "b", LONG).await;
        assert!(second > first, "{database}: {second} after {first}");
        assert!(
            !rows.renew("k", "a", LONG).await.expect("an answer"),
            "{database}"
        );
        assert!(
            !rows.release("k", "a").await.expect("an answer"),
            "{database}: a late release"
        );
        assert_eq!(ask(rows, "c", LONG).await, None, "{database}: still held");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_row_is_not_renewed_though_nobody_has_taken_it() {
    for database in DATABASES {
        let db = Db::new(database).await;
        let rows = db.store.lock_rows();
        ask(rows, "a", SHORT).await.expect("the row is free");
        let now_ms = db.store.now_ms().await.expect("the database's clock");
        let deadline = clock::now() + PATIENCE;
        while db.store.now_ms().await.expect("the database's clock") <= now_ms + 150 {
            assert!(
                clock::now() < deadline,
                "{database}: the clock stands still"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(
            !rows.renew("k", "a", LONG).await.expect("an answer"),
            "{database}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn contenders_get_the_row_one_after_the_other_with_rising_tokens() {
    for database in DATABASES {
        let db = Db::new(database).await;
        let other = db.other().await;
        let mut contenders = JoinSet::new();
        let holders = std::sync::Arc::new(std::sync::atomic::AtomicI64::new(0));
        for n in 0..12 {
            let rows = if n % 2 == 0 { &db.store } else { &other }
                .lock_rows()
                .clone();
            let holders = std::sync::Arc::clone(&holders);
            contenders.spawn(async move {
                let owner = format!("o-{n}");
                let mut tokens = Vec::new();
                for _ in 0..3 {
                    tokens.push(ask_until_granted(&rows, &owner, LONG).await);
                    let before = holders.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    assert_eq!(before, 0, "two hold the row");
                    holders.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                    release_surely(&rows, &owner).await;
                }
                assert!(tokens.is_sorted(), "{tokens:?}");
                tokens
            });
        }
        let tokens: Vec<i64> = contenders.join_all().await.into_iter().flatten().collect();
        let distinct: BTreeSet<i64> = tokens.iter().copied().collect();
        assert_eq!(
            distinct.len(),
            tokens.len(),
            "{database}: a token twice: {tokens:?}"
        );
    }
}

/// A deadlock is possible at the release too, and means to try again.
async fn release_surely(rows: &LockRows, owner: &str) {
    for _ in 0..50 {
        match rows.release("k", owner).await {
            Ok(released) => return assert!(released, "{owner} held it"),
            Err(StoreError::Retry(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
    panic!("{owner} could not release");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reseeded_row_issues_above_the_floor() {
    for database in DATABASES {
        let db = Db::new(database).await;
        let rows = db.store.lock_rows();
        ask(rows, "a", LONG).await.expect("the row is free");
        rows.reseed("k", 40).await.expect("raised");
        rows.reseed("k", 7).await.expect("never lowered");
        assert!(rows.release("k", "a").await.expect("an answer"));
        let next = ask(rows, "b", LONG).await.expect("the row is free");
        assert_eq!(next, 41, "{database}");
    }
}
