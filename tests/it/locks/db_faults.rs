//! Does `db-unique-insert` keep its word when the connection, or the statement, is lost?

use std::sync::Mutex;

use super::db_unique_insert::Rows;
use super::*;
use crate::tap::{Act, Tap, has, host_of};

/// The databases that are reached by connections; SQLite's statements fail otherwise.
const SERVERS: [&str; 2] = ["postgres", "mysql"];
/// Far above what any of these tests takes: a row that is gone was released, and has not expired.
const LONG: u64 = 60_000;

/// Stands before a server, and does `act` once: to the next piece that names the armed row.
struct Snare {
    tap: Tap,
    armed: Arc<Mutex<Option<(String, Act)>>>,
}

// === impl Snare ===

impl Snare {
    async fn before(rows: &Rows) -> Self {
        let armed: Arc<Mutex<Option<(String, Act)>>> = Arc::default();
        let arms = Arc::clone(&armed);
        let tap = Tap::before(&host_of(rows.url()), move |piece| {
            let mut arms = arms.lock().expect("no panic");
            match &*arms {
                Some((row, act)) if has(piece, row) => {
                    let act = *act;
                    *arms = None;
                    act
                }
                Some(_) | None => Act::Pass,
            }
        })
        .await;
        Self { tap, armed }
    }

    fn arm(&self, key: &LockKey, act: Act) {
        *self.armed.lock().expect("no panic") = Some((key.row(), act));
    }

    fn has_come(&self) -> bool {
        self.armed.lock().expect("no panic").is_none()
    }
}

/// Makes SQLite refuse the next statement of this kind on a lock row, and count that it did.
async fn refuse_once(rows: &Rows, kind: &str) {
    rows.run(&format!(
        "CREATE TABLE refused (n INTEGER); \
         CREATE TRIGGER refuse BEFORE {kind} ON distributed_lock \
         WHEN (SELECT COUNT(*) FROM refused) = 0 \
         BEGIN INSERT INTO refused VALUES (1); SELECT RAISE(FAIL, 'refused once'); END"
    ))
    .await;
}

async fn has_refused(rows: &Rows) -> bool {
    rows.number("SELECT COUNT(*) FROM refused").await == 1
}

/// Case 25.
#[tokio::test(flavor = "multi_thread")]
async fn one_failed_renewal_ends_nothing() {
    for database in SERVERS {
        let rows = Rows::fresh(database).await;
        let snare = Snare::before(&rows).await;
        let (lock, rival) = (rows.lock_behind(&snare.tap).await, rows.lock().await);
        for act in [Act::CutBefore, Act::CutAfter] {
            let key = key();
            let held = lock
                .acquire(&key, &terms(1_500, 1_000, Watchdog::On))
                .await
                .expect("free");
            // Nobody else asks on this side: the next piece is the first renewal.
            snare.arm(&key, act);
            busy(&rival, &key, 2_000).await;
            assert!(snare.has_come(), "{database}: no renewal was cut");
            assert!(held.is_held(), "{database}: lost after {act:?}");
            assert!(held.lost().now_or_never().is_none());
            assert_eq!(held.release().await, Released::Released, "{database}");
        }
    }
    let rows = Rows::fresh("sqlite").await;
    let (lock, rival) = (rows.lock().await, rows.lock().await);
    let key = key();
    let held = lock
        .acquire(&key, &terms(1_500, 1_000, Watchdog::On))
        .await
        .expect("free");
    refuse_once(&rows, "UPDATE").await;
    busy(&rival, &key, 2_000).await;
    assert!(has_refused(&rows).await, "no renewal was refused");
    assert!(held.is_held() && held.lost().now_or_never().is_none());
    assert_eq!(held.release().await, Released::Released);
}

/// Case 31.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_after_the_connections_were_killed_reaches_the_row() {
    for database in SERVERS {
        let rows = Rows::fresh(database).await;
        let lock = rows.lock().await;
        let key = key();
        let held = lock
            .acquire(&key, &terms(LONG, 1_000, Watchdog::On))
            .await
            .expect("free");
        kill_connections(&rows).await;
        let released = within(5 * S, "the answer", held.release()).await;
        assert_ne!(released, Released::NotOwner, "{database}: it was its own");
        rows.until_free(&key).await;
    }
}

