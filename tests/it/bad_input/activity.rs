//! Activities that cannot be.

use flashlock::strategy::Strategy;
use serde_json::{Value, json};

use super::{api, post, sale};
use crate::world::{Service, world};

async fn refused(change: Value, says: &str) {
    let answer = api().await.post("/v1/activities", sale(change)).await;
    answer.assert_problem(400, "invalid-request", says);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_strategy_is_told_the_names_there_are() {
    let names: Vec<String> = Strategy::all()
        .iter()
        .map(|s| s.name().to_string())
        .collect();
    let names = names.join(", ");
    for name in ["db-optimistic", "", "NO-LOCK", "1"] {
        refused(json!({"strategy": name}), &names).await;
        refused(json!({"strategy": name}), &format!("`{name}`")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_control_is_refused_unless_it_was_allowed() {
    refused(json!({"strategy": "no-lock"}), "--allow-control").await;
    let explicit = json!({"strategy": "no-lock", "guard": "none"});
    refused(explicit.clone(), "--allow-control").await;
    let unguarded = json!({"strategy": "db-unique-insert", "guard": "none"});
    refused(unguarded, "--allow-control").await;
    // Where there is no lock, no guard is let in either, so that none cannot pass for a choice.
    for guard in ["none", "lease", "fence"] {
        let unlocked = json!({"strategy": "db-conditional-update", "guard": guard});
        refused(unlocked, "takes no lock").await;
    }

    let url = world().database("sqlite").await;
    let env = [("DATABASE_URL", url), ("ALLOW_CONTROL", "true".to_string())];
    let env = env.map(|(name, value)| (format!("FLASHLOCK_{name}"), value));
    let allowed = Service::start(&env).await;
    for change in [
        json!({"strategy": "no-lock"}),
        explicit,
        json!({"strategy": "db-unique-insert", "guard": "none"}),
    ] {
        let answer = allowed.api.post("/v1/activities", sale(change)).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        assert_eq!(answer.body["guard"], "none", "{answer:?}");
    }
    let fenced = sale(json!({"strategy": "no-lock", "guard": "fence"}));
    let answer = allowed.api.post("/v1/activities", fenced).await;
    answer.assert_problem(400, "invalid-request", "its guard is none");
}

#[tokio::test(flavor = "multi_thread")]
async fn stock_below_one_or_out_of_range_is_refused() {
    for stock in [0, -1, i64::MIN, 1_000_000_001, i64::MAX] {
        let says = format!("stock of phone is {stock}; it must be 1 to 1000000000");
        refused(json!({"skus": [{"sku": "phone", "stock": stock}]}), &says).await;
    }
    for stock in [json!(1.5), json!("5"), json!(null), json!(u64::MAX)] {
        refused(json!({"skus": [{"sku": "phone", "stock": stock}]}), "i64").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sku_twice_in_an_activity_is_refused() {
    let skus =
        json!([{"sku": "a", "stock": 1}, {"sku": "b", "stock": 1}, {"sku": "a", "stock": 2}]);
    refused(json!({"skus": skus}), "names a twice").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_activity_of_no_or_too_many_skus_is_refused() {
    refused(json!({"skus": []}), "1 to 100 SKUs; it names 0").await;
    let many: Vec<Value> = (0..101)
        .map(|n| json!({"sku": format!("s{n}"), "stock": 1}))
        .collect();
    refused(json!({"skus": many}), "1 to 100 SKUs; it names 101").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sku_that_is_no_name_is_refused() {
    for (sku, says) in [
        ("", "sku is empty"),
        ("a|b", "'|'"),
        ("a b", "' '"),
        ("手机", "'手'"),
        ("a\u{0}", "'\\0'"),
        ("{x}", "'{'"),
    ] {
        refused(json!({"skus": [{"sku": sku, "stock": 1}]}), says).await;
    }
    let long = "x".repeat(65);
    refused(json!({"skus": [{"sku": long, "stock": 1}]}), "at most 64").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sale_that_closes_before_it_opens_is_refused() {
    let (early, late) = ("2030-01-01T00:00:00Z", "2030-01-02T00:00:00Z");
    for (opens_at, closes_at) in [(late, early), (late, late)] {
        let times = json!({"opens_at": opens_at, "closes_at": closes_at});
        refused(times, "closes_at must be after opens_at").await;
    }
    // The same instant, written in two zones.
    let zones = json!({"opens_at": "2030-01-01T08:00:00+08:00", "closes_at": early});
    refused(zones, "closes_at must be after opens_at").await;
    refused(
        json!({"closes_at": "2001-01-01T00:00:00Z"}),
        "after opens_at",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_time_that_is_none_is_refused_with_an_example() {
    for time in [
        "tomorrow",
        "2030-01-01",
        "2030-01-01T00:00:00",
        "",
        "1893456000",
    ] {
        for field in ["opens_at", "closes_at"] {
            refused(json!({field: time}), "2026-11-11T20:00:00+08:00").await;
        }
    }
    refused(json!({"opens_at": 1_893_456_000}), "expected a string").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sale_outside_of_what_rfc_3339_can_write_is_refused() {
    for opens_at in [
        "9999-06-01T00:00:00Z",
        "-000100-01-01T00:00:00Z",
        "1969-12-31T23:59:59Z",
    ] {
        refused(
            json!({"opens_at": opens_at}),
            "between the years 1970 and 9998",
        )
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_setting_out_of_range_is_refused_with_its_range() {
    for (change, says) in [
        (
            json!({"pay_window_s": 0}),
            "pay_window_s is 0; it must be 1 to 2592000",
        ),
        (
            json!({"units_per_user_max": -1}),
            "it must be 1 to 1000000000",
        ),
        (
            json!({"batch_max": 257}),
            "batch_max is 257; it must be 1 to 256",
        ),
        (
            json!({"lock": {"ttl_ms": 99}}),
            "lock.ttl_ms is 99; it must be 100 to 300000",
        ),
        (json!({"lock": {"wait_ms": 60_001}}), "lock.wait_ms"),
        (
            json!({"lock": {"watchdog": "maybe"}}),
            "lock.watchdog `maybe` is unknown; one of on, off",
        ),
        (
            json!({"guard": "strong"}),
            "guard `strong` is unknown; one of none, lease, fence",
        ),
        (
            json!({"booking": "later"}),
            "booking `later` is unknown; one of sync, async",
        ),
        (
            json!({"limits": {"per_user": {"capacity": 0, "per_s": 1}}}),
            "limits.per_user.capacity is 0",
        ),
        (
            json!({"limits": {"activity": {"capacity": 1, "per_s": 0}}}),
            "limits.activity.per_s is 0",
        ),
        (
            json!({"limits": {"activity": {"capacity": 1, "per_s": -1.5}}}),
            "above 0",
        ),
        (
            json!({"limits": {"activity": {"capacity": 1, "per_s": 1_000_001}}}),
            "at most 1000000",
        ),
        (
            json!({"limits": {"per_user": {"capacity": 9_007_199_254_740_991_i64, "per_s": 1}}}),
            "limits.per_user.capacity is 9007199254740991; it must be 1 to 1000000000",
        ),
        (
            json!({"limits": {"activity": {"capacity": 1_000_000, "per_s": 1e-9}}}),
            "limits.activity takes more than a hundred years to fill",
        ),
    ] {
        refused(change, says).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_activity_with_an_unknown_missing_or_mistyped_field_is_refused() {
    refused(
        json!({"stratgy": "x"}),
        "unknown field `stratgy`, expected one of `strategy`",
    )
    .await;
    refused(
        json!({"limits": {"perUser": {}}}),
        "unknown field `perUser`",
    )
    .await;
    refused(json!({"lock": {"ttl": 1}}), "unknown field `ttl`").await;
    refused(json!({"skus": {"phone": 5}}), "expected a sequence").await;
    for (body, says) in [
        (
            r#"{"strategy": "db-conditional-update"}"#,
            "missing field `skus`",
        ),
        (r#"{"skus": []}"#, "missing field `strategy`"),
        (
            r#"{"strategy": "db-conditional-update", "skus": [{"sku": "a", "stock": 1}],
                "limits": {"activity": {"capacity": 1, "per_s": NaN}}}"#,
            "expected value",
        ),
        (
            r#"{"strategy": "db-conditional-update", "skus": [{"sku": "a", "stock": 1}],
                "limits": {"activity": {"capacity": 1, "per_s": 1e999}}}"#,
            "number out of range",
        ),
        (
            r#"{"strategy": "db-conditional-update", "skus": [{"sku": "a", "stock": 1}],
                "limits": {"activity": {"capacity": 1.5, "per_s": 1}}}"#,
            "invalid type: floating point",
        ),
        (
            r#"{"strategy": "db-conditional-update", "skus": [{"sku": "a", "stock": 1}],
                "limits": "none"}"#,
            "expected struct CreateLimits",
        ),
        ("[]", "the body is not what is expected"),
        ("null", "the body is not what is expected"),
        ("\"x\"", "the body is not what is expected"),
        ("{\"strategy\": ", "EOF while parsing"),
        ("strategy=no-lock", "expected"),
        ("", "the body is empty; send a JSON object"),
    ] {
        let answer = post("/v1/activities", &[], body).await;
        answer.assert_problem(400, "invalid-request", says);
    }
}
