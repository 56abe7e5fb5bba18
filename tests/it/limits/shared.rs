//! Buckets in Redis: shared by processes, and what is done while that Redis is away.

use std::time::Duration;

use flashlock::clock;
use flashlock::lab::{Lab, LabPlan, ServerId};
use serde_json::json;

use super::{phones, retry_after, service, service_on, until};
use crate::world::{Api, world};

/// How many of `n` buyers are let in, by turns over the processes.
async fn let_in(apis: &[&Api], activity: &str, n: usize) -> usize {
    let mut let_in = 0;
    for i in 0..n {
        let api = apis[i % apis.len()];
        let answer = api
            .buy(activity, &format!("u-{i}"), "k", &[("phone", 1)])
            .await;
        match answer.status {
            201 => let_in += 1,
            _ => answer.assert_problem(429, "limited", "the activity bucket is empty"),
        }
    }
    let_in
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_share_the_buckets_in_redis_and_not_their_own() {
    let database = world().database("postgres").await;
    let redis = world().lab.redis_url().expect("redis runs");
    let bucket =
        json!({"limits": {"per_user": null, "activity": {"capacity": 3, "per_s": 0.000_1}}});
    for (limiter, in_all) in [(None, 3), (Some("redis"), 3), (Some("local"), 6)] {
        let mut options = vec![("REDIS_URL", redis.as_str())];
        options.extend(limiter.map(|place| ("LIMITER", place)));
        let (a, b) = (
            service_on(&database, &options).await,
            service_on(&database, &options).await,
        );
        let activity = a.api.open(phones(50, bucket.clone())).await;
        let let_in = let_in(&[&a.api, &b.api], &activity, 20).await;
        assert_eq!(let_in, in_all, "{limiter:?}");
        for api in [&a.api, &b.api] {
            assert_eq!(
                api.metric("flashlock_limiter_fallback_total", &[]).await,
                0.0
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_tells_the_same_from_redis_and_from_the_process() {
    let redis = world().lab.redis_url().expect("redis runs");
    for limiter in ["redis", "local"] {
        let service = service(&[("REDIS_URL", &redis), ("LIMITER", limiter)]).await;
        let api = &service.api;
        let buckets = json!({"limits": {
            "per_user": {"capacity": 2, "per_s": 0.1}, "activity": {"capacity": 3, "per_s": 0.02},
        }});
        let activity = api.open(phones(9, buckets)).await;
        for key in ["k-1", "k-2"] {
            let answer = api.buy(&activity, "alice", key, &[("phone", 10)]).await;
            answer.assert_problem(409, "sold-out", "9 of phone");
        }
        let user = api.buy(&activity, "alice", "k-3", &[("phone", 1)]).await;
        user.assert_problem(429, "limited", "the user bucket is empty: it holds 2");
        assert_eq!(user.body["bucket"], "user");
        assert_eq!(user.headers["ratelimit-policy"], "\"user\";q=2;w=20");
        assert!(retry_after(&user) <= 10, "{limiter}: {user:?}");
        // The user's refusal has cost the activity nothing: one is left in its bucket.
        let bob = api.buy(&activity, "bob", "k", &[("phone", 1)]).await;
        assert_eq!(bob.status, 201, "{limiter}: {bob:?}");
        let all = api.buy(&activity, "carol", "k", &[("phone", 1)]).await;
        all.assert_problem(429, "limited", "the activity bucket is empty: it holds 3");
        assert_eq!(all.headers["ratelimit-policy"], "\"activity\";q=3;w=150");
        let after = retry_after(&all);
        assert!((2..=50).contains(&after), "{limiter}: {all:?}");
        // A repeat costs no token.
        for _ in 0..3 {
            let again = api.buy(&activity, "bob", "k", &[("phone", 1)]).await;
            assert_eq!(again.status, 200, "{limiter}: {again:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_redis_the_process_limits_by_itself_and_soon_answers() {
    let lab = Lab::start(&LabPlan {
        redis: true,
        ..LabPlan::nothing()
    })
    .await
    .expect("a lab");
    let redis = lab.redis_url().expect("redis runs");
    // No relay and no sweeper, whose own connections would be told apart with effort.
    let options = [("REDIS_URL", redis.as_str()), ("ROLES", "api")];
    let service = service(&options).await;
    let api = &service.api;
    let bucket =
        json!({"limits": {"per_user": null, "activity": {"capacity": 4, "per_s": 0.000_1}}});
    let fallbacks = async || api.metric("flashlock_limiter_fallback_total", &[]).await;

    let before = api.open(phones(50, bucket.clone())).await;
    assert_eq!(let_in(&[api], &before, 6).await, 4);
    assert_eq!(fallbacks().await, 0.0);

    // Hung: connected, and without an answer.
    lab.pause(ServerId::Redis).expect("it runs");
    let hung = api.open(phones(50, bucket.clone())).await;
    let begun = clock::now();
    assert_eq!(let_in(&[api], &hung, 100).await, 4);
    // 300 ms each would be half a minute. One purchase a second waits for all.
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(15), "{took:?}");
    assert_eq!(fallbacks().await, 100.0);
    lab.resume(ServerId::Redis).expect("it is paused");
    until("the buckets in redis are asked again", async || {
        let counted = fallbacks().await;
        // A new buyer each time: a repeat costs no token, and so asks no bucket.
        let user = format!("late-{counted}");
        api.buy(&before, &user, "k", &[("phone", 1)]).await;
        fallbacks().await == counted
    })
    .await;
    let log = service.log();
    assert!(
        log.contains("the rate limits in Redis are out of reach"),
        "{log}"
    );
    assert!(
        log.contains("the rate limits in Redis are there again"),
        "{log}"
    );

    // Gone: no connection.
    lab.kill(ServerId::Redis).await.expect("it runs");
    let gone = api.open(phones(50, bucket)).await;
    assert_eq!(let_in(&[api], &gone, 10).await, 4);
    // The gate behind the limits fails closed.
    let lua = json!({"strategy": "redis-lua", "skus": [{"sku": "phone", "stock": 5}]});
    let lua = api.create(lua).await;
    let answer = api
        .post(&format!("/v1/activities/{lua}/warm-up"), json!(null))
        .await;
    answer.assert_problem(503, "strategy-unavailable", "redis");
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_in_a_redis_that_is_not_configured_are_refused_at_the_start() {
    let url = world().database("sqlite").await;
    let env = [("DATABASE_URL", url.as_str()), ("LIMITER", "redis")]
        .map(|(name, value)| (format!("FLASHLOCK_{name}"), value.to_string()));
    let Err(said) = crate::world::Service::try_start(&env).await else {
        panic!("it listens");
    };
    assert!(
        said.contains("set redis_url, or leave limiter out"),
        "{said}"
    );
}
