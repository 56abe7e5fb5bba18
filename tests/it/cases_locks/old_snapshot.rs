//! Case 2: a transaction is begun and reads before the lock is granted. On MySQL, whose default is
//! REPEATABLE READ, the check under the lock reads what was there before the others sold.

use std::sync::Arc;

use flashlock::deduct::Locked;
use flashlock::lab::{DatabaseKind, Lab, LabPlan};
use flashlock::lock::{Guard, Lock, LockKey, Released, Terms};
use flashlock::sale::{ActivityId, GuardMode};
use flashlock::store::{Store, StoreOptions};
use flashlock::strategy::db_unique_insert::DbUniqueInsertLock;
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, Row};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::embedded::{self, Shop};
use crate::world::world;

const STOCK: i64 = 3;
const BUYERS: usize = 8;

/// One buyer of the faulty form: everything in one transaction, under a lock that works.
struct Buyer {
    database: String,
    sale: ActivityId,
    lock: DbUniqueInsertLock,
    /// All have begun, and looked, before the first of them is granted the lock.
    begun: Arc<Barrier>,
}

impl Buyer {
    /// Whether it was sold.
    async fn buy(self, isolation: &str) -> bool {
        let connection = MySqlConnection::connect(&self.database).await;
        let mut connection = connection.expect("the database answers");
        let set = format!("SET SESSION TRANSACTION ISOLATION LEVEL {isolation}");
        run(&mut connection, &set).await;
        run(&mut connection, "START TRANSACTION").await;
        let before = self.available(&mut connection).await;
        assert_eq!(before, STOCK, "a look at what there is");
        self.begun.wait().await;

        let key = LockKey::of(&self.sale);
        let terms = Terms::default();
        let guard = self.lock.acquire(&key, &terms).await.expect("granted");
        let left = self.available(&mut connection).await - 1;
        if left >= 0 {
            let sale = &self.sale;
            let write =
                format!("UPDATE activity_sku SET available = {left} WHERE activity_id = '{sale}'");
            run(&mut connection, &write).await;
        }
        run(&mut connection, "COMMIT").await;
        assert_eq!(guard.release().await, Released::Released, "a perfect lock");
        left >= 0
    }

    async fn available(&self, connection: &mut MySqlConnection) -> i64 {
        let select = sqlx::query("SELECT available FROM activity_sku WHERE activity_id = ?");
        let row = select.bind(self.sale.as_str()).fetch_one(connection).await;
        row.expect("it is on sale").get(0)
    }
}

async fn run(connection: &mut MySqlConnection, sql: &str) {
    let done = sqlx::raw_sql(AssertSqlSafe(sql.to_string()))
        .execute(connection)
        .await;
    done.unwrap_or_else(|error| panic!("{sql}: {error}"));
}

/// How many of the buyers are sold something.
async fn sold(isolation: &'static str) -> i64 {
    let url = world().database("mysql").await;
    let options = StoreOptions {
        url: url.clone(),
        connections_max: 2,
    };
    let store = Store::open(&options).await.expect("the database answers");
    store.migrate().await.expect("the tables are made");
    let activity = embedded::activity(GuardMode::None, STOCK);
    store.insert_activity(&activity).await.expect("inserted");
    let begun = Arc::new(Barrier::new(BUYERS));
    let mut buyers = JoinSet::new();
    for _ in 0..BUYERS {
        let buyer = Buyer {
            database: url.clone(),
            sale: activity.id.clone(),
            lock: DbUniqueInsertLock::new(store.lock_rows().clone()),
            begun: Arc::clone(&begun),
        };
        buyers.spawn(buyer.buy(isolation));
    }
    let sold = buyers.join_all().await;
    sold.into_iter().map(i64::from).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn is_checked_under_a_perfect_lock_and_oversells() {
    let sold = sold("REPEATABLE READ").await;
    assert!(
        sold > STOCK,
        "sold {sold} of {STOCK}: the fault is not seen"
    );
}

/// The same buyers, who see what others have committed: it was the snapshot, and not the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn is_not_read_where_each_statement_sees_what_is_committed() {
    assert_eq!(sold("READ COMMITTED").await, STOCK);
}

/// On a server whose sessions begin with REPEATABLE READ, its own default, trusting the lock alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn is_never_read_by_the_critical_section() {
    let plan = LabPlan {
        mariadb: true,
        ..LabPlan::nothing()
    };
    let lab = Lab::start(&plan).await.expect("the lab starts");
    let url = lab.create_database(DatabaseKind::Mysql, "snapshots").await;
    let url = url.expect("a database");
    let mut connection = MySqlConnection::connect(&url).await.expect("it answers");
    run(
        &mut connection,
        "SET GLOBAL tx_isolation = 'REPEATABLE-READ'",
    )
    .await;
    let shop = Shop::open_at(url, 3, |store, _| {
        let lock = DbUniqueInsertLock::new(store.lock_rows().clone());
        Arc::new(Locked::new(lock, store.clone()))
    })
    .await;
    let sale = shop.sale(GuardMode::None, 20).await;
    shop.crowd(&sale, 60).await;
    let books = shop.books(&sale).await;
    books.assert_balanced("mysql");
    assert_eq!(books.live().count(), 20);
    lab.stop().await.expect("it ends");
}
