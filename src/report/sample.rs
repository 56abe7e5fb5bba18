//! A run with one of everything, for the tests of the reports: held, violated, undecided, skipped,
//! a quantile without samples, and the control.

use std::collections::BTreeMap;

use crate::run::{
    Cell, CpuPerOrder, Environment, Finding, Limit, PlanInfo, Quantiles, Run, RunInfo, SCHEMA,
    Safety, Verdict,
};

pub(super) fn run() -> Run {
    Run {
        schema: SCHEMA,
        run: RunInfo {
            id: "20261111T120000Z-7".to_string(),
            seed: 7,
            profile: "quick".to_string(),
            started_at: "2026-11-11T12:00:00Z".to_string(),
            ended_at: "2026-11-11T12:01:38Z".to_string(),
            commit: "96c5581".to_string(),
            command: "flashlock compare --profile quick --database postgres --seed 7".to_string(),
            plan: PlanInfo {
                database: "postgres".to_string(),
                users: 2000,
                stock: 200,
                concurrency: 64,
                instances: 2,
                same_key_share: 0.1,
                other_key_share: 0.05,
                limits_on: false,
            },
            disturbances: Vec::new(),
        },
        environment: Environment {
            cpu: "Example CPU".to_string(),
            cores: 2,
            kernel: "6.1.0".to_string(),
            file_system: "ext4".to_string(),
            servers: servers(),
        },
        limits: [
            ("fsync", 1840.0),
            ("http-noop", 21500.0),
            ("redis-evalsha", 14200.0),
            ("zookeeper-create-delete", 812.0),
            ("database-hot-row", 731.0),
        ]
        .map(|(name, per_s)| Limit {
            name: name.to_string(),
            per_s,
        })
        .to_vec(),
        results: cells(),
    }
}

fn servers() -> BTreeMap<String, BTreeMap<String, String>> {
    let settings = |pairs: &[(&str, &str)]| {
        let owned = pairs.iter().map(|(k, v)| (k.to_string(), v.to_string()));
        owned.collect::<BTreeMap<_, _>>()
    };
    BTreeMap::from([
        (
            "redis".to_string(),
            settings(&[
                ("version", "7.0.15"),
                ("appendonly", "yes"),
                ("appendfsync", "everysec"),
            ]),
        ),
        (
            "postgres".to_string(),
            settings(&[
                ("version", "15.8"),
                ("fsync", "on"),
                ("synchronous_commit", "on"),
            ]),
        ),
    ])
}

fn cells() -> Vec<Cell> {
    let mut zookeeper = cell("zookeeper", 96.4, [310.0, 640.0, 0.0, 1210.0]);
    zookeeper.latency_ms.p99 = None;
    zookeeper.cpu_us_per_order.zookeeper = Some(4120.0);
    zookeeper.cpu_us_per_order.redis = None;

    let mut unique = cell("db-unique-insert", 141.0, [188.0, 702.0, 1480.0, 2210.0]);
    unique.safety.verdict = Verdict::Unknown;
    unique.unknown = 3;
    unique.safety.findings[1] = Finding {
        property: "S2".to_string(),
        verdict: Verdict::Unknown,
        says: "3 outcomes are open: between 197 and 200 units are in live orders".to_string(),
    };

    let mut skipped = cell("redlock", 0.0, [0.0; 4]);
    skipped.skipped =
        Some("redis-server is not installed: apt-get install redis-server".to_string());
    skipped.goodput_per_s = None;
    skipped.latency_ms = Quantiles::default();
    skipped.cpu_us_per_order = CpuPerOrder::default();
    skipped.booked = 0;
    skipped.safety.verdict = Verdict::Unknown;
    skipped.safety.findings.clear();

    let mut control = cell("no-lock", 912.0, [18.0, 49.0, 96.0, 140.0]);
    control.control = true;
    control.booked = 237;
    control.guard = "none".to_string();
    control.safety.verdict = Verdict::Violated;
    control.safety.oversold = 37;
    control.safety.findings[0] = Finding {
        property: "S1".to_string(),
        verdict: Verdict::Violated,
        says: "237 units are in live orders, 200 were for sale".to_string(),
    };

    let mut lua = cell("redis-lua", 1310.0, [9.4, 21.0, 44.0, 71.0]);
    lua.durability = "second".to_string();
    lua.guard = "none".to_string();
    let mut update = cell("db-conditional-update", 402.0, [88.0, 231.0, 410.0, 560.0]);
    update.guard = "none".to_string();
    update.cpu_us_per_order.redis = None;
    vec![
        cell("redis-set-nx", 168.0, [171.0, 505.0, 922.0, 1310.0]),
        skipped,
        zookeeper,
        unique,
        update,
        lua,
        control,
    ]
}

/// A strategy that held; `latency` is p50, p90, p99 and the maximum in milliseconds.
fn cell(strategy: &str, goodput: f64, latency: [f64; 4]) -> Cell {
    let says = [
        ("S1", "200 units are in live orders, 200 were for sale"),
        ("S2", "available 0 + held 200 + sold 0 = total 200"),
        ("S3", "no user has two live orders"),
        (
            "S4",
            "all 200 orders that were answered 201 are in the database",
        ),
        ("S5", "every order in the database was asked for"),
    ];
    Cell {
        strategy: strategy.to_string(),
        database: "postgres".to_string(),
        guard: "fence".to_string(),
        batch_max: 1,
        instances: 2,
        durability: "fsync".to_string(),
        control: false,
        stock: 200,
        attempts: 2300,
        booked: 200,
        sold_out: 1800,
        already_purchased: 34,
        limited: 0,
        busy: 12,
        unknown: 0,
        unexpected: 0,
        answers: BTreeMap::from([
            ("201".to_string(), 200),
            ("409 sold-out".to_string(), 1800),
            ("503 lock-timeout".to_string(), 12),
        ]),
        elapsed_s: 1.19,
        goodput_per_s: Some(goodput),
        latency_ms: Quantiles {
            p50: Some(latency[0]),
            p90: Some(latency[1]),
            p99: Some(latency[2]),
            max: Some(latency[3]),
        },
        service_ms: Quantiles {
            p50: Some(11.9),
            p90: Some(24.5),
            p99: None,
            max: Some(61.2),
        },
        cpu_us_per_order: CpuPerOrder {
            service: Some(2140.0),
            redis: Some(260.0),
            zookeeper: None,
            database: Some(1805.0),
        },
        safety: Safety {
            verdict: Verdict::Ok,
            oversold: 0,
            duplicate_orders: 0,
            lost_orders: 0,
            phantom_orders: 0,
            findings: says
                .map(|(property, says)| Finding {
                    property: property.to_string(),
                    verdict: Verdict::Ok,
                    says: says.to_string(),
                })
                .to_vec(),
        },
        skipped: None,
    }
}
