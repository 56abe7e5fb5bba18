//! A process that is killed anywhere in a warm-up or an opening leaves a sale that sells nothing
//! wrong, and doing it again finishes it.

use serde_json::{Value, json};

use super::Shop;
use super::proxy::{Lose, Proxy};
use crate::world::{Service, world};

/// More writes than a warm-up and an opening make.
const WRITES_MAX: i64 = 200;

/// Which server the process under test is cut off from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum From {
    Redis,
    Postgres,
}

/// `host:port` of a URL, and the URL with another in its place.
fn address(url: &str) -> (&str, impl Fn(&str) -> String) {
    let start = url.find('@').or(url.find("//").map(|at| at + 1));
    let start = start.expect("a host") + 1;
    let end = url[start..].find('/').map_or(url.len(), |at| start + at);
    let other = move |address: &str| format!("{}{address}{}", &url[..start], &url[end..]);
    (&url[start..end], other)
}

/// A sale in the middle of its life: one order paid, one unpaid, one cancelled. With a gate that
/// kept its counters, or with none.
async fn paused(shop: &Shop, k: i64) -> String {
    let sale = shop.open("redis-lua", 9).await;
    let mut orders = Vec::new();
    for user in ["alice", "bob", "carol"] {
        orders.push(shop.buy(0, &sale, user).await.order_id());
    }
    assert_eq!(shop.pay(0, &orders[0]).await.body["outcome"], "APPLIED");
    assert_eq!(shop.cancel(0, &orders[2]).await.body["status"], "CLOSED");
    shop.steps(&sale, &[("pause", "PAUSED")]).await;
    if k % 2 == 0 {
        for strategy in ["db-conditional-update", "redis-lua"] {
            let set = json!({"strategy": strategy});
            assert_eq!(shop.set_strategy(0, &sale, set).await.status, 200);
        }
        assert_eq!(shop.audit(&sale).await, None);
    }
    sale
}

/// Warms up and opens through a process that is killed at its `k`-th write to the server; `false`
/// when it came to its end before that.
async fn killed(shop: &Shop, from: From, lose: Lose, k: i64) -> bool {
    let sale = paused(shop, k).await;
    let (redis_url, database_url) = (shop.redis_url.as_str(), shop.database_url.as_str());
    let (server, through) = match from {
        From::Redis => address(redis_url),
        From::Postgres => address(database_url),
    };
    let proxy = Proxy::before(server, lose).await;
    let mut env = world().everything(database_url);
    env.push(("FLASHLOCK_ROLES".to_string(), "api".to_string()));
    let name = match from {
        From::Redis => "FLASHLOCK_REDIS_URL",
        From::Postgres => "FLASHLOCK_DATABASE_URL",
    };
    env.push((name.to_string(), through(&proxy.address)));
    let victim = Service::start(&env).await;
    proxy.arm(k);
    let steps = async {
        for step in ["warm-up", "open"] {
            let path = format!("/v1/activities/{sale}/{step}");
            let answer = victim.api.post(&path, Value::Null).await;
            assert_eq!(answer.status, 200, "{step}: {answer:?}");
        }
    };
    let cut = tokio::select! {
        () = proxy.cut() => true,
        () = steps => false,
    };
    victim.kill().await;
    let cell = format!("{from:?}, {lose:?} {k}");

    // Half way: it sells only if the database says that it is open.
    let state = shop.state(&sale).await;
    if cut && !["READY", "OPEN"].contains(&state.as_str()) {
        let early = shop.step(0, &sale, "open").await;
        early.assert_problem(409, "not-allowed-in-state", "warm it up first");
    }
    let early = shop.api(1).buy(&sale, "dave", "k", &[("phone", 1)]).await;
    let told: &[u16] = match state.as_str() {
        "OPEN" => &[201, 503],
        _not_yet => &[409, 503],
    };
    assert!(told.contains(&early.status), "{cell}: {early:?}");
    let again: &[(&str, &str)] = match state.as_str() {
        "OPEN" => &[("open", "OPEN")],
        _not_yet => &[("warm-up", "READY"), ("open", "OPEN")],
    };
    shop.steps(&sale, again).await;
    let dave = shop.buy(0, &sale, "dave").await;
    assert!([200, 201].contains(&dave.status), "{cell}: {dave:?}");
    assert_eq!(
        shop.api(1).stock(&sale, "phone").await,
        (9, 6, 2, 1),
        "{cell}"
    );
    shop.assert_agrees(&sale).await;
    let gate = shop.audit(&sale).await.expect("warmed").ledgers.remove(0);
    assert_eq!((gate.available, gate.held, gate.sold), (6, 0, 3), "{cell}");
    shop.books(&sale).await;
    cut
}

/// At every `step`-th write, until there is none left to cut at.
async fn killed_anywhere(from: From, lose: Lose, step: i64) {
    let shop = Shop::with("postgres", &[("ROLES", "api")]).await;
    let step = usize::try_from(step).expect("positive");
    for (cuts, k) in (1..WRITES_MAX).step_by(step).enumerate() {
        if !killed(&shop, from, lose, k).await {
            assert!(cuts >= 5, "{from:?}: only {cuts} cuts");
            return;
        }
    }
    panic!("{from:?}: still cut at {WRITES_MAX} writes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_warm_up_that_loses_a_request_to_redis_is_finished_by_another() {
    killed_anywhere(From::Redis, Lose::Request, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_warm_up_that_loses_an_answer_of_redis_is_finished_by_another() {
    killed_anywhere(From::Redis, Lose::Answer, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_warm_up_that_loses_a_request_to_the_database_is_finished_by_another() {
    killed_anywhere(From::Postgres, Lose::Request, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_warm_up_that_loses_an_answer_of_the_database_is_finished_by_another() {
    killed_anywhere(From::Postgres, Lose::Answer, 4).await;
}
