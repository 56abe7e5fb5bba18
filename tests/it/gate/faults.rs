//! Bad arguments, wrong types and damaged counters: refused before the first write. And what the
//! headers of the scripts promise.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use flashlock::gate::{self, GateError};
use flashlock::keys::GateKeys;
use flashlock::order::OrderState;
use flashlock::sale::{Activity, Rid};
use flashlock::script::gate::{
    CommitAnswer, GateScripts, GateState, ReleaseAnswer, ScriptError, ShutState, Stamped, Terms,
};
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Cmd, Pipeline, RedisError, RedisFuture, Value};

use super::server::RedisServer;
use super::{FAR_MS, activity, new_order, one_gate, opened, order, reserve};

const SCRIPTS: [(&str, &str); 11] = [
    ("reserve", include_str!("../../../lua/reserve.lua")),
    (
        "reserve for later",
        include_str!("../../../lua/reserve.lua"),
    ),
    ("overdue", include_str!("../../../lua/overdue.lua")),
    ("open", include_str!("../../../lua/open.lua")),
    ("commit", include_str!("../../../lua/commit.lua")),
    ("release", include_str!("../../../lua/release.lua")),
    ("rehold", include_str!("../../../lua/rehold.lua")),
    ("warm", include_str!("../../../lua/warm.lua")),
    ("seal", include_str!("../../../lua/seal.lua")),
    ("gate", include_str!("../../../lua/gate.lua")),
    ("audit", include_str!("../../../lua/audit.lua")),
];

/// One call of each script that would change something, through its typed function.
async fn call<C: ConnectionLike>(
    name: &str,
    con: &mut C,
    a: &Activity,
    rid: Rid,
) -> Result<String, ScriptError> {
    let (scripts, keys) = (GateScripts::default(), GateKeys::of(&a.id));
    let stamped = Stamped::new(&gate::stamp(a));
    let terms = Terms {
        opens_at_ms: 0,
        closes_at_ms: FAR_MS,
        orders_per_user_max: 1,
        units_per_user_max: 5,
        holds_max: 10,
    };
    let fresh = new_order(a, "fresh", "k", &[("A", 1)]);
    let from = [GateState::Open, GateState::Ready];
    Ok(match name {
        "reserve" => format!("{:?}", stamped.reserve(con, &keys, &[fresh]).await?),
        "reserve for later" => format!("{:?}", stamped.accept(con, &keys, &[fresh]).await?),
        "overdue" => format!(
            "{:?}",
            scripts.overdue(con, &keys, Duration::ZERO, 0).await?
        ),
        "open" => format!("{:?}", stamped.open(con, &keys).await?),
        "commit" => format!("{:?}", scripts.commit(con, &keys, &[rid]).await?),
        "release" => format!("{:?}", scripts.release(con, &keys, &[rid], "r").await?),
        "rehold" => {
            let live = order(a, &fresh, OrderState::Paid);
            format!("{:?}", scripts.rehold(con, &keys, &[live]).await?)
        }
        "warm" => format!("{:?}", scripts.warm(con, &keys, 9, &terms, &a.skus).await?),
        "seal" => format!(
            "{:?}",
            scripts.seal(con, &keys, a.gate_epoch, &a.skus).await?
        ),
        "gate" => {
            let moved = scripts
                .gate(con, &keys, None, ShutState::Fenced, &from)
                .await?;
            format!("{moved:?}")
        }
        "audit" => format!("{:?}", scripts.audit(con, &keys).await?),
        other => panic!("no script {other}"),
    })
}

async fn snapshot(con: &mut MultiplexedConnection) -> BTreeMap<String, Vec<u8>> {
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg("*")
        .query_async(con)
        .await
        .expect("keys");
    let mut all = BTreeMap::new();
    for key in keys {
        let dump: Vec<u8> = redis::cmd("DUMP")
            .arg(&key)
            .query_async(con)
            .await
            .expect("dump");
        all.insert(key, dump);
    }
    all
}