/// Case 31: the release itself is lost, before and after it was carried out.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_release_is_told_and_made_up_for() {
    for database in SERVERS {
        let rows = Rows::fresh(database).await;
        let snare = Snare::before(&rows).await;
        let lock = rows.lock_behind(&snare.tap).await;
        for act in [Act::CutBefore, Act::CutAfter] {
            let key = key();
            let held = lock
                .acquire(&key, &terms(LONG, 1_000, Watchdog::On))
                .await
                .expect("free");
            snare.arm(&key, act);
            let released = within(5 * S, "the answer", held.release()).await;
            assert!(snare.has_come(), "{database}: no release was cut");
            assert_eq!(released, Released::Pending, "{database}: {act:?}");
            rows.until_free(&key).await;
        }
    }
    let rows = Rows::fresh("sqlite").await;
    let lock = rows.lock().await;
    let key = key();
    let held = lock
        .acquire(&key, &terms(LONG, 1_000, Watchdog::On))
        .await
        .expect("free");
    refuse_once(&rows, "DELETE").await;
    let released = within(5 * S, "the answer", held.release()).await;
    assert!(has_refused(&rows).await, "no release was refused");
    assert_eq!(released, Released::Pending);
    rows.until_free(&key).await;
}

/// Cases 26 and 42, at every round trip: the acquire is dropped while the server has not read its n-th
/// request, which is read after all, later than every release that is sent on another connection.
async fn dropped_at_any_request(database: &'static str) {
    let rows = Rows::fresh(database).await;
    let key = key();
    // More than an acquire has: statements are prepared, executed and committed.
    for nth in 0..40 {
        let left = Arc::new(AtomicI64::new(i64::MAX));
        let counts = Arc::clone(&left);
        let tap = Tap::before(&host_of(rows.url()), move |_| {
            match counts.fetch_sub(1, Ordering::SeqCst) {
                0 => Act::Hold,
                _ => Act::Pass,
            }
        })
        .await;
        let lock = rows.lock_behind(&tap).await;
        left.store(nth, Ordering::SeqCst);
        let terms = terms(LONG, 30_000, Watchdog::On);
        let mut acquiring = Box::pin(lock.acquire(&key, &terms));
        tokio::select! {
            granted = &mut acquiring => {
                // The next request would be the release.
                tap.let_go();
                let released = within(5 * S, "the answer", granted.expect("free").release()).await;
                assert_eq!(released, Released::Released, "{database}");
                assert!(nth > 5, "{database}: dropped {nth} times only");
                return;
            }
            () = tap.until_kept(1) => {}
        }
        drop(acquiring);
        tokio::time::sleep(Duration::from_millis(600)).await;
        tap.let_go();
        // What follows it in the same connection is carried out, too.
        tokio::time::sleep(Duration::from_millis(50)).await;
        rows.until_free(&key).await;
    }
    panic!("{database}: never granted");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_that_is_dropped_at_any_of_its_requests_leaves_no_row() {
    tokio::join!(
        dropped_at_any_request("postgres"),
        dropped_at_any_request("mysql")
    );
}

/// Ends all connections to the database but the one that asks for it.
async fn kill_connections(rows: &Rows) {
    if rows.kind == "postgres" {
        let kill = "SELECT COUNT(pg_terminate_backend(pid)) FROM pg_stat_activity \
                    WHERE datname = current_database() AND pid <> pg_backend_pid()";
        assert!(rows.number(kill).await > 0, "there was none");
        return;
    }
    let others = "SELECT CAST(id AS SIGNED) FROM information_schema.processlist \
                  WHERE db = DATABASE() AND id <> CONNECTION_ID()";
    let others = rows.numbers(others).await;
    assert!(!others.is_empty(), "there was none");
    for id in others {
        rows.run(&format!("KILL {id}")).await;
    }
}
