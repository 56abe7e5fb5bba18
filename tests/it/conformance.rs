//! Does every strategy keep its promises on every database, with two service processes at work?

mod cell;

use std::sync::Arc;

use flashlock::clock;
use flashlock::sale::Sku;
use flashlock::strategy::{Kind, Strategy};
use serde_json::json;
use tokio::sync::Barrier;

use self::cell::{Cell, post_surely};
use crate::books::{Books, quantity};
use crate::world::Answer;

/// Fresh activities in which the control may be seen to oversell.
const CONTROL_TRIES_MAX: u32 = 10;

// === the claims ===

pub(super) async fn never_oversells(strategy: &str, database: &'static str) {
    let cell = Cell::of(strategy, database).await;
    cell.crowd_gets_what_there_is(json!({})).await;
}

pub(super) async fn never_oversells_in_batches(strategy: &str, database: &'static str) {
    let cell = Cell::of(strategy, database).await;
    cell.crowd_gets_what_there_is(json!({"batch_max": 32}))
        .await;
}

/// Nothing but the lock between two buyers: no lease is honoured, no token is checked. Where there is
/// no lock, there is nothing to trust.
pub(super) async fn never_oversells_when_trusted(strategy: &str, database: &'static str) {
    let cell = Cell::of(strategy, database).await;
    let trusted = json!({"guard": "none"});
    match Strategy::parse(strategy).expect("a strategy").entry().kind {
        Kind::Lock => cell.crowd_gets_what_there_is(trusted).await,
        Kind::Transaction | Kind::Gate | Kind::Control => {
            let mut body = json!({"strategy": strategy, "skus": [{"sku": "phone", "stock": 1}]});
            body["guard"] = trusted["guard"].clone();
            let answer = cell.api(0).post("/v1/activities", body).await;
            answer.assert_problem(400, "invalid-request", "takes no lock");
        }
    }
}

pub(super) async fn one_user_gets_one_order(strategy: &str, database: &'static str) {
    let cell = Cell::of(strategy, database).await;
    let sale = cell.open(&[("phone", 50)], json!({})).await;
    let posts = (0..100).map(|n| {
        let (api, sale) = (cell.api(n), sale.clone());
        async move {
            api.buy_surely(&sale, "alice", &format!("k-{n}"), &[("phone", 1)])
                .await
        }
    });
    let answers = cell.all(posts).await;
    let booked: Vec<&Answer> = answers.iter().filter(|a| a.status == 201).collect();
    assert_eq!(booked.len(), 1, "{cell}: {booked:#?}");
    for answer in answers.iter().filter(|a| a.status != 201) {
        answer.assert_problem(409, "already-purchased", &booked[0].order_id());
    }
    let books = cell.books(&sale).await;
    assert_eq!(
        (books.0.orders.len(), books.ledger("phone").available),
        (1, 49),
        "{cell}"
    );
}

/// The last unit each time: whoever repeats the request must not be told that it is sold out.
pub(super) async fn a_repeated_request_is_sold_once(strategy: &str, database: &'static str) {
    let cell = Cell::of(strategy, database).await;
    let skus: Vec<String> = (0..8).map(|n| format!("s-{n}")).collect();
    let stock: Vec<(&str, i64)> = skus.iter().map(|sku| (sku.as_str(), 1)).collect();
    let sale = cell.open(&stock, json!({})).await;
    for sku in &skus {
        let user = format!("buyer-of-{sku}");
        let repeats = (0..8).map(|n| {
            let (api, sale, user, sku) = (cell.api(n), sale.clone(), user.clone(), sku.clone());
            async move {
                api.buy_surely(&sale, &user, "k", &[(sku.as_str(), 1)])
                    .await
            }
        });
        let mut answers = cell.all(repeats).await;
        for n in 0..2 {
            let later = cell.api(n).buy_surely(&sale, &user, "k", &[(sku, 1)]).await;
            assert_eq!(later.status, 200, "{cell}: {later:?}");
            answers.push(later);
        }
        let order = answers[0].order_id();
        for answer in &answers {
            assert!([200, 201].contains(&answer.status), "{cell}: {answer:?}");
            assert_eq!(answer.order_id(), order, "{cell}");
            let replay = answer.headers.get("idempotent-replay").is_some();
            assert_eq!(replay, answer.status == 200, "{cell}: {answer:?}");
        }
        let first = answers.iter().filter(|a| a.status == 201).count();
        // The one that booked it may have been answered 503 before it asked again.
        assert!(first <= 1, "{cell}: booked {first} times");
    }
    let books = cell.books(&sale).await;
    assert_eq!(books.0.orders.len(), skus.len(), "{cell}");
}