#[tokio::test]
async fn a_wrong_type_on_any_key_leaves_nothing_half_done() {
    let (server, gate) = one_gate().await;
    let mut con = server.con().await;
    let names = [
        "meta",
        "total",
        "stock",
        "rsv",
        "pend",
        "user",
        "pending",
        "committed",
        "q",
    ];
    for (script, text) in SCRIPTS {
        for name in names {
            redis::cmd("FLUSHALL")
                .query_async::<()>(&mut con)
                .await
                .expect("flushed");
            let a = activity(&[("A", 5)]);
            opened(&server, &gate, &a).await;
            let held = new_order(&a, "held", "k", &[("A", 1)]);
            reserve(&gate, &a, &held).await.expect("held");
            match script {
                "seal" | "warm" => {
                    gate.shut(&a.id, ShutState::Paused, None)
                        .await
                        .expect("paused");
                    if script == "seal" {
                        gate.warm(&a).await.expect("warm");
                    }
                }
                "open" => {
                    gate.shut(&a.id, ShutState::Paused, None)
                        .await
                        .expect("paused");
                    gate.warm(&a).await.expect("warm");
                    gate.seal(&a).await.expect("sealed");
                }
                _ => {}
            }
            let key = format!("{{fs:{}}}:{name}", a.id);
            redis::cmd("SET")
                .arg(&key)
                .arg("wrong")
                .query_async::<()>(&mut con)
                .await
                .expect("set");
            let before = snapshot(&mut con).await;
            let answer = call(script, &mut con, &a, held.rid).await;
            let declared = keys_of(script, text).iter().any(|k| k == name);
            if declared {
                assert!(answer.is_err(), "{script} with a wrong {name}: {answer:?}");
                assert_eq!(
                    snapshot(&mut con).await,
                    before,
                    "{script} with a wrong {name}"
                );
            } else {
                assert!(answer.is_ok(), "{script} touches {name}: {answer:?}");
            }
        }
    }
}

#[tokio::test]
async fn damaged_counters_are_reported_and_nothing_is_written() {
    let (server, gate) = one_gate().await;
    let mut con = server.con().await;
    let a = activity(&[("A", 5)]);
    opened(&server, &gate, &a).await;
    let held = new_order(&a, "held", "k", &[("A", 2)]);
    reserve(&gate, &a, &held).await.expect("held");
    let keys = GateKeys::of(&a.id);
    let damage = async |con: &mut MultiplexedConnection, key: &str, field: &str, value: &str| {
        redis::cmd("HSET")
            .arg(key)
            .arg(field)
            .arg(value)
            .query_async::<()>(con)
            .await
            .expect("set");
    };
    damage(&mut con, &keys.pending, "A", "1").await;
    let before = snapshot(&mut con).await;
    let rids = [held.rid];
    assert_eq!(
        gate.commit(&a.id, &rids).await.expect("told"),
        [CommitAnswer::Corrupt]
    );
    assert_eq!(
        gate.release(&a.id, &rids, "r").await.expect("told"),
        [ReleaseAnswer::Corrupt]
    );
    for (key, field) in [
        (&keys.stock, "A"),
        (&keys.pending, "A"),
        (&keys.meta, "pend_max"),
    ] {
        damage(&mut con, key, field, "many").await;
        let now = snapshot(&mut con).await;
        let told = reserve(&gate, &a, &new_order(&a, "u", "k", &[("A", 1)])).await;
        assert!(matches!(told, Err(GateError::Corrupt { .. })), "{told:?}");
        assert_eq!(snapshot(&mut con).await, now);
    }
    assert_ne!(snapshot(&mut con).await, before);
    assert!(matches!(
        gate.audit(&a.id).await,
        Err(GateError::Corrupt { .. })
    ));
}

