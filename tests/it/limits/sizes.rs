//! The sizes of the buckets: by default, as asked for, and none.

use serde_json::{Value, json};

use super::{phones, retry_after, service};

#[tokio::test(flavor = "multi_thread")]
async fn an_activity_that_names_no_limits_has_those_of_its_stock_and_length() {
    let service = service(&[]).await;
    let api = &service.api;
    // A minute for 600 units: 1.2 of them over the sale would be 12 a second.
    let sale = json!({
        "strategy": "db-conditional-update",
        "skus": [{"sku": "phone", "stock": 400}, {"sku": "case", "stock": 200}],
        "opens_at": "2031-01-01T00:00:00Z", "closes_at": "2031-01-01T00:01:00Z",
    });
    let created = api.post("/v1/activities", sale).await;
    assert_eq!(created.status, 201, "{created:?}");
    let limits = &created.body["limits"];
    let per_user = json!({"capacity": 10, "per_s": 1.0});
    assert_eq!(
        *limits,
        json!({"per_user": per_user, "activity": {"capacity": 1200, "per_s": 12.0}})
    );
    // A day for one unit: the floor, so that nobody waits for hours.
    let created = api.post("/v1/activities", phones(1, json!({}))).await;
    let activity = &created.body["limits"]["activity"];
    assert_eq!(*activity, json!({"capacity": 2, "per_s": 1.0}));
    let path = format!("/v1/activities/{}", created.order_id());
    assert_eq!(
        api.get(&path).await.body["limits"],
        created.body["limits"],
        "it is kept"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn null_is_no_limit_and_what_is_left_out_has_its_default() {
    let service = service(&[]).await;
    let api = &service.api;
    let own = json!({"capacity": 7, "per_s": 0.5});
    for (given, per_user, activity) in [
        (json!({"limits": null}), false, false),
        (json!({"limits": {"activity": null}}), true, false),
        (json!({"limits": {"per_user": null}}), false, true),
        (
            json!({"limits": {"per_user": null, "activity": null}}),
            false,
            false,
        ),
        (json!({"limits": {}}), true, true),
        (json!({"limits": {"per_user": own}}), true, true),
    ] {
        let created = api.post("/v1/activities", phones(5, given.clone())).await;
        assert_eq!(created.status, 201, "{given}: {created:?}");
        let limits = &created.body["limits"];
        assert_eq!(limits["per_user"].is_object(), per_user, "{given}");
        assert_eq!(limits["activity"].is_object(), activity, "{given}");
        // What is shown may be sent as it is.
        let again = json!({"limits": limits});
        let again = api.post("/v1/activities", phones(5, again)).await;
        assert_eq!(again.body["limits"], *limits, "{given}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_defaults_keep_a_crowd_and_an_impatient_user_out_and_no_limits_let_all_in() {
    let service = service(&[]).await;
    let api = &service.api;
    let defaults = json!({"limits": {}});
    let crowded = api.open(phones(1, defaults.clone())).await;
    let mut answers = Vec::new();
    for n in 0..20 {
        let user = format!("u-{n}");
        answers.push(api.buy(&crowded, &user, "k", &[("phone", 1)]).await);
    }
    let limited: Vec<_> = answers.iter().filter(|a| a.status == 429).collect();
    assert!(!limited.is_empty(), "20 buyers for one unit: {answers:?}");
    for answer in limited {
        answer.assert_problem(429, "limited", "the activity bucket is empty: it holds 2");
        assert_eq!(retry_after(answer), 1);
        assert_eq!(answer.headers["ratelimit-policy"], "\"activity\";q=2;w=2");
    }

    let roomy = api.open(phones(100, defaults)).await;
    let mut clicks = Vec::new();
    for n in 0..30 {
        let key = format!("k-{n}");
        clicks.push(api.buy(&roomy, "alice", &key, &[("phone", 101)]).await);
    }
    // Above what one user may buy, and so refused for its content, which costs nothing.
    assert!(clicks.iter().all(|a| a.status == 400), "{clicks:?}");
    let many = json!({"limits": {}, "units_per_user_max": 1000});
    let roomy = api.open(phones(100, many)).await;
    let mut limited = 0;
    for n in 0..30 {
        let key = format!("k-{n}");
        let click = api.buy(&roomy, "alice", &key, &[("phone", 101)]).await;
        match click.status {
            429 => {
                click.assert_problem(429, "limited", "the user bucket is empty: it holds 10");
                assert_eq!(click.headers["ratelimit-policy"], "\"user\";q=10;w=10");
                limited += 1;
            }
            _ => click.assert_problem(409, "sold-out", "100 of phone"),
        }
    }
    assert!(limited > 0, "30 clicks of one user at once");

    let open = json!({"limits": Value::Null, "units_per_user_max": 1000});
    let open = api.open(phones(1, open)).await;
    for n in 0..30 {
        let key = format!("k-{n}");
        let click = api.buy(&open, "alice", &key, &[("phone", 2)]).await;
        click.assert_problem(409, "sold-out", "1 of phone");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_buyer_kept_out_while_there_is_stock_is_counted_and_one_after_it_is_not() {
    let service = service(&[]).await;
    let api = &service.api;
    let counted = async |name: &str| api.metric(name, &["bucket=\"activity\""]).await;
    let (all, while_left) = (
        "flashlock_limited_total",
        "flashlock_limited_while_stock_left_total",
    );
    let bucket = json!({"limits": {"activity": {"capacity": 1, "per_s": 0.000_1}}});
    let stocked = api.open(phones(5, bucket.clone())).await;
    let first = api.buy(&stocked, "alice", "k", &[("phone", 1)]).await;
    assert_eq!(first.status, 201, "{first:?}");
    for n in 0..3 {
        let answer = api
            .buy(&stocked, "bob", &format!("k-{n}"), &[("phone", 1)])
            .await;
        answer.assert_problem(429, "limited", "activity");
    }
    assert_eq!((counted(all).await, counted(while_left).await), (3.0, 3.0));
    let log = service.log();
    let told = log.matches("keeps buyers out while there is stock").count();
    assert_eq!(told, 1, "{log}");

    let bucket = json!({"limits": {"activity": {"capacity": 2, "per_s": 0.000_1}}});
    let sold_out = api.open(phones(1, bucket)).await;
    let last = api.buy(&sold_out, "alice", "k", &[("phone", 1)]).await;
    assert_eq!(last.status, 201, "{last:?}");
    let answer = api.buy(&sold_out, "bob", "k", &[("phone", 1)]).await;
    answer.assert_problem(409, "sold-out", "phone");
    // Longer than a sold-out is answered from memory.
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    let answer = api.buy(&sold_out, "carol", "k", &[("phone", 1)]).await;
    answer.assert_problem(429, "limited", "activity");
    assert_eq!((counted(all).await, counted(while_left).await), (4.0, 3.0));
    // A unit came back, so there is stock again.
    let cancel = format!("/v1/orders/{}/cancel", last.order_id());
    assert_eq!(api.post(&cancel, Value::Null).await.status, 200);
    let answer = api.buy(&sold_out, "carol", "k", &[("phone", 1)]).await;
    answer.assert_problem(429, "limited", "activity");
    assert_eq!((counted(all).await, counted(while_left).await), (5.0, 4.0));

    let metrics = api.get("/metrics").await;
    let metrics = metrics.body.as_str().expect("text");
    for name in [all, while_left] {
        let help = format!("# HELP {name} ");
        assert!(metrics.contains(&help), "{help}: {metrics}");
    }
}