pub(super) async fn an_order_gets_all_its_skus_or_none(strategy: &str, database: &'static str) {
    let cell = Cell::of(strategy, database).await;
    let sale = cell.open(&[("A", 10), ("B", 5)], json!({})).await;
    let buyers = (0..40).map(|n| {
        let (api, sale) = (cell.api(n), sale.clone());
        async move {
            api.buy_surely(&sale, &format!("u-{n}"), "k", &[("A", 1), ("B", 1)])
                .await
        }
    });
    for answer in cell.all(buyers).await.iter().filter(|a| !a.is_booked()) {
        answer.assert_problem(409, "sold-out", "0 of B are left");
    }
    let books = cell.books(&sale).await;
    assert_eq!(books.0.orders.len(), 5, "{cell}");
    let [a, b] = ["A", "B"].map(|sku| sku.parse::<Sku>().expect("a SKU"));
    for order in &books.0.orders {
        assert_eq!(
            (quantity(order, &a), quantity(order, &b)),
            (1, 1),
            "{cell}: {order:?}"
        );
    }
    let left = ["A", "B"].map(|sku| books.ledger(sku).available);
    assert_eq!(left, [5, 0], "{cell}");
}

pub(super) async fn crossed_skus_do_not_deadlock(strategy: &str, database: &'static str) {
    let cell = Cell::of(strategy, database).await;
    let sale = cell.open(&[("A", 30), ("B", 30)], json!({})).await;
    let buyers = (0..60).map(|n| {
        let (api, sale) = (cell.api(n), sale.clone());
        let lines = if n / 2 % 2 == 0 {
            [("A", 1), ("B", 1)]
        } else {
            [("B", 1), ("A", 1)]
        };
        async move { api.buy_surely(&sale, &format!("u-{n}"), "k", &lines).await }
    });
    let answers = cell.all(buyers).await;
    let booked = answers.iter().filter(|a| a.is_booked()).count();
    assert_eq!(booked, 30, "{cell}");
    let books = cell.books(&sale).await;
    let left = ["A", "B"].map(|sku| books.ledger(sku).available);
    assert_eq!((books.0.orders.len(), left), (30, [0, 0]), "{cell}");
}

pub(super) async fn a_cancelled_order_is_restocked_once(strategy: &str, database: &'static str) {
    let cell = Cell::of(strategy, database).await;
    let sale = cell.open(&[("phone", 2)], json!({})).await;
    for buyer in ["alice", "bob"] {
        let bought = cell
            .buy_until_restocked(&sale, buyer, &[("phone", 2)])
            .await;
        for n in 0..2 {
            let late = cell
                .api(n)
                .buy_surely(&sale, "carol", "k", &[("phone", 1)])
                .await;
            late.assert_problem(409, "sold-out", "0 of phone are left");
        }
        let path = format!("/v1/orders/{}/cancel", bought.order_id());
        for _again in 0..2 {
            let cancels = (0..10).map(|n| {
                let (api, path) = (cell.api(n), path.clone());
                async move { post_surely(&api, &path).await }
            });
            for answer in cell.all(cancels).await {
                assert_eq!(
                    (answer.status, &answer.body["status"]),
                    (200, &json!("CLOSED")),
                    "{cell}: {answer:?}"
                );
            }
            let books = cell.books(&sale).await;
            assert_eq!(books.ledger("phone").available, 2, "{cell}");
        }
    }
    let books = cell.books(&sale).await;
    let taken: Vec<i64> = books.0.ledger.iter().map(|row| row.taken).collect();
    assert_eq!(taken, [2, -2, 2, -2], "{cell}");
}

/// Cancels and purchases at once: no unit is lost between a holder's read and its write.
pub(super) async fn a_restock_meets_purchases(strategy: &str, database: &'static str) {
    let cell = Cell::of(strategy, database).await;
    let sale = cell.open(&[("phone", 24)], json!({})).await;
    let buyers = (0..48).map(|n| {
        let (api, sale) = (cell.api(n), sale.clone());
        async move {
            let answer = api
                .buy_surely(&sale, &format!("u-{n}"), "k", &[("phone", 1)])
                .await;
            if n % 3 == 0 && answer.is_booked() {
                let path = format!("/v1/orders/{}/cancel", answer.order_id());
                let cancelled = post_surely(&api, &path).await;
                assert_eq!(cancelled.status, 200, "{cancelled:?}");
            }
        }
    });
    cell.all(buyers).await;
    let books = cell.books(&sale).await;
    let ledger = books.ledger("phone");
    assert_eq!(ledger.available + ledger.held, 24, "{cell}: {ledger:?}");
}

pub(super) async fn a_client_that_leaves_loses_nothing(strategy: &str, database: &'static str) {
    const POINTS: u32 = 20;
    let cell = Cell::of(strategy, database).await;
    let sale = cell.open(&[("phone", 64)], json!({})).await;
    // How long one takes, so that the drops are spread over its course and a little beyond.
    let begun = clock::now();
    cell.api(0)
        .buy_surely(&sale, "measure", "k", &[("phone", 1)])
        .await;
    let step = begun.elapsed().mul_f64(1.25) / POINTS;
    for point in 0..POINTS {
        let user = format!("u-{point}");
        let n = point as usize;
        // On a connection of its own: dropped, it is closed under the request.
        let leaver = cell.api(n);
        let purchase = leaver.try_buy(&sale, &user, "k", &[("phone", 1)]);
        let _left = tokio::time::timeout(step * point, purchase).await;
        let answer = cell
            .api(n + 1)
            .buy_surely(&sale, &user, "k", &[("phone", 1)])
            .await;
        assert!(answer.is_booked(), "{cell}: {answer:?}");
        let again = cell
            .api(n)
            .buy_surely(&sale, &user, "k", &[("phone", 1)])
            .await;
        assert_eq!(
            (again.status, again.order_id()),
            (200, answer.order_id()),
            "{cell}"
        );
    }
    let books = cell.books(&sale).await;
    let sold = i64::from(POINTS) + 1;
    assert_eq!(books.0.orders.len() as i64, sold, "{cell}");
    assert_eq!(books.ledger("phone").available, 64 - sold, "{cell}");
}

