//! Are the tables made once, and of types that every driver decodes?

use flashlock::store::Payment;
use sqlx::{AnyPool, AssertSqlSafe, Column, Row};

use super::{Db, open};
use crate::world::{DATABASES, world};

/// The types that sqlx's `Any` decodes alike on all three.
const TYPES: [&str; 4] = ["varchar", "character varying", "text", "bigint"];

/// Rows for the tables that nothing fills in these tests.
const ROWS: [&str; 6] = [
    "INSERT INTO delivery (consumer, checked_until, next_at) VALUES ('c', 1, 1)",
    "INSERT INTO inbox (consumer, event_id, created_at) VALUES ('c', 'e', 1)",
    "INSERT INTO compensation (rid, kind, activity_id, state, next_at, created_at) VALUES ('r', 'k', 'a', 'OPEN', 1, 1)",
    "INSERT INTO recon_run (id, activity_id, verdict, started_at) VALUES ('r', 'a', 'OK', 1)",
    "INSERT INTO recon_finding (run_id, rid, finding, reason) VALUES ('r', 'o', 'f', 'why')",
    "INSERT INTO distributed_lock (lock_key, owner_token, expires_at) VALUES ('k', 'o', 1)",
];

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_start_at_once_make_the_tables_once() {
    for database in DATABASES {
        let url = world().database(database).await;
        let processes = (0..6).map(async |_| open(&url).await.migrate().await);
        for made in futures::future::join_all(processes).await {
            made.unwrap_or_else(|error| panic!("{database}: {error}"));
        }
        let store = open(&url).await;
        store.migrate().await.expect("and again");
        let pool = AnyPool::connect(&url).await.expect("the database answers");
        let sql = "SELECT version FROM _sqlx_migrations";
        let versions = sqlx::query(sql)
            .fetch_all(&pool)
            .await
            .expect("what was applied");
        let mut distinct: Vec<i64> = versions.iter().map(|row| row.get(0)).collect();
        distinct.dedup();
        assert_eq!(distinct.len(), versions.len(), "{database}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_column_is_of_a_type_that_all_drivers_decode() {
    for database in DATABASES {
        let db = Db::new(database).await;
        let columns = columns(&db).await;
        assert!(columns.len() > 80, "{database}: {columns:?}");
        for (table, column, kind) in &columns {
            // SQLite tells a type as it was declared, with its length.
            let kind = kind.split('(').next().unwrap_or(kind).to_lowercase();
            // The row id of SQLite is spelt INTEGER; it is a 64-bit number.
            let row_id = database == "sqlite" && kind == "integer";
            assert!(
                row_id || TYPES.contains(&kind.as_str()),
                "{database}: {table}.{column} is {kind}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_column_of_every_table_decodes() {
    for database in DATABASES {
        let db = Db::new(database).await;
        let activity = db.activity(5).await;
        let order = db.booked(&activity, "alice").await;
        let pay = |txn: &str| Payment {
            provider: "acme".into(),
            provider_txn: txn.into(),
        };
        for txn in ["t-1", "t-2"] {
            db.store
                .pay(&order, &pay(txn))
                .await
                .expect("paid, then due back");
        }
        let pool = db.raw().await;
        for sql in ROWS {
            sqlx::query(sql)
                .execute(&pool)
                .await
                .unwrap_or_else(|e| panic!("{database}: {sql}: {e}"));
        }
        let fence = "INSERT INTO lock_fence (lock_key, last) VALUES ('k', 1)";
        sqlx::query(fence).execute(&pool).await.expect("a row");
        let columns = columns(&db).await;
        let mut tables: Vec<&String> = columns.iter().map(|(table, _, _)| table).collect();
        tables.dedup();
        for table in tables {
            let sql = AssertSqlSafe(format!("SELECT * FROM {table}"));
            let rows = sqlx::query(sql).fetch_all(&pool).await;
            let rows = rows.unwrap_or_else(|e| panic!("{database}: {table}: {e}"));
            assert!(!rows.is_empty(), "{database}: {table} is empty");
            for column in rows[0].columns() {
                let (_, _, kind) = columns
                    .iter()
                    .find(|(t, c, _)| t == table && c == column.name())
                    .expect("a column of the schema");
                let decodes = match kind.to_lowercase().as_str() {
                    "bigint" | "integer" => rows[0]
                        .try_get::<Option<i64>, _>(column.ordinal())
                        .map(drop),
                    _text => rows[0]
                        .try_get::<Option<String>, _>(column.ordinal())
                        .map(drop),
                };
                decodes.unwrap_or_else(|e| panic!("{database}: {table}.{}: {e}", column.name()));
            }
        }
    }
}

/// (table, column, type) of all our tables, by table.
async fn columns(db: &Db) -> Vec<(String, String, String)> {
    let sql = match db.kind {
        "sqlite" => {
            "SELECT m.name, p.name, p.type FROM sqlite_master m, pragma_table_info(m.name) p \
             WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite_%' AND m.name <> '_sqlx_migrations' ORDER BY m.name"
        }
        "postgres" => {
            "SELECT CAST(table_name AS TEXT), CAST(column_name AS TEXT), CAST(data_type AS TEXT) \
             FROM information_schema.columns \
             WHERE table_schema = current_schema() AND table_name <> '_sqlx_migrations' ORDER BY 1"
        }
        "mysql" => {
            "SELECT CAST(table_name AS CHAR), CAST(column_name AS CHAR), CAST(data_type AS CHAR) \
             FROM information_schema.columns \
             WHERE table_schema = DATABASE() AND table_name <> '_sqlx_migrations' ORDER BY 1"
        }
        other => panic!("there is no database kind {other}"),
    };
    let rows = sqlx::query(sql)
        .fetch_all(&db.raw().await)
        .await
        .expect("the schema");
    rows.iter()
        .map(|row| (row.get(0), row.get(1), row.get(2)))
        .collect()
}
