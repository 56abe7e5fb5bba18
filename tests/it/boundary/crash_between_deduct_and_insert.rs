//! A service is killed between the gate and the database: does its hold end, either way?

use crate::boundary::{buy, phones, post, until, until_at_rest};
use crate::embedded::purchase;
use crate::soak::laws::Ground;
use crate::tap::{Act, Tap, has, host_of};
use crate::world::{Service, world};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crash_between_deduct_and_insert() {
    let database = world().database("postgres").await;
    let redis = world().lab.redis_url().expect("redis runs");
    // The booking never reaches the database.
    let tap = Tap::before(&host_of(&database), |piece| {
        match has(piece, "INSERT INTO orders") {
            true => Act::Keep,
            false => Act::Pass,
        }
    })
    .await;
    let far = tap.instead_of(&database);
    let (dies, lives) = tokio::join!(
        async { Service::start(&post(&far, &redis, "api")).await },
        async { Service::start(&post(&database, &redis, "api,relay,sweeper")).await },
    );
    let sale = lives.api.open(phones(1)).await;
    let ground = Ground::open(sale.parse().expect("an id"), &database, &redis).await;
    let (api, id) = (dies.api.clone(), sale.clone());
    let buying = tokio::spawn(async move {
        api.try_buy(&id, "alice", "k", &[("phone", 1)])
            .await
            .is_err()
    });
    tap.until_kept(1).await;
    // It is held, and nobody else's; whoever knows its id can ask for it.
    let bob = lives.api.buy(&sale, "bob", "k", &[("phone", 1)]).await;
    bob.assert_problem(409, "sold-out", "0 of phone are left");
    // Nor is it an order of hers yet, that she is told to pay or to cancel.
    let again = lives.api.buy(&sale, "alice", "k2", &[("phone", 1)]).await;
    again.assert_problem(503, "busy", "another purchase of this user's is under way");
    let held = purchase(&ground.id, "alice").rid();
    let order = format!("/v1/orders/{sale}.{held}");
    let waits = lives.api.get(&order).await;
    assert_eq!(
        (waits.status, &waits.body["status"]),
        (202, &"ACCEPTED".into()),
        "{waits:?}"
    );
    dies.kill().await;
    assert!(
        buying.await.expect("no panic"),
        "a killed process has answered"
    );

    until("the hold has ended", || async {
        lives.api.get(&order).await.body["status"] == "ABANDONED"
    })
    .await;
    let alice = buy(&lives.api, &sale, "alice", "k").await;
    alice.assert_problem(409, "order-abandoned", "use a new one");
    // Nobody is blocked: not she, and not the unit.
    let alice = buy(&lives.api, &sale, "alice", "k3").await;
    assert_eq!(alice.status, 201, "{alice:?}");
    until_at_rest(&ground).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crash_between_insert_and_settling_the_gate() {
    let database = world().database("postgres").await;
    let redis = world().lab.redis_url().expect("redis runs");
    // The gate is never told that the order is booked.
    let tap = Tap::before(&host_of(&redis), |piece| match has(piece, ":committed") {
        true => Act::Keep,
        false => Act::Pass,
    })
    .await;
    let far = tap.instead_of(&redis);
    let (dies, lives) = tokio::join!(
        async { Service::start(&post(&database, &far, "api")).await },
        async { Service::start(&post(&database, &redis, "api,sweeper")).await },
    );
    let sale = lives.api.open(phones(2)).await;
    let ground = Ground::open(sale.parse().expect("an id"), &database, &redis).await;
    let (api, id) = (dies.api.clone(), sale.clone());
    let buying = tokio::spawn(async move {
        api.try_buy(&id, "alice", "k", &[("phone", 1)])
            .await
            .is_err()
    });
    tap.until_kept(1).await;
    dies.kill().await;
    assert!(
        buying.await.expect("no panic"),
        "a killed process has answered"
    );
    // No relay runs here: it is the sweeper that finds the live order of an old hold.
    until("the gate agrees", || async {
        ground.broken_at_rest().await.is_empty()
    })
    .await;
    let alice = buy(&lives.api, &sale, "alice", "k").await;
    assert_eq!(alice.status, 200, "{alice:?}");
    let bob = buy(&lives.api, &sale, "bob", "k").await;
    assert_eq!(bob.status, 201, "{bob:?}");
    let carol = buy(&lives.api, &sale, "carol", "k").await;
    carol.assert_problem(409, "sold-out", "0 of phone are left");
}
