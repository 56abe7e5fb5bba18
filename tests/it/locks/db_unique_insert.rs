//! `db-unique-insert` on each database.

use flashlock::store::{Store, StoreOptions};
use flashlock::strategy::db_unique_insert::DbUniqueInsertLock;
use sqlx::any::AnyPoolOptions;
use sqlx::{AnyPool, AssertSqlSafe, Row};

use super::*;
use crate::tap::Tap;
use crate::world::{DATABASES, world};

/// A fresh database with lock rows, and connections that know nothing of the lock.
pub(super) struct Rows {
    pub(super) kind: &'static str,
    url: String,
    raw: AnyPool,
}

// === impl Rows ===

impl Rows {
    pub(super) async fn fresh(kind: &'static str) -> Self {
        let url = world().database(kind).await;
        let store = open(&url).await;
        store.migrate().await.expect("the tables are made");
        // On SQLite the rows are in a file of their own.
        let of_rows = match kind {
            "sqlite" => format!("{url}-locks"),
            _ => url.clone(),
        };
        let raw = AnyPoolOptions::new().max_connections(1).connect(&of_rows);
        let raw = raw.await.expect("the database answers");
        Self { kind, url, raw }
    }

    /// The lock of a process.
    pub(super) async fn lock(&self) -> DbUniqueInsertLock {
        DbUniqueInsertLock::new(open(&self.url).await.lock_rows().clone())
    }

    /// The lock of a process that reaches the server through `tap`.
    pub(super) async fn lock_behind(&self, tap: &Tap) -> DbUniqueInsertLock {
        DbUniqueInsertLock::new(open(&tap.instead_of(&self.url)).await.lock_rows().clone())
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) async fn run(&self, sql: &str) {
        let done = sqlx::raw_sql(AssertSqlSafe(sql.to_string()))
            .execute(&self.raw)
            .await;
        done.unwrap_or_else(|error| panic!("{}: {sql}: {error}", self.kind));
    }

    pub(super) async fn number(&self, sql: &str) -> i64 {
        self.numbers(sql).await[0]
    }

    /// The first column.
    pub(super) async fn numbers(&self, sql: &str) -> Vec<i64> {
        let rows = sqlx::query(AssertSqlSafe(sql.to_string()))
            .fetch_all(&self.raw)
            .await;
        let rows = rows.unwrap_or_else(|error| panic!("{}: {sql}: {error}", self.kind));
        rows.iter().map(|row| row.get(0)).collect()
    }

    pub(super) async fn is_there(&self, key: &LockKey) -> bool {
        let row = key.row();
        let sql = format!("SELECT COUNT(*) FROM distributed_lock WHERE lock_key = '{row}'");
        self.number(&sql).await == 1
    }

    /// Until nobody has a row for `key`; far below the lease of those who ask.
    pub(super) async fn until_free(&self, key: &LockKey) {
        within(10 * S, "the release in the background", async {
            while self.is_there(key).await {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        })
        .await;
    }
}

async fn open(url: &str) -> Store {
    let options = StoreOptions {
        url: url.to_string(),
        connections_max: 2,
    };
    Store::open(&options).await.expect("the database answers")
}

#[tokio::test(flavor = "multi_thread")]
async fn keeps_the_contract() {
    for database in DATABASES {
        let rows = Rows::fresh(database).await;
        let (a, b) = (rows.lock().await, rows.lock().await);
        busy_after_the_wait(&a, &b).await;
        dropped_acquire_leaves_nothing(&a, &b).await;
        dropped_guard_releases(&a, &b).await;
        late_release_is_refused(&a, &b).await;
        a_lost_holder_does_not_block_its_neighbours(&a).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn contenders_exclude_each_other() {
    for database in DATABASES {
        let rows = Rows::fresh(database).await;
        excludes(vec![
            Arc::new(rows.lock().await),
            Arc::new(rows.lock().await),
        ])
        .await;
    }
}

/// Case 27. It is told by the renewal, and not by the end of the lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_row_is_lost_and_not_inserted_again() {
    for database in DATABASES {
        let rows = Rows::fresh(database).await;
        let (a, b) = (rows.lock().await, rows.lock().await);
        let key = key();
        let held = a
            .acquire(&key, &terms(6_000, 1_000, Watchdog::On))
            .await
            .expect("free");
        assert!(rows.is_there(&key).await, "{database}");
        let row = key.row();
        rows.run(&format!(
            "DELETE FROM distributed_lock WHERE lock_key = '{row}'"
        ))
        .await;
        within(10 * S, "the loss", held.lost()).await;
        assert!(clock::now() < held.valid_until(), "{database}: it ran out");
        assert!(!held.is_held(), "{database}");
        assert!(!rows.is_there(&key).await, "{database}: inserted again");
        // A late release is refused, and what is another's meanwhile stays another's.
        let successor = b.acquire(&key, &usual()).await.expect("free again");
        assert_eq!(held.release().await, Released::NotOwner, "{database}");
        busy(&a, &key, 100).await;
        assert!(rows.is_there(&key).await && successor.is_held());
        assert_eq!(successor.release().await, Released::Released, "{database}");
    }
}
