//! A gate that lost its Redis is rebuilt from the database, and nobody is told "sold out" meanwhile.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use flashlock::deduct::{Closed, Deduct, DeductError, Ending};
use flashlock::gate::rebuild::{Rebuilt, rebuild};
use flashlock::gate::{Gate, GateError, Mismatch};
use flashlock::order::{CloseReason, NewOrder, OrderState};
use flashlock::sale::{Activity, ActivityState, Booking};
use flashlock::script::gate::GateState;
use flashlock::strategy::redis_lua::RedisLua;

use super::memory::Memory;
use super::server::RedisServer;
use super::{activity, audit, counts, new_order, one_gate, order, reserve};

/// Everything recovers well within this.
const SOON: Duration = Duration::from_secs(20);

struct Sale {
    server: RedisServer,
    gate: Gate,
    db: Arc<Memory>,
    strategy: RedisLua,
}

impl Sale {
    async fn open(options: &[&str], stock: &[(&str, i64)]) -> Self {
        let server = RedisServer::start(options).await;
        let gate = Gate::new(&server.url()).expect("a gate");
        let mut a = activity(stock);
        a.state = ActivityState::Warming;
        a.gate_epoch = 0;
        a.gate_run_id = String::new();
        let db = Arc::new(Memory::new(a));
        let sale = Self {
            strategy: RedisLua::new(gate.clone(), db.clone(), db.clone()),
            server,
            gate,
            db,
        };
        let now = sale.now();
        sale.strategy.warm_up(&now).await.expect("warm");
        sale.db.activity.lock().expect("a lock").state = ActivityState::Open;
        sale.strategy.open(&sale.now()).await.expect("open");
        sale
    }

    fn now(&self) -> Activity {
        self.db.now()
    }

    async fn buy(&self, as_of: &Activity, o: &NewOrder) -> Result<Ending, DeductError> {
        let mut endings = self.strategy.deduct(as_of, std::slice::from_ref(o)).await;
        endings.pop().expect("one ending")
    }