/// Calls `reserve.lua` with arguments no typed function would send.
async fn raw_reserve(con: &mut MultiplexedConnection, a: &Activity, args: &[&str]) -> String {
    let text = [
        ("@EPOCH@", a.gate_epoch),
        ("@OPENS_AT@", 0),
        ("@CLOSES_AT@", FAR_MS),
        ("@ORDERS_PER_USER_MAX@", 1),
        ("@UNITS_PER_USER_MAX@", 5),
    ]
    .into_iter()
    .fold(SCRIPTS[0].1.to_string(), |text, (name, n)| {
        text.replace(name, &n.to_string())
    });
    let script = redis::Script::new(&text);
    let k = GateKeys::of(&a.id);
    let mut call = script.prepare_invoke();
    for key in [&k.meta, &k.stock, &k.rsv, &k.pend, &k.user, &k.pending] {
        call.key(key);
    }
    for arg in args {
        call.arg(*arg);
    }
    let reply: Value = call.invoke_async(con).await.expect("a reply");
    format!("{reply:?}")
}

#[tokio::test]
async fn arguments_that_would_spoil_a_record_are_refused() {
    let (server, gate) = one_gate().await;
    let mut con = server.con().await;
    let a = activity(&[("A", 5)]);
    opened(&server, &gate, &a).await;
    let before = snapshot(&mut con).await;
    let long = "x".repeat(65);
    let bad: [&[&str]; 16] = [
        &[],
        &["r", "u", "f"],
        &["r", "u", "f", "0"],
        &["r", "u", "f", "1", "A"],
        &["r", "u", "f", "1.5", "A", "1"],
        &["r", "u", "f", "21", "A", "1"],
        &["r", "u|x", "f", "1", "A", "1"],
        &["r", "u", "f|", "1", "A", "1"],
        &["r=1", "u", "f", "1", "A", "1"],
        &["r;1", "u", "f", "1", "A", "1"],
        &["", "u", "f", "1", "A", "1"],
        &["r", &long, "f", "1", "A", "1"],
        &["r", "u", "f", "1", "A", "0"],
        &["r", "u", "f", "1", "A", "-1"],
        &["r", "u", "f", "1", "A", "1.5"],
        &["r", "u", "f", "2", "A", "1", "A", "1"],
    ];
    for args in bad {
        let told = raw_reserve(&mut con, &a, args).await;
        assert!(told.contains("BAD_ARG"), "{args:?}: {told}");
        assert_eq!(snapshot(&mut con).await, before, "{args:?}");
    }
    for quantity in ["nan", "inf", "x", "9999999999"] {
        let told = raw_reserve(&mut con, &a, &["r", "u", "f", "1", "A", quantity]).await;
        assert!(told.contains("BAD_ARG"), "{quantity}: {told}");
    }
    // A bad order does not spoil its neighbours.
    let two = [
        "r1", "u|", "f", "1", "A", "1", "r2", "u", "f", "1", "A", "1",
    ];
    let told = raw_reserve(&mut con, &a, &two).await;
    assert!(
        told.contains("BAD_ARG") && told.contains("int(4)"),
        "{told}"
    );
}

#[tokio::test]
async fn a_gate_with_too_many_holds_asks_buyers_to_wait() {
    let (server, gate) = one_gate().await;
    let mut con = server.con().await;
    let a = activity(&[("A", 5)]);
    opened(&server, &gate, &a).await;
    let meta = GateKeys::of(&a.id).meta;
    redis::cmd("HSET")
        .arg(meta)
        .arg("pend_max")
        .arg(1)
        .query_async::<()>(&mut con)
        .await
        .expect("set");
    let one = new_order(&a, "u1", "k", &[("A", 1)]);
    reserve(&gate, &a, &one).await.expect("held");
    let two = new_order(&a, "u2", "k", &[("A", 1)]);
    let full = reserve(&gate, &a, &two).await.expect("refused");
    assert_eq!(full, flashlock::gate::ReserveOutcome::Full);
    gate.commit(&a.id, &[one.rid]).await.expect("committed");
    reserve(&gate, &a, &two).await.expect("held");
}

#[tokio::test]
async fn a_redis_out_of_memory_refuses_before_the_first_write() {
    let (server, gate) = one_gate().await;
    let mut con = server.con().await;
    let a = activity(&[("A", 5)]);
    opened(&server, &gate, &a).await;
    let before = snapshot(&mut con).await;
    redis::cmd("CONFIG")
        .arg("SET")
        .arg("maxmemory")
        .arg("1")
        .query_async::<()>(&mut con)
        .await
        .expect("set");
    let told = reserve(&gate, &a, &new_order(&a, "u", "k", &[("A", 1)])).await;
    assert!(matches!(told, Err(GateError::Unavailable(_))), "{told:?}");
    assert_eq!(snapshot(&mut con).await, before);
}

