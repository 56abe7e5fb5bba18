//! Does an order that is alone in its call come to the same as one among others?

use std::collections::BTreeMap;

use flashlock::gate::ReserveOutcome;
use flashlock::keys::GateKeys;
use flashlock::order::NewOrder;
use flashlock::sale::{Activity, Booking};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::server::RedisServer;
use super::{activity, new_order, one_gate, opened};

/// Everything that a gate keeps, but for times.
async fn kept(server: &RedisServer, a: &Activity) -> Vec<BTreeMap<String, String>> {
    let k = GateKeys::of(&a.id);
    let mut con = server.con().await;
    let mut all = redis::pipe();
    for key in [&k.meta, &k.stock, &k.pending, &k.committed, &k.user, &k.rsv] {
        all.hgetall(key);
    }
    let mut all: Vec<BTreeMap<String, String>> =
        all.query_async(&mut con).await.expect("the gate's hashes");
    if a.booking == Booking::Async {
        let records = all[5].values_mut();
        for record in records.filter(|record| !record.starts_with('X')) {
            let fields: Vec<&str> = record.split('|').collect();
            assert!(fields[4].parse::<i64>().is_ok(), "accepted at: {record}");
            *record = fields[..4].join("|");
        }
    }
    let held: Vec<String> = redis::cmd("ZRANGE")
        .arg(&k.pend)
        .arg(&["0", "-1"])
        .query_async(&mut con)
        .await
        .expect("the holds");
    let handed: i64 = redis::cmd("XLEN")
        .arg(&k.q)
        .query_async(&mut con)
        .await
        .expect("a length");
    let mut index: BTreeMap<_, _> = held.into_iter().map(|rid| (rid, String::new())).collect();
    index.insert("handed over".to_string(), handed.to_string());
    all.push(index);
    all
}

#[tokio::test]
async fn an_order_alone_is_decided_and_kept_as_in_a_batch() {
    let (server, gate) = one_gate().await;
    let mut met = BTreeMap::<&str, u32>::new();
    for seed in 0..8u64 {
        let mut rng = StdRng::seed_from_u64(seed);
        let [alone, together] = [(); 2].map(|()| {
            let mut a = activity(&[("A", 40), ("B", 9)]);
            a.units_per_user_max = 4;
            a.booking = [Booking::Sync, Booking::Async][seed as usize % 2];
            a
        });
        for a in [&alone, &together] {
            opened(&server, &gate, a).await;
        }
        let pool: Vec<NewOrder> = (0..60)
            .map(|i| {
                let n = rng.random_range(1..6);
                let lines: &[(&str, i64)] = match i % 5 {
                    0..3 => &[("A", n)],
                    3 => &[("B", n)],
                    _ => &[("A", 1), ("B", n)],
                };
                new_order(&alone, &format!("u{}", i % 41), &format!("k{i}"), lines)
            })
            .collect();
        for _ in 0..20 {
            let some: Vec<NewOrder> = (0..rng.random_range(2..9))
                .map(|_| pool[rng.random_range(0..pool.len())].clone())
                .collect();
            let batch = gate.reserve(&together, &some).await;
            for (order, among) in some.iter().zip(batch) {
                let mut one = gate.reserve(&alone, std::slice::from_ref(order)).await;
                let one = one.pop().expect("an outcome").expect("decided");
                let among = among.expect("decided");
                assert_eq!(one, among, "seed {seed}: {order:?}");
                *met.entry(name(&one)).or_default() += 1;
            }
            let rids = [some[0].rid];
            for a in [&alone, &together] {
                match seed % 3 {
                    0 => drop(gate.commit(&a.id, &rids).await.expect("told")),
                    _ => drop(gate.release(&a.id, &rids, "r").await.expect("told")),
                }
            }
            assert_eq!(
                kept(&server, &alone).await,
                kept(&server, &together).await,
                "seed {seed}"
            );
        }
    }
    let all = ["abandoned", "held", "replay", "sold out", "user limit"];
    assert_eq!(met.keys().copied().collect::<Vec<_>>(), all, "{met:?}");
}

fn name(outcome: &ReserveOutcome) -> &'static str {
    match outcome {
        ReserveOutcome::Held { .. } => "held",
        ReserveOutcome::Replay { .. } => "replay",
        ReserveOutcome::SoldOut { .. } => "sold out",
        ReserveOutcome::UserLimit { .. } => "user limit",
        ReserveOutcome::Abandoned => "abandoned",
        other => panic!("not in this sale: {other:?}"),
    }
}