    /// Buys, trying again with the same key as long as the gate recovers or cannot be reached.
    async fn buy_soon(&self, as_of: &Activity, o: &NewOrder) -> Ending {
        let tries = async {
            loop {
                match self.buy(as_of, o).await {
                    Ok(Ending::Recovering) | Err(_) => {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                    Ok(ending) => return ending,
                }
            }
        };
        tokio::time::timeout(SOON, tries).await.expect("recovered")
    }
}

fn is_lost<T>(answer: &Result<T, GateError>, why: Mismatch) -> bool {
    matches!(answer, Err(GateError::NotThisRedis(seen)) if *seen == why)
}

#[tokio::test]
async fn a_purchase_is_booked_replayed_and_closed() {
    let sale = Sale::open(&[], &[("A", 2)]).await;
    let a = sale.now();
    let one = new_order(&a, "u1", "k", &[("A", 1)]);
    let Ending::Booked { order, left } = sale.buy(&a, &one).await.expect("an ending") else {
        panic!("not booked");
    };
    assert_eq!((order.id.rid, left), (one.rid, 1));
    assert_eq!(counts(&sale.gate, &a).await, [(1, 0, 1)]);
    let replayed = sale.buy(&a, &one).await.expect("an ending");
    assert!(matches!(replayed, Ending::Replayed(o) if o.id.rid == one.rid));
    let again = new_order(&a, "u1", "k2", &[("A", 1)]);
    let bought = sale.buy(&a, &again).await.expect("an ending");
    assert_eq!(bought, Ending::AlreadyPurchased(one.id(&a.id)));
    for _ in 0..2 {
        let ids = [one.id(&a.id)];
        let closed = sale.strategy.close(&a, &ids, CloseReason::User).await;
        assert!(matches!(
            closed[0],
            Ok(Closed::Closed | Closed::NotPending(_))
        ));
        assert_eq!(counts(&sale.gate, &a).await, [(2, 0, 0)]);
    }
}

#[tokio::test]
async fn a_lost_answer_of_the_database_leaves_the_hold_and_the_same_key_finds_out() {
    let sale = Sale::open(&[], &[("A", 2)]).await;
    let a = sale.now();
    let one = new_order(&a, "u1", "k", &[("A", 1)]);
    sale.db.lose_answer.store(true, Ordering::SeqCst);
    let lost = sale.buy(&a, &one).await;
    assert!(matches!(lost, Err(DeductError::Unknown { .. })), "{lost:?}");
    assert_eq!(counts(&sale.gate, &a).await, [(1, 1, 0)]);
    let found = sale.buy(&a, &one).await.expect("an ending");
    assert!(matches!(found, Ending::Replayed(o) if o.id.rid == one.rid));
    assert_eq!(counts(&sale.gate, &a).await, [(1, 0, 1)]);
}

#[tokio::test]
async fn what_the_database_refuses_is_given_back() {
    let sale = Sale::open(&[], &[("A", 2)]).await;
    let a = sale.now();
    // Live in the database, unknown to this gate.
    let first = new_order(&a, "u1", "k1", &[("A", 1)]);
    sale.db.put(order(&a, &first, OrderState::Paid));
    let second = new_order(&a, "u1", "k2", &[("A", 1)]);
    let refused = sale.buy(&a, &second).await.expect("an ending");
    assert_eq!(refused, Ending::AlreadyPurchased(first.id(&a.id)));
    assert_eq!(counts(&sale.gate, &a).await, [(2, 0, 0)]);
}

#[tokio::test]
async fn a_restart_that_lost_everything_is_noticed_and_rebuilt() {
    let mut sale = Sale::open(&[], &[("A", 3)]).await;
    let a = sale.now();
    let kept = new_order(&a, "u1", "k", &[("A", 2)]);
    sale.buy(&a, &kept).await.expect("booked");
    sale.server.kill();
    let away = sale.buy(&a, &new_order(&a, "u2", "k", &[("A", 1)])).await;
    assert!(away.is_err(), "{away:?}");
    sale.server.start_again().await;
    // Asked with what a process remembers from before, as a buyer's request would.
    let next = new_order(&a, "u3", "k", &[("A", 1)]);
    let lost = loop {
        match reserve(&sale.gate, &a, &next).await {
            Err(GateError::Unavailable(_) | GateError::Unknown(_)) => {}
            answer => break answer,
        }
    };
    assert!(is_lost(&lost, Mismatch::NoScript), "{lost:?}");
    let ending = sale.buy_soon(&a, &next).await;
    assert!(
        matches!(ending, Ending::Booked { left: 0, .. }),
        "{ending:?}"
    );
    let ending = sale
        .buy_soon(&a, &new_order(&a, "u4", "k", &[("A", 1)]))
        .await;
    assert!(matches!(ending, Ending::SoldOut { .. }), "{ending:?}");
    assert_eq!(counts(&sale.gate, &a).await, [(0, 0, 3)]);
    assert_eq!(audit(&sale.gate, &a).await.epoch, sale.now().gate_epoch);
    // The buyer from before the restart is found again.
    let ending = sale.buy_soon(&a, &kept).await;
    assert!(matches!(ending, Ending::Replayed(o) if o.id.rid == kept.rid));
}

#[tokio::test]
async fn flushed_scripts_and_flushed_data_are_noticed() {
    for command in ["SCRIPT", "FLUSHALL"] {
        let sale = Sale::open(&[], &[("A", 2)]).await;
        let a = sale.now();
        sale.buy(&a, &new_order(&a, "u1", "k", &[("A", 1)]))
            .await
            .expect("booked");
        let mut con = sale.server.con().await;
        let mut flush = redis::cmd(command);
        if command == "SCRIPT" {
            flush.arg("FLUSH");
        }
        flush.query_async::<()>(&mut con).await.expect("flushed");
        let next = new_order(&a, "u2", "k", &[("A", 1)]);
        let why = match command {
            "SCRIPT" => Mismatch::NoScript,
            _ => Mismatch::NotWarmed,
        };
        let lost = reserve(&sale.gate, &a, &next).await;
        assert!(is_lost(&lost, why), "{command}: {lost:?}");
        let ending = sale.buy_soon(&a, &next).await;
        assert!(
            matches!(ending, Ending::Booked { left: 0, .. }),
            "{command}: {ending:?}"
        );
        assert_eq!(counts(&sale.gate, &a).await, [(0, 0, 2)], "{command}");
    }
}

#[tokio::test]
async fn a_rollback_under_the_same_run_id_is_noticed_by_its_sequence_number() {
    let sale = Sale::open(&[], &[("A", 5)]).await;
    let a = sale.now();
    let keys = flashlock::keys::GateKeys::of(&a.id);
    let mut con = sale.server.con().await;
    let seq: i64 = redis::cmd("HGET")
        .arg(&keys.meta)
        .arg("seq")
        .query_async(&mut con)
        .await
        .expect("seq");
    sale.buy(&a, &new_order(&a, "u1", "k", &[("A", 1)]))
        .await
        .expect("booked");
    sale.buy(&a, &new_order(&a, "u2", "k", &[("A", 1)]))
        .await
        .expect("booked");
    redis::cmd("HSET")
        .arg(&keys.meta)
        .arg("seq")
        .arg(seq - 1)
        .query_async::<()>(&mut con)
        .await
        .expect("set");
    let answer = reserve(&sale.gate, &a, &new_order(&a, "u3", "k", &[("A", 1)])).await;
    let back = matches!(
        answer,
        Err(GateError::NotThisRedis(Mismatch::SeqWentBack { .. }))
    );
    assert!(back, "{answer:?}");
}

#[tokio::test]
async fn a_rebuild_agrees_with_the_database_whatever_redis_had() {
    let sale = Sale::open(&[], &[("A", 9)]).await;
    let a = sale.now();
    let o = |user: &str| new_order(&a, user, "k", &[("A", 1)]);
    let [both, closed, absent, hold, dead_hold, only_db, meanwhile] = [
        "both",
        "closed",
        "absent",
        "hold",
        "dead-hold",
        "only-db",
        "meanwhile",
    ]
    .map(o);
    for booked in [&both, &closed, &absent] {
        sale.buy(&a, booked).await.expect("booked");
    }
    for held in [&hold, &dead_hold] {
        reserve(&sale.gate, &a, held).await.expect("held");
    }
    sale.db.put(order(&a, &closed, OrderState::Closed));
    sale.db.orders.lock().expect("a lock").remove(&absent.rid);
    sale.db.put(order(&a, &dead_hold, OrderState::Abandoned));
    sale.db.put(order(&a, &only_db, OrderState::Paid));
    sale.db
        .put(order(&a, &meanwhile, OrderState::PendingPayment));
    *sale.db.close_meanwhile.lock().expect("a lock") = Some(meanwhile.rid);
    let rebuilt = rebuild(&sale.gate, &*sale.db, &a.id)
        .await
        .expect("rebuilt");
    assert!(matches!(rebuilt, Rebuilt::Open(_)), "{rebuilt:?}");
    // Sold: both, only-db. Held: the hold that may still be on its way.
    assert_eq!(counts(&sale.gate, &a).await, [(6, 1, 2)]);
    let stale = reserve(&sale.gate, &a, &o("late")).await;
    assert!(
        matches!(
            stale,
            Err(GateError::NotThisRedis(Mismatch::StaleEpoch { .. }))
        ),
        "{stale:?}"
    );
}

#[tokio::test]
async fn one_of_many_is_elected_and_a_process_with_an_old_epoch_adopts_the_new_one() {
    let sale = Sale::open(&[], &[("A", 9)]).await;
    let before = sale.now();
    let all = (0..8).map(|_| rebuild(&sale.gate, &*sale.db, &before.id));
    let ended: Vec<_> = futures::future::join_all(all).await;
    assert!(
        ended.iter().any(|e| matches!(e, Ok(Rebuilt::Open(_)))),
        "{ended:?}"
    );
    assert_eq!(audit(&sale.gate, &before).await.state, GateState::Open);
    let other = RedisLua::new(sale.gate.clone(), sale.db.clone(), sale.db.clone());
    let o = new_order(&before, "u1", "k", &[("A", 1)]);
    let ending = other.deduct(&before, &[o]).await.pop().expect("one ending");
    assert!(matches!(ending, Ok(Ending::Booked { .. })), "{ending:?}");
}

/// A process that has sold nothing in this epoch leaves its gate to the one that was elected for it,
/// but not on a Redis that was started after that election.
#[tokio::test]
async fn one_purchase_has_a_restarted_redis_rebuilt_by_a_process_that_never_sold() {
    let mut sale = Sale::open(&[], &[("A", 9)]).await;
    let a = sale.now();
    sale.server.kill();
    sale.server.start_again().await;
    let gate = Gate::new(&sale.server.url()).expect("a gate");
    let other = RedisLua::new(gate.clone(), sale.db.clone(), sale.db.clone());
    let first = new_order(&a, "u1", "k", &[("A", 1)]);
    let told = other.deduct(&a, std::slice::from_ref(&first)).await.pop();
    assert!(matches!(told, Some(Ok(Ending::Recovering))), "{told:?}");
    // Nobody buys meanwhile.
    let opens = async {
        loop {
            let now = gate.audit(&a.id).await.expect("redis answers");
            if now.is_some_and(|audit| audit.state == GateState::Open) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SOON, opens).await.expect("rebuilt");
    let bought = other.deduct(&sale.now(), &[first]).await.pop();
    assert!(
        matches!(bought, Some(Ok(Ending::Booked { .. }))),
        "{bought:?}"
    );
}

#[tokio::test]
async fn a_rebuild_does_not_open_what_the_database_ended() {
    let sale = Sale::open(&[], &[("A", 1)]).await;
    sale.db.activity.lock().expect("a lock").state = ActivityState::Closing;
    let a = sale.now();
    let rebuilt = rebuild(&sale.gate, &*sale.db, &a.id)
        .await
        .expect("an answer");
    assert!(matches!(rebuilt, Rebuilt::Shut(_)), "{rebuilt:?}");
    assert_eq!(audit(&sale.gate, &a).await.state, GateState::Closing);
    let ending = sale
        .buy(&sale.now(), &new_order(&a, "u", "k", &[("A", 1)]))
        .await;
    assert!(matches!(ending, Ok(Ending::Ended { .. })), "{ending:?}");
    sale.strategy.shut(&a).await.expect("shut");
}

#[tokio::test]
async fn a_server_that_comes_late_is_found_without_a_restart() {
    let (mut server, gate) = one_gate().await;
    server.kill();
    let away = gate.ping().await;
    assert!(matches!(away, Err(GateError::Unavailable(_))), "{away:?}");
    server.start_again().await;
    let found = async {
        while gate.ping().await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SOON, found).await.expect("found");
}

#[tokio::test]
async fn the_whole_life_runs_on_a_cluster_node() {
    let server = RedisServer::start(&["--cluster-enabled", "yes"]).await;
    let mut con = server.con().await;
    redis::cmd("CLUSTER")
        .arg("ADDSLOTSRANGE")
        .arg(0)
        .arg(16383)
        .query_async::<()>(&mut con)
        .await
        .expect("slots");
    let ok = async {
        loop {
            let info: String = redis::cmd("CLUSTER")
                .arg("INFO")
                .query_async(&mut con)
                .await
                .expect("info");
            if info.contains("cluster_state:ok") {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SOON, ok).await.expect("a cluster");
    let gate = Gate::new(&server.url()).expect("a gate");
    let db = Arc::new(Memory::new(activity(&[("A", 3), ("B", 3)])));
    let strategy = RedisLua::new(gate.clone(), db.clone(), db.clone());
    strategy.open(&db.now()).await.expect("open");
    let a = db.now();
    let o = new_order(&a, "u", "k", &[("A", 1), ("B", 2)]);
    let ending = strategy.deduct(&a, std::slice::from_ref(&o)).await.pop();
    assert!(
        matches!(ending, Some(Ok(Ending::Booked { .. }))),
        "{ending:?}"
    );
    assert_eq!(counts(&gate, &a).await, [(2, 0, 1), (1, 0, 2)]);
    strategy
        .close(&a, &[o.id(&a.id)], CloseReason::Timeout)
        .await;
    assert_eq!(counts(&gate, &a).await, [(3, 0, 0), (3, 0, 0)]);

    // The same with the stream in between.
    let mut later = a.clone();
    later.booking = Booking::Async;
    *db.activity.lock().expect("a lock") = later.clone();
    let o = new_order(&later, "v", "k", &[("A", 1), ("B", 2)]);
    let held = strategy.deduct(&later, std::slice::from_ref(&o)).await;
    assert!(matches!(held[0], Ok(Ending::Accepted(_))), "{held:?}");
    assert_eq!(counts(&gate, &a).await, [(2, 1, 0), (1, 2, 0)]);
    let mut worker = strategy.booker(&a.id).expect("a URL").expect("a worker");
    let booked =
        async { while worker.next().await.expect("booked").settled.committed != [o.rid] {} };
    tokio::time::timeout(SOON, booked).await.expect("booked");
    assert_eq!(counts(&gate, &a).await, [(2, 0, 1), (1, 0, 2)]);
    let left: usize = redis::cmd("XLEN")
        .arg(flashlock::keys::GateKeys::of(&a.id).q)
        .query_async(&mut con)
        .await
        .expect("a length");
    assert_eq!(left, 0, "a booked hold is still in the stream");
}
