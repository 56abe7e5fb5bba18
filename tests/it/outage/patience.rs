//! A patient buyer, and what must be true of everything that buyers are told.

use std::time::Duration;

use flashlock::clock;
use flashlock::store::{Store, StoreOptions};

use crate::books::Books;
use crate::world::{Answer, Api};

/// An answer that takes longer than this is a hang: each wait for a server is bounded by 3 s, and a
/// purchase has few of them.
pub(super) const ANSWER: Duration = Duration::from_secs(25);
/// A service sells again this long after its server is back; most of it is for a busy machine.
pub(super) const RECOVERY: Duration = Duration::from_secs(20);
/// Between two tries of one buyer, who does not wait for as long as he was told to.
pub(super) const AGAIN: Duration = Duration::from_millis(100);

/// Asserts that the buyer may come again with the same key, and is told when.
#[track_caller]
pub(super) fn assert_come_again(answer: &Answer) {
    let name = answer.problem().to_owned();
    answer.assert_problem(503, &name, "");
    assert_eq!(answer.body["retry_with_same_key"], true, "{answer:?}");
    let after = answer.headers.get("retry-after");
    let seconds = after.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    assert!(
        seconds.is_some_and(|s| (1..=60).contains(&s)),
        "no Retry-After: {answer:?}"
    );
}

/// One try, which must be answered.
pub(super) async fn buy(api: &Api, sale: &str, user: &str) -> Answer {
    let bought = api.buy(sale, user, "k", &[("phone", 1)]);
    let bought = tokio::time::timeout(ANSWER, bought).await;
    bought.unwrap_or_else(|_elapsed| panic!("{user} waited for more than {ANSWER:?}"))
}

/// Buys with one key until the answer is final, and says how often it was not.
pub(super) async fn buy_at_last(
    api: &Api,
    sale: &str,
    user: &str,
    within: Duration,
) -> (Answer, Vec<Answer>) {
    let deadline = clock::now() + within;
    let mut refused = Vec::new();
    loop {
        let answer = buy(api, sale, user).await;
        if answer.status != 503 {
            return (answer, refused);
        }
        assert_come_again(&answer);
        assert!(clock::now() < deadline, "{user} is still told {answer:?}");
        refused.push(answer);
        tokio::time::sleep(AGAIN).await;
    }
}

/// Asserts that the books balance and that exactly these orders are in them.
pub(super) async fn assert_sold(url: &str, sale: &str, mut orders: Vec<String>, cell: &str) {
    let options = StoreOptions {
        url: url.to_owned(),
        connections_max: 1,
    };
    let store = Store::open(&options).await.expect("it opens");
    let books = Books::read(&store, sale).await;
    store.close().await;
    books.assert_balanced(cell);
    let mut booked: Vec<String> = books
        .live()
        .map(|order| format!("{sale}.{}", order.rid))
        .collect();
    booked.sort();
    orders.sort();
    assert_eq!(booked, orders, "{cell}");
}