/// Reported of other shops: the last unit sold twice, to two buyers at the same moment.
pub(super) async fn the_last_unit_goes_to_one_of_two(strategy: &str, database: &'static str) {
    let cell = Cell::of(strategy, database).await;
    let skus: Vec<String> = (0..10).map(|n| format!("s-{n}")).collect();
    let stock: Vec<(&str, i64)> = skus.iter().map(|sku| (sku.as_str(), 1)).collect();
    let sale = cell.open(&stock, json!({})).await;
    for sku in &skus {
        let barrier = Arc::new(Barrier::new(2));
        let two = (0..2).map(|n| {
            let (api, sale, sku) = (cell.api(n), sale.clone(), sku.clone());
            let barrier = Arc::clone(&barrier);
            async move {
                barrier.wait().await;
                api.buy_surely(&sale, &format!("{sku}-{n}"), "k", &[(&sku, 1)])
                    .await
            }
        });
        let answers = cell.all(two).await;
        let (booked, refused): (Vec<_>, Vec<_>) = answers.iter().partition(|a| a.is_booked());
        assert_eq!(
            (booked.len(), refused.len()),
            (1, 1),
            "{cell}: {answers:#?}"
        );
        refused[0].assert_problem(409, "sold-out", &format!("0 of {sku} are left"));
    }
    let books = cell.books(&sale).await;
    assert_eq!(books.0.orders.len(), skus.len(), "{cell}");
}

// === the cells ===

macro_rules! claims {
    ($strategy:ident, $database:literal: $($claim:ident),+ $(,)?) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $claim() {
            let name = stringify!($strategy).replace('_', "-");
            crate::conformance::$claim(&name, $database).await;
        }
    )+};
}

/// A strategy that sells, by its file's name, on every database. The control has tests of its own.
macro_rules! cell {
    (no_lock) => {};
    ($strategy:ident) => {
        mod $strategy {
            mod sqlite {
                every_claim!($strategy, "sqlite");
            }
            mod postgres {
                every_claim!($strategy, "postgres");
            }
            mod mysql {
                every_claim!($strategy, "mysql");
            }
        }
    };
}

macro_rules! every_claim {
    ($strategy:ident, $database:literal) => {
        claims!($strategy, $database:
            never_oversells,
            never_oversells_in_batches,
            never_oversells_when_trusted,
            one_user_gets_one_order,
            a_repeated_request_is_sold_once,
            an_order_gets_all_its_skus_or_none,
            crossed_skus_do_not_deadlock,
            a_cancelled_order_is_restocked_once,
            a_restock_meets_purchases,
            a_client_that_leaves_loses_nothing,
            the_last_unit_goes_to_one_of_two,
        );
    };
}

macro_rules! cells {
    ($($strategy:ident)+) => {
        $(cell! { $strategy })+

        /// Every file of `src/strategy`.
        const FILES: &[&str] = &[$(stringify!($strategy)),+];
    };
}

// `cells! { … }` with the files of `src/strategy`, put together by `build.rs`.
include!(concat!(env!("OUT_DIR"), "/strategies.rs"));

#[test]
fn every_strategy_is_a_file_of_its_name() {
    let mut all: Vec<String> = Strategy::all()
        .iter()
        .map(|s| s.name().as_str().replace('-', "_"))
        .collect();
    all.sort();
    assert_eq!(all, FILES);
}

/// The same crowd against no lock at all. If this cannot be seen to oversell, the suite sees nothing.
async fn the_control_oversells(database: &'static str) {
    let cell = Cell::of("no-lock", database).await;
    for _try in 0..CONTROL_TRIES_MAX {
        let sale = cell.open(&[("phone", 20)], json!({})).await;
        cell.crowd(&sale).await;
        let books = Books::read(&cell.store, &sale).await;
        if books.oversold() > 0 {
            assert!(
                !books.breaches().is_empty(),
                "{cell}: the law must see it too"
            );
            return;
        }
    }
    panic!("{cell}: never oversold in {CONTROL_TRIES_MAX} activities");
}

mod no_lock {
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn oversells_on_sqlite() {
        super::the_control_oversells("sqlite").await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn oversells_on_postgres() {
        super::the_control_oversells("postgres").await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn oversells_on_mysql() {
        super::the_control_oversells("mysql").await;
    }
}
