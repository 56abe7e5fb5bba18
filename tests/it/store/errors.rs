//! What an error of the database means, each brought about for real.

use flashlock::clock;
use flashlock::store::{Store, StoreError, Tx};
use sqlx::{AssertSqlSafe, Row};

use super::{Db, new_order, sku};
use crate::world::DATABASES;

#[tokio::test(flavor = "multi_thread")]
async fn a_taken_key_is_a_conflict() {
    for database in DATABASES {
        let db = Db::new(database).await;
        let activity = db.activity(5).await;
        db.booked(&activity, "alice").await;
        let same_request = new_order(&activity, "alice");
        let mut same_user = new_order(&activity, "bob");
        same_user.user = "alice".parse().expect("a user");
        for order in [same_request, same_user] {
            let mut tx = db.store.begin().await.expect("a transaction");
            let inserted = tx.insert_orders(&activity, &[&order]).await;
            assert!(
                matches!(inserted, Err(StoreError::Conflict(_))),
                "{database}: {inserted:?}"
            );
            tx.rollback().await;
        }
        assert_eq!(db.books(&activity).await.0.orders.len(), 1, "{database}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stock_out_of_range_is_refused_by_the_database() {
    for database in DATABASES {
        let db = Db::new(database).await;
        let activity = db.activity(5).await;
        for available in [-1, 6] {
            let mut tx = db.store.begin().await.expect("a transaction");
            let written = tx
                .write_available(&activity.id, &sku("A"), available, None)
                .await;
            assert!(
                matches!(written, Err(StoreError::Refused(_))),
                "{database}: {written:?}"
            );
            tx.rollback().await;
        }
        let mut tx = db.store.begin().await.expect("a transaction");
        let given_back = tx.give_back(&activity.id, &sku("A"), 1).await;
        assert!(
            matches!(given_back, Err(StoreError::Refused(_))),
            "{database}: {given_back:?}"
        );
        tx.rollback().await;
        let mut tx = db.store.begin().await.expect("a transaction");
        assert!(
            tx.take(&activity.id, &sku("A"), 6)
                .await
                .expect("an answer")
                .is_none(),
            "{database}"
        );
        tx.rollback().await;
        assert_eq!(
            db.books(&activity).await.ledger("A").available,
            5,
            "{database}"
        );
    }
}

/// Two transactions that take A and B in crossed order. SQLite has one writer, so they cannot meet.
#[tokio::test(flavor = "multi_thread")]
async fn a_deadlock_asks_to_try_again() {
    for database in ["postgres", "mysql"] {
        let db = Db::new(database).await;
        let activity = db.activity(5).await;
        let (a, b) = (sku("A"), sku("B"));
        let mut one = db.store.begin().await.expect("a transaction");
        let mut two = db.store.begin().await.expect("a transaction");
        assert_eq!(
            one.take(&activity.id, &a, 1).await.expect("A is free"),
            Some(4)
        );
        assert_eq!(
            two.take(&activity.id, &b, 1).await.expect("B is free"),
            Some(4)
        );
        let (first, second) =
            tokio::join!(one.take(&activity.id, &b, 1), two.take(&activity.id, &a, 1));
        let victims = [&first, &second]
            .into_iter()
            .filter(|t| matches!(t, Err(StoreError::Retry(_))));
        assert_eq!(victims.count(), 1, "{database}: {first:?} {second:?}");
        end(one, first).await;
        end(two, second).await;
        let left = db.store.available(&activity.id).await.expect("an answer");
        assert_eq!(
            (left[&a], left[&b]),
            (4, 4),
            "{database}: one of the two was done"
        );
    }
}

/// Commits what was done, and rolls back the victim.
async fn end(tx: Tx, taken: Result<Option<i64>, StoreError>) {
    match taken {
        Ok(Some(_)) => tx.commit().await.expect("committed"),
        Ok(None) | Err(_) => tx.rollback().await,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_a_row_ends_and_asks_to_try_again() {
    for database in DATABASES {
        let db = Db::new(database).await;
        let activity = db.activity(5).await;
        let mut holder = db.store.begin().await.expect("a transaction");
        assert!(
            holder
                .take(&activity.id, &sku("A"), 1)
                .await
                .expect("A is free")
                .is_some()
        );
        let begun = clock::now();
        let waited = take(&db.other().await, &activity, 1).await;
        assert!(
            matches!(waited, Err(StoreError::Retry(_))),
            "{database}: {waited:?}"
        );
        let waited = begun.elapsed().as_secs();
        assert!((2..10).contains(&waited), "{database}: waited {waited} s");
        holder.commit().await.expect("the holder was not disturbed");
        assert!(
            take(&db.other().await, &activity, 1)
                .await
                .expect("A is free again")
                .is_some(),
            "{database}"
        );
    }
}

async fn take(
    store: &Store,
    activity: &flashlock::sale::Activity,
    n: i64,
) -> Result<Option<i64>, StoreError> {
    let mut tx = store.begin().await?;
    match tx.take(&activity.id, &sku("A"), n).await {
        Ok(taken) => tx.commit().await.map(|()| taken),
        Err(error) => {
            tx.rollback().await;
            Err(error)
        }
    }
}

/// The connection is killed under a transaction: whether COMMIT was done cannot be known.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_without_an_answer_is_unknown() {
    for database in ["postgres", "mysql"] {
        let db = Db::new(database).await;
        let activity = db.activity(5).await;
        let mut tx = db.store.begin().await.expect("a transaction");
        assert!(
            tx.take(&activity.id, &sku("A"), 1)
                .await
                .expect("A is free")
                .is_some()
        );
        kill_transactions(&db).await;
        let committed = tx.commit().await;
        assert!(
            matches!(committed, Err(StoreError::Unknown(_))),
            "{database}: {committed:?}"
        );
        assert!(
            take(&db.store, &activity, 5)
                .await
                .expect("a new connection")
                .is_some(),
            "{database}"
        );
    }
}

/// The same before the commit: nothing was written, and that is known.
#[tokio::test(flavor = "multi_thread")]
async fn a_statement_on_a_lost_connection_was_not_done() {
    for database in ["postgres", "mysql"] {
        let db = Db::new(database).await;
        let activity = db.activity(5).await;
        let mut tx = db.store.begin().await.expect("a transaction");
        assert!(
            tx.take(&activity.id, &sku("A"), 1)
                .await
                .expect("A is free")
                .is_some()
        );
        kill_transactions(&db).await;
        let taken = tx.take(&activity.id, &sku("B"), 1).await;
        assert!(
            matches!(taken, Err(StoreError::Unavailable(_))),
            "{database}: {taken:?}"
        );
        tx.rollback().await;
        assert!(
            take(&db.store, &activity, 5)
                .await
                .expect("a new connection")
                .is_some(),
            "{database}"
        );
    }
}

/// Kills the connections of this database that have a transaction open, and waits until they are gone.
async fn kill_transactions(db: &Db) {
    let pool = db.raw().await;
    let (list, kill) = match db.kind {
        "postgres" => (
            "SELECT CAST(pid AS BIGINT) FROM pg_stat_activity \
             WHERE datname = current_database() AND state = 'idle in transaction'",
            "SELECT pg_terminate_backend({id})",
        ),
        "mysql" => (
            "SELECT CAST(p.id AS SIGNED) FROM information_schema.processlist p \
             JOIN information_schema.innodb_trx t ON t.trx_mysql_thread_id = p.id WHERE p.db = DATABASE()",
            "KILL {id}",
        ),
        other => panic!("{other} has no connections to kill"),
    };
    let ids = async || -> Vec<i64> {
        let rows = sqlx::query(list)
            .fetch_all(&pool)
            .await
            .expect("the connections");
        rows.iter().map(|row| row.get(0)).collect()
    };
    let open = ids().await;
    assert_eq!(open.len(), 1, "{}: {open:?}", db.kind);
    let kill = kill.replace("{id}", &open[0].to_string());
    sqlx::raw_sql(AssertSqlSafe(kill))
        .execute(&pool)
        .await
        .expect("killed");
    for _ in 0..200 {
        if ids().await.is_empty() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("{}: the connection did not go", db.kind);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_store_is_unavailable() {
    for database in DATABASES {
        let db = Db::new(database).await;
        db.store.close().await;
        let now = db.store.now_ms().await;
        assert!(
            matches!(now, Err(StoreError::Unavailable(_))),
            "{database}: {now:?}"
        );
        let begun = db.store.begin().await.map(drop);
        assert!(
            matches!(begun, Err(StoreError::Unavailable(_))),
            "{database}: {begun:?}"
        );
    }
}
