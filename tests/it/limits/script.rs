//! The script of the buckets on a real Redis, at its extremes.

use std::time::Duration;

use flashlock::keys::GateKeys;
use flashlock::sale::{ActivityId, Bucket};
use flashlock::script::bucket::{Kept, Token, take};
use flashlock::script::node::Node;
use futures::future::join_all;
use redis::aio::MultiplexedConnection;

use super::DEADLINE;
use crate::world::world;

/// Two buckets of a fresh activity, and the Redis they are in.
struct Buckets {
    node: Node,
    con: MultiplexedConnection,
    user: String,
    activity: String,
}

impl Buckets {
    async fn new() -> Self {
        let url = world().lab.redis_url().expect("redis runs");
        let client = redis::Client::open(url.as_str()).expect("a url");
        let con = client.get_multiplexed_async_connection().await;
        let id = ActivityId::generate();
        Self {
            node: Node::new(&url, DEADLINE).expect("a url"),
            con: con.expect("it answers"),
            user: GateKeys::user_bucket(&id, &"alice".parse().expect("a user")),
            activity: GateKeys::bucket(&id),
        }
    }

    async fn take(&self, user: Option<Bucket>, activity: Option<Bucket>) -> Token {
        let of = |key, size| Kept { key, size };
        let (user, activity) = (of(&self.user, user), of(&self.activity, activity));
        take(&self.node, user, activity).await.expect("an answer")
    }

    /// The fields of one bucket, and the milliseconds until its key goes.
    async fn kept(&mut self, key: &str) -> (Option<f64>, Option<i64>, i64) {
        let mut asked = redis::pipe();
        asked.hget(key, "tokens").hget(key, "at").pttl(key);
        asked.query_async(&mut self.con).await.expect("an answer")
    }

    /// Microseconds of the server's clock.
    async fn now(&mut self) -> i64 {
        let time: Result<(i64, i64), _> = redis::cmd("TIME").query_async(&mut self.con).await;
        let (s, us) = time.expect("an answer");
        s * 1_000_000 + us
    }

    async fn set(&mut self, key: &str, tokens: &str, at: &str) {
        let mut set = redis::cmd("HSET");
        set.arg(key).arg("tokens").arg(tokens).arg("at").arg(at);
        set.query_async::<()>(&mut self.con).await.expect("set");
    }
}

fn bucket(capacity: i64, per_s: f64) -> Option<Bucket> {
    Some(Bucket::new(capacity, per_s).expect("a bucket"))
}