/// The names that a script's header gives to KEYS, in their order.
fn header(text: &str, section: &str) -> Vec<String> {
    let start = format!("-- {section} ");
    let mut names = BTreeMap::new();
    let lines = text.lines().skip_while(|l| !l.starts_with(&start));
    for (i, line) in lines.take_while(|l| l.starts_with("--")).enumerate() {
        if i > 0 && !line.starts_with("--      ") {
            break;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        for pair in words.windows(2) {
            if let Ok(n) = pair[0].parse::<usize>() {
                names.insert(n, pair[1].to_string());
            }
        }
    }
    assert!(names.keys().copied().eq(1..=names.len()), "{names:?}");
    names.into_values().collect()
}

/// The keys that a script is called with: a hold that its purchase books needs no stream.
fn keys_of(script: &str, text: &str) -> Vec<String> {
    let mut named = header(text, "KEYS");
    named.retain(|key| script != "reserve" || key != "q");
    named
}

/// Records what is sent and answers nothing.
#[derive(Default)]
struct Recorder(Mutex<Vec<Vec<String>>>);

impl ConnectionLike for Recorder {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        let args = cmd.args_iter().map(|a| match a {
            redis::Arg::Simple(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            _ => String::new(),
        });
        self.0.lock().expect("a lock").push(args.collect());
        Box::pin(async { Err(RedisError::from((redis::ErrorKind::Io, "recorded"))) })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        _pipeline: &'a Pipeline,
        _offset: usize,
        _count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        unreachable!("the gate sends no pipeline")
    }

    fn get_db(&self) -> i64 {
        0
    }
}

#[tokio::test]
async fn each_header_names_the_keys_that_are_used_and_sent() {
    let a = activity(&[("A", 5)]);
    let rid = new_order(&a, "u", "k", &[("A", 1)]).rid;
    for (name, text) in SCRIPTS {
        let named = keys_of(name, text);
        assert!(
            text.starts_with("#!lua"),
            "{name}: no shebang, so Redis does not check its writes"
        );
        assert!(text.contains("-- ARGV "), "{name}");
        assert!(text.contains("-- Returns "), "{name}");
        let used = (1..20)
            .filter(|n| text.contains(&format!("KEYS[{n}]")))
            .count();
        assert_eq!(
            used,
            header(text, "KEYS").len(),
            "{name}: KEYS used and named"
        );
        let mut recorder = Recorder::default();
        call(name, &mut recorder, &a, rid)
            .await
            .expect_err("recorded");
        let sent = recorder.0.into_inner().expect("a lock").remove(0);
        assert_eq!(sent[0], "EVALSHA", "{name}");
        assert_eq!(
            sent[2],
            named.len().to_string(),
            "{name}: KEYS sent and named"
        );
        for (key, name) in sent[3..].iter().zip(&named) {
            assert_eq!(*key, format!("{{fs:{}}}:{name}", a.id));
        }
    }
}

#[tokio::test]
async fn all_keys_of_an_activity_share_one_slot() {
    let server = RedisServer::start(&["--cluster-enabled", "yes"]).await;
    let mut con = server.con().await;
    let (id, user) = (activity(&[]).id, "u".parse().expect("a user"));
    let keys = GateKeys::of(&id);
    let mut slots = BTreeSet::new();
    for key in [
        keys.meta,
        keys.total,
        keys.stock,
        keys.pending,
        keys.committed,
        keys.rsv,
        keys.pend,
        keys.user,
        keys.q,
        GateKeys::bucket(&id),
        GateKeys::user_bucket(&id, &user),
    ] {
        let mut ask = redis::cmd("CLUSTER");
        ask.arg("KEYSLOT").arg(key);
        slots.insert(ask.query_async::<i64>(&mut con).await.expect("a slot"));
    }
    assert_eq!(slots.len(), 1, "{slots:?}");
}
