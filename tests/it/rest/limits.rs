//! Rate limits: told with when to come again, and never charged for a repeat.

use serde_json::json;

use super::{phones, service};

#[tokio::test(flavor = "multi_thread")]
async fn a_user_above_the_limit_is_told_when_to_come_again() {
    let service = service(&[]).await;
    let api = &service.api;
    let bucket = json!({"limits": {"per_user": {"capacity": 2, "per_s": 0.1}}});
    let activity = api.open(phones(9, bucket)).await;
    // What is refused for its content costs nothing; what is sold out costs a token.
    let unknown = api.buy(&activity, "alice", "k-0", &[("tablet", 1)]).await;
    unknown.assert_problem(400, "invalid-request", "phone");
    for key in ["k-1", "k-2"] {
        let answer = api.buy(&activity, "alice", key, &[("phone", 10)]).await;
        answer.assert_problem(409, "sold-out", "9 of phone");
    }
    let limited = api.buy(&activity, "alice", "k-3", &[("phone", 1)]).await;
    limited.assert_problem(
        429,
        "limited",
        "the user bucket is empty: it holds 2 and gains 0.1",
    );
    assert_eq!(limited.body["retry_with_same_key"], true);
    let number = |text: &str| text.parse::<u64>().expect("seconds");
    let after = number(limited.headers["retry-after"].to_str().expect("text"));
    assert!((1..=10).contains(&after), "{limited:?}");
    // draft-ietf-httpapi-ratelimit-headers: the policy with its quota, and what remains of it.
    assert_eq!(limited.headers["ratelimit-policy"], "\"user\";q=2;w=20");
    let fields = limited.headers["ratelimit"].to_str().expect("text");
    assert_eq!(fields, format!("\"user\";r=0;t={after}"));
    // Another user has a bucket of their own.
    let bob = api.buy(&activity, "bob", "k-1", &[("phone", 1)]).await;
    assert_eq!(bob.status, 201, "{bob:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_activity_above_its_limit_is_limited_for_all() {
    let service = service(&[]).await;
    let api = &service.api;
    let bucket = json!({"limits": {"activity": {"capacity": 1, "per_s": 0.01}}});
    let activity = api.open(phones(9, bucket)).await;
    let first = api.buy(&activity, "alice", "k-1", &[("phone", 1)]).await;
    assert_eq!(first.status, 201, "{first:?}");
    let limited = api.buy(&activity, "bob", "k-1", &[("phone", 1)]).await;
    limited.assert_problem(429, "limited", "the activity bucket is empty");
    assert_eq!(
        limited.headers["ratelimit-policy"],
        "\"activity\";q=1;w=100"
    );
    assert_eq!(limited.body["bucket"], "activity");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_costs_no_token() {
    let service = service(&[]).await;
    let api = &service.api;
    let buckets = json!({"limits": {
        "per_user": {"capacity": 1, "per_s": 0.01}, "activity": {"capacity": 1, "per_s": 0.01},
    }});
    let activity = api.open(phones(9, buckets)).await;
    let booked = api.buy(&activity, "alice", "k-1", &[("phone", 1)]).await;
    assert_eq!(booked.status, 201, "{booked:?}");
    for _ in 0..5 {
        let again = api.buy(&activity, "alice", "k-1", &[("phone", 1)]).await;
        assert_eq!((again.status, again.order_id()), (200, booked.order_id()));
        let other = api.buy(&activity, "alice", "k-2", &[("phone", 1)]).await;
        other.assert_problem(409, "already-purchased", &booked.order_id());
    }
    let bob = api.buy(&activity, "bob", "k-1", &[("phone", 1)]).await;
    bob.assert_problem(429, "limited", "send the same Idempotency-Key again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limited_buyer_gets_through_after_the_time_told() {
    let service = service(&[]).await;
    let api = &service.api;
    let bucket = json!({"limits": {"activity": {"capacity": 1, "per_s": 1.0}}});
    let activity = api.open(phones(9, bucket)).await;
    api.buy(&activity, "alice", "k-1", &[("phone", 1)]).await;
    let limited = api.buy(&activity, "bob", "k-1", &[("phone", 1)]).await;
    limited.assert_problem(429, "limited", "activity");
    let after = limited.headers["retry-after"].to_str().expect("text");
    let after = after.parse().expect("seconds");
    tokio::time::sleep(std::time::Duration::from_secs(after)).await;
    let bob = api.buy(&activity, "bob", "k-1", &[("phone", 1)]).await;
    assert_eq!(bob.status, 201, "{bob:?}");
}