#[tokio::test(flavor = "multi_thread")]
async fn both_give_a_token_or_neither_does() {
    let mut buckets = Buckets::new().await;
    let (user, activity) = (bucket(3, 0.000_1), bucket(1, 0.000_1));
    assert_eq!(buckets.take(user, activity).await, Token::Taken);
    for _ in 0..5 {
        let refused = buckets.take(user, activity).await;
        assert!(
            matches!(refused, Token::ActivityEmpty { .. }),
            "{refused:?}"
        );
    }
    let key = buckets.user.clone();
    let (tokens, _at, _ttl) = buckets.kept(&key).await;
    assert_eq!(tokens, Some(2.0), "refusals of the activity cost nothing");
    for _ in 0..2 {
        assert_eq!(buckets.take(user, None).await, Token::Taken);
    }
    let refused = buckets.take(user, activity).await;
    assert!(matches!(refused, Token::UserEmpty { .. }), "{refused:?}");
    // No limit at all: nothing is kept either.
    let mut free = Buckets::new().await;
    for _ in 0..5 {
        assert_eq!(free.take(None, None).await, Token::Taken);
    }
    let key = free.user.clone();
    assert_eq!(free.kept(&key).await, (None, None, -2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_at_once_gets_what_the_bucket_holds() {
    let buckets = Buckets::new().await;
    let size = bucket(50, 0.001);
    let tokens = join_all((0..200).map(|_| buckets.take(None, size))).await;
    let taken = tokens.iter().filter(|t| **t == Token::Taken).count();
    assert_eq!(taken, 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_a_day_is_one_a_day_however_often_it_is_asked_for() {
    let mut buckets = Buckets::new().await;
    let size = bucket(1, 1.0 / 86_400.0);
    assert_eq!(buckets.take(None, size).await, Token::Taken);
    let key = buckets.activity.clone();
    let (_tokens, at, ttl) = buckets.kept(&key).await;
    assert!(ttl > 0 && ttl <= 86_400_001, "{ttl}");
    for _ in 0..200 {
        let refused = buckets.take(None, size).await;
        let Token::ActivityEmpty { wait } = refused else {
            panic!("{refused:?}");
        };
        assert!(wait <= Duration::from_secs(86_400), "{wait:?}");
        assert!(wait > Duration::from_secs(86_000), "{wait:?}");
    }
    // A day later, as far as the bucket knows: the polling has not kept it from filling.
    let at = at.expect("it was asked for") - 86_400_000_000;
    buckets.set(&key, "0", &at.to_string()).await;
    assert_eq!(buckets.take(None, size).await, Token::Taken);
    assert!(matches!(
        buckets.take(None, size).await,
        Token::ActivityEmpty { .. }
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_million_a_second_fills_by_the_microsecond() {
    let mut buckets = Buckets::new().await;
    let key = buckets.activity.clone();
    let size = bucket(1_000_000_000, 1e6);
    let now = buckets.now().await;
    // Empty two seconds ago: two million since, and what the calls themselves take.
    buckets.set(&key, "0", &(now - 2_000_000).to_string()).await;
    assert_eq!(buckets.take(None, size).await, Token::Taken);
    let (tokens, at, _ttl) = buckets.kept(&key).await;
    let since = at.expect("it was asked for") - (now - 2_000_000);
    let tokens = tokens.expect("it was asked for");
    assert!(
        ((since - 1) as f64 - tokens).abs() < 0.01,
        "{since} {tokens}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_steps_back_neither_blocks_nor_gives_tokens() {
    let mut buckets = Buckets::new().await;
    let key = buckets.activity.clone();
    let size = bucket(5, 20.0);
    // The clock was a year ahead when the bucket was last asked for, and empty.
    let ahead = buckets.now().await + 365 * 86_400 * 1_000_000;
    buckets.set(&key, "0", &ahead.to_string()).await;
    let first = buckets.take(None, size).await;
    let Token::ActivityEmpty { wait } = first else {
        panic!("the step has given tokens: {first:?}");
    };
    assert!(wait <= Duration::from_millis(51), "{wait:?}");
    let deadline = flashlock::clock::now() + DEADLINE;
    while buckets.take(None, size).await != Token::Taken {
        assert!(flashlock::clock::now() < deadline, "it does not fill");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // With tokens left, a step changes nothing about them.
    let ahead = buckets.now().await + 365 * 86_400 * 1_000_000;
    buckets.set(&key, "2", &ahead.to_string()).await;
    let slow = bucket(5, 0.000_1);
    assert_eq!(buckets.take(None, slow).await, Token::Taken);
    assert_eq!(buckets.take(None, slow).await, Token::Taken);
    let third = buckets.take(None, slow).await;
    assert!(matches!(third, Token::ActivityEmpty { .. }), "{third:?}");
    let (_tokens, at, ttl) = buckets.kept(&key).await;
    assert!(at.expect("kept") < ahead && ttl > 0, "{at:?} {ttl}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_number_is_too_large_and_no_field_too_strange() {
    let mut buckets = Buckets::new().await;
    let script = redis::Script::new(include_str!("../../../lua/bucket.lua"));
    // As far as Lua can count; no activity is created with such a bucket.
    let largest = (1_i64 << 53) - 1;
    for per_s in ["1e-300", "0.000001", "1e6", "1e300"] {
        let id = ActivityId::generate();
        let mut call = script.prepare_invoke();
        call.key(GateKeys::bucket(&id)).key(&buckets.activity);
        call.arg(largest).arg(per_s).arg(0).arg(0);
        for _ in 0..3 {
            let taken: (i64, i64, u64) = call
                .invoke_async(&mut buckets.con)
                .await
                .expect("an answer");
            assert_eq!(taken, (1, 0, 0), "{per_s}");
        }
    }
    for [capacity, per_s] in [
        ["-1", "1"],
        ["1", "0"],
        ["1", "-1"],
        ["1", "nan"],
        ["x", "1"],
    ] {
        let mut call = script.prepare_invoke();
        call.key(&buckets.user).key(&buckets.activity);
        call.arg(capacity).arg(per_s).arg(1).arg(1);
        let refused: Result<(i64, i64, u64), _> = call.invoke_async(&mut buckets.con).await;
        let refused = refused.expect_err("it is no bucket");
        assert!(refused.to_string().contains("BADARG"), "{refused}");
        let key = buckets.activity.clone();
        assert_eq!(
            buckets.kept(&key).await,
            (None, None, -2),
            "nothing is kept"
        );
    }
    // What a hand has left in the key is a bucket nobody knows anything of: full.
    let size = bucket(2, 0.000_1);
    for (tokens, at) in [
        ("nan", "1"),
        ("x", "1"),
        ("-5", "1"),
        ("1", "x"),
        ("inf", "1"),
    ] {
        let mut strange = Buckets::new().await;
        let key = strange.activity.clone();
        strange.set(&key, tokens, at).await;
        assert_eq!(
            strange.take(None, size).await,
            Token::Taken,
            "{tokens} {at}"
        );
        assert_eq!(
            strange.take(None, size).await,
            Token::Taken,
            "{tokens} {at}"
        );
        let third = strange.take(None, size).await;
        assert!(
            matches!(third, Token::ActivityEmpty { .. }),
            "{tokens} {at}"
        );
    }
}
