//! The Redis gate on a real redis-server: every answer of every script, and the law of stock.

mod alike;
mod faults;
mod memory;
mod rebuild;
#[path = "gate_server.rs"]
pub(crate) mod server;

use flashlock::gate::{self, Audit, Gate, GateError, ReserveOutcome, Step};
use flashlock::order::{Fingerprint, NewOrder, Order, OrderState};
use flashlock::sale::{
    Activity, ActivityId, ActivityState, Allocation, Booking, GuardMode, IdempotencyKey, Limits,
    Line, LockSettings, Purchase, Rid, Sku, StrategyName, Watchdog,
};
use flashlock::script::gate::{
    CommitAnswer, GateState, HoldState, ReholdAnswer, ReleaseAnswer, ShutState, Stamped,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use server::RedisServer;

const FAR_MS: i64 = 99_999_999_999_999;

fn sku(name: &str) -> Sku {
    name.parse().expect("a sku")
}

fn activity(stock: &[(&str, i64)]) -> Activity {
    Activity {
        id: ActivityId::generate(),
        state: ActivityState::Open,
        strategy: StrategyName::new("redis-lua"),
        guard: GuardMode::None,
        batch_max: 64,
        booking: Booking::Sync,
        lock: LockSettings {
            ttl_ms: 1,
            wait_ms: 1,
            watchdog: Watchdog::Off,
        },
        limits: Limits::default(),
        opens_at_ms: 0,
        closes_at_ms: FAR_MS,
        pay_window_s: 60,
        units_per_user_max: 5,
        fence_generation: 0,
        gate_epoch: 1,
        gate_run_id: "the-run".to_string(),
        skus: stock
            .iter()
            .map(|(name, total)| Allocation {
                sku: sku(name),
                total: *total,
            })
            .collect(),
    }
}

fn new_order(a: &Activity, user: &str, key: &str, lines: &[(&str, i64)]) -> NewOrder {
    let key: IdempotencyKey = key.parse().expect("a key");
    let lines = lines.iter().map(|(name, quantity)| Line {
        sku: sku(name),
        quantity: *quantity,
    });
    let user = user.parse().expect("a user");
    let purchase = Purchase::new(a.id.clone(), user, key, lines).expect("a purchase");
    NewOrder {
        admitted_at_ms: 0,
        rid: purchase.rid(),
        user: purchase.user.clone(),
        fingerprint: Fingerprint::of(&purchase),
        lines: purchase.lines().to_vec(),
    }
}

fn order(a: &Activity, new: &NewOrder, state: OrderState) -> Order {
    Order {
        id: new.id(&a.id),
        user: new.user.clone(),
        state,
        close_reason: None,
        fingerprint: new.fingerprint.clone(),
        lines: new.lines.clone(),
        created_at_ms: 0,
        pay_deadline_ms: 0,
    }
}

async fn load(server: &RedisServer, a: &Activity) {
    let stamped = Stamped::new(&gate::stamp(a));
    stamped.load(&mut server.con().await).await.expect("loaded");
}

/// Warms `a` up and opens it.
async fn opened(server: &RedisServer, gate: &Gate, a: &Activity) {
    load(server, a).await;
    assert_eq!(gate.warm(a).await.expect("warm"), Step::Done);
    assert_eq!(gate.seal(a).await.expect("seal"), Step::Done);
    assert_eq!(gate.open(a).await.expect("open"), Step::Done);
}

async fn one_gate() -> (RedisServer, Gate) {
    let server = RedisServer::start(&[]).await;
    let gate = Gate::new(&server.url()).expect("a gate");
    (server, gate)
}

async fn reserve(gate: &Gate, a: &Activity, o: &NewOrder) -> Result<ReserveOutcome, GateError> {
    let mut outcomes = gate.reserve(a, std::slice::from_ref(o)).await;
    outcomes.pop().expect("one outcome")
}

async fn audit(gate: &Gate, a: &Activity) -> Audit {
    let audit = gate.audit(&a.id).await.expect("audited").expect("warmed");
    for ledger in &audit.ledgers {
        let counted = ledger.available + ledger.held + ledger.sold;
        assert_eq!(counted, ledger.total, "R1 is broken: {audit:?}");
    }
    audit
}

/// (available, held, sold) of each SKU.
async fn counts(gate: &Gate, a: &Activity) -> Vec<(i64, i64, i64)> {
    let audit = audit(gate, a).await;
    let count = audit.ledgers.iter();
    count.map(|l| (l.available, l.held, l.sold)).collect()
}

fn held(left: i64) -> ReserveOutcome {
    ReserveOutcome::Held { left }
}

#[tokio::test]
async fn a_hold_is_committed_or_given_back_once() {
    let (server, gate) = one_gate().await;
    let a = activity(&[("A", 3)]);
    opened(&server, &gate, &a).await;
    let one = new_order(&a, "u1", "k", &[("A", 2)]);
    let two = new_order(&a, "u2", "k", &[("A", 1)]);
    assert_eq!(reserve(&gate, &a, &one).await.expect("held"), held(1));
    assert_eq!(reserve(&gate, &a, &two).await.expect("held"), held(0));
    assert_eq!(counts(&gate, &a).await, [(0, 3, 0)]);
    let commit = |rid: Rid| {
        let (gate, id) = (gate.clone(), a.id.clone());
        async move { gate.commit(&id, &[rid]).await.expect("an answer")[0] }
    };
    let release = |rid: Rid| {
        let (gate, id) = (gate.clone(), a.id.clone());
        async move { gate.release(&id, &[rid], "test").await.expect("an answer")[0] }
    };
    assert_eq!(commit(one.rid).await, CommitAnswer::Committed);
    assert_eq!(commit(one.rid).await, CommitAnswer::Already);
    assert_eq!(counts(&gate, &a).await, [(0, 1, 2)]);
    assert_eq!(release(two.rid).await, ReleaseAnswer::Released);
    assert_eq!(release(two.rid).await, ReleaseAnswer::Already);
    assert_eq!(commit(two.rid).await, CommitAnswer::Dead);
    assert_eq!(release(one.rid).await, ReleaseAnswer::Released);
    assert_eq!(release(one.rid).await, ReleaseAnswer::Already);
    assert_eq!(counts(&gate, &a).await, [(3, 0, 0)]);
    let never = new_order(&a, "u3", "k", &[("A", 1)]);
    assert_eq!(commit(never.rid).await, CommitAnswer::Missing);
}

#[tokio::test]
async fn a_replay_is_answered_before_any_gate_check() {
    let (server, gate) = one_gate().await;
    let a = activity(&[("A", 1)]);
    opened(&server, &gate, &a).await;
    let mine = new_order(&a, "u1", "k", &[("A", 1)]);
    assert_eq!(reserve(&gate, &a, &mine).await.expect("held"), held(0));
    let replay = |state| ReserveOutcome::Replay {
        state,
        left: Some(0),
    };
    assert_eq!(
        reserve(&gate, &a, &mine).await.expect("replayed"),
        replay(HoldState::Pending)
    );
    gate.commit(&a.id, &[mine.rid]).await.expect("committed");
    gate.shut(&a.id, ShutState::Closing, None)
        .await
        .expect("shut");
    assert_eq!(
        reserve(&gate, &a, &mine).await.expect("replayed"),
        replay(HoldState::Committed)
    );
    gate.release(&a.id, &[mine.rid], "timeout")
        .await
        .expect("released");
    assert_eq!(
        reserve(&gate, &a, &mine).await.expect("replayed"),
        replay(HoldState::Released)
    );
    let other = new_order(&a, "u2", "k", &[("A", 1)]);
    assert_eq!(
        reserve(&gate, &a, &other).await.expect("refused"),
        ReserveOutcome::Shut(GateState::Closing)
    );
    let reused = new_order(&a, "u1", "k", &[("A", 2)]);
    assert_eq!(reused.rid, mine.rid);
    assert_eq!(
        reserve(&gate, &a, &reused).await.expect("refused"),
        ReserveOutcome::KeyReused
    );
}

#[tokio::test]
async fn each_refusal_has_its_own_answer_and_takes_nothing() {
    let (server, gate) = one_gate().await;
    let a = activity(&[("A", 2), ("B", 9)]);
    opened(&server, &gate, &a).await;
    let ask = |user: &str, lines: &[(&str, i64)]| new_order(&a, user, "k", lines);
    let sold_out = |left| ReserveOutcome::SoldOut {
        sku: sku("A"),
        left,
    };
    // All or nothing: B was there, A was not enough.
    let both = ask("u1", &[("B", 1), ("A", 3)]);
    assert_eq!(
        reserve(&gate, &a, &both).await.expect("refused"),
        sold_out(2)
    );
    assert_eq!(counts(&gate, &a).await, [(2, 0, 0), (9, 0, 0)]);
    let unknown = ask("u1", &[("A", 1), ("Z", 1)]);
    assert_eq!(
        reserve(&gate, &a, &unknown).await.expect("refused"),
        ReserveOutcome::UnknownSku(sku("Z"))
    );
    let greedy = ask("u1", &[("B", 6)]);
    assert_eq!(
        reserve(&gate, &a, &greedy).await.expect("refused"),
        ReserveOutcome::UserLimit { live: None }
    );
    let first = ask("u1", &[("A", 1), ("B", 1)]);
    let second = new_order(&a, "u1", "k2", &[("B", 1)]);
    assert_eq!(reserve(&gate, &a, &first).await.expect("held"), held(1));
    assert_eq!(
        reserve(&gate, &a, &second).await.expect("refused"),
        ReserveOutcome::UserLimit {
            live: Some(first.rid)
        }
    );
    assert_eq!(counts(&gate, &a).await, [(1, 1, 0), (8, 1, 0)]);
    // Freed with the order, and only with it.
    gate.release(&a.id, &[second.rid], "late")
        .await
        .expect("tombstoned");
    assert_eq!(
        reserve(&gate, &a, &new_order(&a, "u1", "k3", &[("B", 1)]))
            .await
            .expect("refused"),
        ReserveOutcome::UserLimit {
            live: Some(first.rid)
        }
    );
    gate.release(&a.id, &[first.rid], "user")
        .await
        .expect("released");
    let third = new_order(&a, "u1", "k4", &[("B", 5)]);
    assert_eq!(reserve(&gate, &a, &third).await.expect("held"), held(4));
}

#[tokio::test]
async fn the_window_is_the_servers() {
    let (server, gate) = one_gate().await;
    let mut early = activity(&[("A", 1)]);
    early.opens_at_ms = FAR_MS - 1;
    opened(&server, &gate, &early).await;
    let o = new_order(&early, "u", "k", &[("A", 1)]);
    assert_eq!(
        reserve(&gate, &early, &o).await.expect("refused"),
        ReserveOutcome::NotOpen {
            opens_at_ms: FAR_MS - 1
        }
    );
    let mut late = activity(&[("A", 1)]);
    late.closes_at_ms = 1;
    opened(&server, &gate, &late).await;
    let o = new_order(&late, "u", "k", &[("A", 1)]);
    assert_eq!(
        reserve(&gate, &late, &o).await.expect("refused"),
        ReserveOutcome::Ended { closes_at_ms: 1 }
    );
}

#[tokio::test]
async fn a_tombstone_refuses_the_late_reserve() {
    let (server, gate) = one_gate().await;
    let a = activity(&[("A", 1)]);
    let late = new_order(&a, "u", "k", &[("A", 1)]);
    let gone = gate
        .release(&a.id, &[late.rid], "lost")
        .await
        .expect("an answer");
    assert_eq!(gone, [ReleaseAnswer::Gone]);
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg("*")
        .query_async(&mut server.con().await)
        .await
        .expect("keys");
    assert!(keys.is_empty(), "a release made {keys:?}");
    opened(&server, &gate, &a).await;
    let twice = [late.rid, late.rid];
    let stones = gate
        .release(&a.id, &twice, "lost")
        .await
        .expect("an answer");
    assert_eq!(stones, [ReleaseAnswer::Tombstoned, ReleaseAnswer::Already]);
    assert_eq!(
        reserve(&gate, &a, &late).await.expect("refused"),
        ReserveOutcome::Abandoned
    );
    assert_eq!(counts(&gate, &a).await, [(1, 0, 0)]);
}

#[tokio::test]
async fn a_batch_is_decided_order_by_order() {
    let (server, gate) = one_gate().await;
    let a = activity(&[("A", 3)]);
    opened(&server, &gate, &a).await;
    let ask = |user: &str, key: &str, n| new_order(&a, user, key, &[("A", n)]);
    let batch = [
        ask("u1", "k", 1),
        ask("u1", "k", 1),
        ask("u1", "other", 1),
        ask("u2", "k", 3),
        ask("u3", "k", 2),
        ask("u4", "k", 1),
    ];
    let outcomes: Vec<_> = gate
        .reserve(&a, &batch)
        .await
        .into_iter()
        .map(|o| o.expect("an outcome"))
        .collect();
    let sold_out = |left| ReserveOutcome::SoldOut {
        sku: sku("A"),
        left,
    };
    assert_eq!(
        outcomes,
        [
            held(2),
            ReserveOutcome::Replay {
                state: HoldState::Pending,
                left: Some(2)
            },
            ReserveOutcome::UserLimit {
                live: Some(batch[0].rid)
            },
            sold_out(2),
            held(0),
            sold_out(0),
        ]
    );
    assert_eq!(counts(&gate, &a).await, [(0, 3, 0)]);
    // More than one call carries.
    let many: Vec<NewOrder> = (0..600).map(|i| ask(&format!("v{i}"), "k", 1)).collect();
    assert_eq!(gate.reserve(&a, &many).await.len(), 600);
}

#[tokio::test]
async fn rehold_takes_what_is_missing_and_nothing_twice() {
    let (server, gate) = one_gate().await;
    let a = activity(&[("A", 2)]);
    let asked: Vec<NewOrder> = (0..4)
        .map(|i| new_order(&a, &format!("u{i}"), "k", &[("A", 1)]))
        .collect();
    let live: Vec<Order> = asked
        .iter()
        .map(|o| order(&a, o, OrderState::PendingPayment))
        .collect();
    let gone = gate.rehold(&a.id, &live).await.expect("an answer");
    assert_eq!(gone, [ReholdAnswer::Gone; 4]);
    opened(&server, &gate, &a).await;
    assert_eq!(reserve(&gate, &a, &asked[0]).await.expect("held"), held(1));
    gate.release(&a.id, &[asked[1].rid], "x")
        .await
        .expect("tombstoned");
    let answers = gate.rehold(&a.id, &live).await.expect("an answer");
    assert_eq!(
        answers,
        [
            ReholdAnswer::Pending,
            ReholdAnswer::ReheldDead,
            ReholdAnswer::Reheld,
            ReholdAnswer::Reheld
        ]
    );
    // A debt: more is live than the gate had left.
    assert_eq!(counts(&gate, &a).await, [(-2, 1, 3)]);
    let next = new_order(&a, "u9", "k", &[("A", 1)]);
    assert_eq!(
        reserve(&gate, &a, &next).await.expect("refused"),
        ReserveOutcome::SoldOut {
            sku: sku("A"),
            left: 0
        }
    );
    assert_eq!(
        gate.rehold(&a.id, &live[1..]).await.expect("an answer"),
        [ReholdAnswer::Already; 3]
    );
    // A repeat of the buyer's request finds the order, though this gate never held it.
    assert_eq!(
        reserve(&gate, &a, &asked[2]).await.expect("replayed"),
        ReserveOutcome::Replay {
            state: HoldState::Committed,
            left: None
        }
    );
    let stranger = order(&a, &new_order(&a, "u8", "k", &[("Z", 1)]), OrderState::Paid);
    assert_eq!(
        gate.rehold(&a.id, &[stranger]).await.expect("an answer"),
        [ReholdAnswer::UnknownSku]
    );
}

#[tokio::test]
async fn giving_back_one_of_two_orders_frees_its_user_of_that_one_only() {
    let (server, gate) = one_gate().await;
    let a = activity(&[("A", 9)]);
    opened(&server, &gate, &a).await;
    let [first, second] = ["k1", "k2"].map(|key| new_order(&a, "u", key, &[("A", 1)]));
    let live = [&first, &second].map(|o| order(&a, o, OrderState::Paid));
    gate.rehold(&a.id, &live).await.expect("reheld");
    let released = gate.release(&a.id, &[second.rid], "user").await;
    released.expect("released");
    let third = new_order(&a, "u", "k3", &[("A", 1)]);
    assert_eq!(
        reserve(&gate, &a, &third).await.expect("refused"),
        ReserveOutcome::UserLimit {
            live: Some(first.rid)
        }
    );
}

#[tokio::test]
async fn only_a_complete_warm_up_opens_and_none_puts_stock_back() {
    let (server, gate) = one_gate().await;
    let a = activity(&[("A", 5)]);
    load(&server, &a).await;
    assert!(matches!(
        gate.seal(&a).await,
        Err(GateError::NotThisRedis(_))
    ));
    assert!(matches!(
        gate.open(&a).await,
        Err(GateError::NotThisRedis(_))
    ));
    assert_eq!(gate.warm(&a).await.expect("warm"), Step::Done);
    assert_eq!(
        gate.open(&a).await.expect("refused"),
        Step::Refused(GateState::Warming)
    );
    let mut wider = a.clone();
    wider.skus = activity(&[("A", 5), ("B", 1)]).skus;
    assert!(matches!(
        gate.seal(&wider).await,
        Err(GateError::Corrupt { .. })
    ));
    assert!(matches!(
        gate.warm(&wider).await,
        Err(GateError::Corrupt { .. })
    ));
    assert_eq!(gate.seal(&a).await.expect("sealed"), Step::Done);
    assert_eq!(gate.seal(&a).await.expect("sealed"), Step::Already);
    assert_eq!(gate.open(&a).await.expect("open"), Step::Done);
    assert_eq!(gate.open(&a).await.expect("open"), Step::Already);
    assert_eq!(
        gate.warm(&a).await.expect("refused"),
        Step::Refused(GateState::Open)
    );
    assert_eq!(
        gate.seal(&a).await.expect("refused"),
        Step::Refused(GateState::Open)
    );
    let o = new_order(&a, "u", "k", &[("A", 2)]);
    assert_eq!(reserve(&gate, &a, &o).await.expect("held"), held(3));
    let paused = gate.shut(&a.id, ShutState::Paused, None).await;
    assert_eq!(paused.expect("paused"), Step::Done);
    assert_eq!(gate.warm(&a).await.expect("kept"), Step::Already);
    assert_eq!(counts(&gate, &a).await, [(3, 2, 0)]);
    // An earlier epoch neither warms nor shuts.
    let mut later = a.clone();
    later.gate_epoch = 7;
    assert_eq!(gate.warm(&later).await.expect("kept"), Step::Already);
    assert!(matches!(
        gate.warm(&a).await,
        Err(GateError::NotThisRedis(_))
    ));
    assert!(matches!(
        gate.open(&a).await,
        Err(GateError::NotThisRedis(_))
    ));
    let stale = gate.shut(&a.id, ShutState::Fenced, Some(1)).await;
    assert!(matches!(stale, Err(GateError::NotThisRedis(_))));
    let over = gate.shut(&a.id, ShutState::Sealed, None).await;
    assert_eq!(over.expect("over"), Step::Done);
    assert_eq!(
        gate.shut(&a.id, ShutState::Fenced, Some(9))
            .await
            .expect("refused"),
        Step::Refused(GateState::Sealed)
    );
}

#[tokio::test]
async fn the_law_of_stock_holds_after_any_sequence() {
    let (server, gate) = one_gate().await;
    for seed in 0..6u64 {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut a = activity(&[("A", 12), ("B", 7)]);
        a.units_per_user_max = 4;
        a.booking = [Booking::Sync, Booking::Async][seed as usize % 2];
        opened(&server, &gate, &a).await;
        let pool: Vec<NewOrder> = (0..30)
            .map(|i| {
                let n = rng.random_range(1..4);
                let lines: &[(&str, i64)] = match i % 3 {
                    0 => &[("A", n)],
                    1 => &[("B", n)],
                    _ => &[("A", 1), ("B", n)],
                };
                new_order(&a, &format!("u{}", i % 11), &format!("k{i}"), lines)
            })
            .collect();
        let mut seq = 0;
        for step in 0..250 {
            let some: Vec<NewOrder> = (0..rng.random_range(1..6))
                .map(|_| pool[rng.random_range(0..pool.len())].clone())
                .collect();
            let rids: Vec<Rid> = some.iter().map(|o| o.rid).collect();
            match rng.random_range(0..10) {
                0..5 => {
                    for outcome in gate.reserve(&a, &some).await {
                        outcome.expect("an outcome");
                    }
                }
                5..7 => {
                    gate.commit(&a.id, &rids).await.expect("commit");
                }
                7..9 => {
                    let answers = gate.release(&a.id, &rids, "r").await.expect("release");
                    assert!(!answers.contains(&ReleaseAnswer::Corrupt));
                }
                _ => {
                    let live: Vec<Order> = some
                        .iter()
                        .map(|o| order(&a, o, OrderState::Paid))
                        .collect();
                    gate.rehold(&a.id, &live).await.expect("rehold");
                }
            }
            let audit = audit(&gate, &a).await;
            assert!(audit.seq >= seq, "seed {seed}, step {step}: {audit:?}");
            seq = audit.seq;
        }
        // Everything given back: all stock is there again and nobody is blocked.
        let rids: Vec<Rid> = pool.iter().map(|o| o.rid).collect();
        gate.release(&a.id, &rids, "end").await.expect("released");
        let end = audit(&gate, &a).await;
        assert_eq!(end.holds, 0, "seed {seed}");
        assert_eq!(
            counts(&gate, &a).await,
            [(12, 0, 0), (7, 0, 0)],
            "seed {seed}"
        );
        let users: Vec<String> = redis::cmd("HKEYS")
            .arg(flashlock::keys::GateKeys::of(&a.id).user)
            .query_async(&mut server.con().await)
            .await
            .expect("users");
        // Nobody's entry makes the hash a table.
        assert_eq!(
            users,
            [""],
            "seed {seed}: a user is blocked without an order"
        );
    }
}
