//! How is a purchase made to stand in the middle of its critical section?

use std::time::Duration;

use sqlx::{Connection, PgConnection, Row};

/// Longer than anything here takes on a loaded machine.
const DEADLINE: Duration = Duration::from_secs(30);

/// Keeps an activity's stock row locked, so that purchases stand where they are.
pub(crate) struct Held {
    connection: PgConnection,
    /// Outside of the transaction, inside of which PostgreSQL shows what it saw first.
    watcher: PgConnection,
}

impl Held {
    pub(crate) async fn take(url: &str, activity: &str) -> Self {
        let mut connection = PgConnection::connect(url).await.expect("it answers");
        sqlx::query("BEGIN")
            .execute(&mut connection)
            .await
            .expect("begun");
        sqlx::query("SELECT 1 FROM activity_sku WHERE activity_id = $1 FOR UPDATE")
            .bind(activity)
            .execute(&mut connection)
            .await
            .expect("locked");
        let watcher = PgConnection::connect(url).await.expect("it answers");
        Self {
            connection,
            watcher,
        }
    }

    /// Transactions that wait for a lock in this database.
    async fn waiters(&mut self) -> i64 {
        let count = sqlx::query(
            "SELECT count(*) FROM pg_stat_activity \
             WHERE datname = current_database() AND wait_event_type = 'Lock'",
        );
        let row = count.fetch_one(&mut self.watcher).await.expect("a count");
        row.get(0)
    }

    pub(crate) async fn until_waiters(&mut self, n: i64) {
        let deadline = flashlock::clock::now() + DEADLINE;
        while self.waiters().await < n {
            assert!(
                flashlock::clock::now() < deadline,
                "{n} did not come to wait"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// The statements that wait for a lock.
    pub(crate) async fn waiting(&mut self) -> Vec<String> {
        let select = sqlx::query(
            "SELECT query FROM pg_stat_activity \
             WHERE datname = current_database() AND wait_event_type = 'Lock'",
        );
        let rows = select.fetch_all(&mut self.watcher).await;
        let rows = rows.expect("what is waiting");
        rows.iter().map(|row| row.get(0)).collect()
    }

    pub(crate) async fn let_go(mut self) {
        sqlx::query("ROLLBACK")
            .execute(&mut self.connection)
            .await
            .expect("rolled back");
    }
}
