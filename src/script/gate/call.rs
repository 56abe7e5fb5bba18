//! One typed function for each of the gate's scripts: the order of KEYS and ARGV is here alone.

use std::time::Duration;

use redis::aio::ConnectionLike;
use redis::{Cmd, ErrorKind, FromRedisValue, Script, ServerErrorKind, Value};

use super::answer::{Unreadable, done};
use super::{
    AuditAnswer, CommitAnswer, Done, ExpireAnswer, GateState, Moved, ORDERS_PER_CALL_MAX,
    OpenAnswer, RecountAnswer, ReholdAnswer, ReleaseAnswer, ReserveAnswer, SealAnswer, ShutState,
    Stamp, Terms, WarmAnswer,
};
use crate::keys::GateKeys;
use crate::order::{Fingerprint, NewOrder, Order};
use crate::sale::{Allocation, Line, Rid, UserId};

/// The scripts that carry no stamp. They move one reservation at most once, whatever Redis they
/// run on, so they are loaded again where they are missing.
#[derive(Debug)]
pub struct GateScripts {
    commit: Script,
    release: Script,
    rehold: Script,
    warm: Script,
    seal: Script,
    gate: Script,
    audit: Script,
    overdue: Script,
    expire: Script,
    recount: Script,
}

/// The two scripts that carry a stamp: called by EVALSHA only, never loaded by a caller.
#[derive(Debug, Clone)]
pub struct Stamped {
    reserve: Script,
    open: Script,
}

/// Why a script gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    #[error(transparent)]
    Redis(#[from] redis::RedisError),
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
}

/// Runs `script`, loading it where it is missing.
async fn run<C: ConnectionLike>(
    con: &mut C,
    script: &Script,
    keys: &[&String],
    args: &[String],
) -> Result<Value, ScriptError> {
    match run_loaded(con, script, keys, args).await {
        Err(ScriptError::Redis(e)) if e.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
            script.load_async(con).await?;
            run_loaded(con, script, keys, args).await
        }
        ended => ended,
    }
}

/// Runs `script` where it is loaded already.
async fn run_loaded<C: ConnectionLike>(
    con: &mut C,
    script: &Script,
    keys: &[&String],
    args: &[String],
) -> Result<Value, ScriptError> {
    Ok(command(script, keys, args).query_async(con).await?)
}

fn command(script: &Script, keys: &[&String], args: &[String]) -> Cmd {
    let mut cmd = Cmd::new();
    cmd.arg("EVALSHA").arg(script.get_hash()).arg(keys.len());
    for key in keys {
        cmd.arg(key);
    }
    for arg in args {
        cmd.arg(arg);
    }
    cmd
}

/// Sends what makes `n` reservations.
async fn hold<C: ConnectionLike>(
    con: &mut C,
    command: Cmd,
    n: usize,
) -> Result<Done<ReserveAnswer>, ScriptError> {
    let reply = command.query_async(con).await?;
    Ok(done("reserve.lua", reply, n, ReserveAnswer::read)?)
}

/// An order as `reserve.lua` and `rehold.lua` take it.
fn push_order(
    args: &mut Vec<String>,
    rid: Rid,
    user: &UserId,
    fingerprint: &Fingerprint,
    lines: &[Line],
) {
    args.push(rid.to_string());
    args.push(user.to_string());
    args.push(fingerprint.as_str().to_string());
    args.push(lines.len().to_string());
    // The record of a hold and of a rehold must be the same text, so both list SKUs in order.
    let mut lines: Vec<&Line> = lines.iter().collect();
    lines.sort_by(|a, b| a.sku.cmp(&b.sku));
    for line in lines {
        args.push(line.sku.to_string());
        args.push(line.quantity.to_string());
    }
}

/// A flat list of pairs.
fn pairs(script: &'static str, reply: Value) -> Result<Vec<(String, String)>, ScriptError> {
    let unreadable = |answer: String| Unreadable { script, answer };
    let texts = Vec::<String>::from_redis_value(reply).map_err(|e| unreadable(e.to_string()))?;
    let (pairs, odd) = texts.as_chunks::<2>();
    if !odd.is_empty() {
        return Err(unreadable(format!("{} texts", texts.len())).into());
    }
    let pair = |[a, b]: &[String; 2]| (a.clone(), b.clone());
    Ok(pairs.iter().map(pair).collect())
}

fn texts(rids: &[Rid]) -> Vec<String> {
    rids.iter().map(Rid::to_string).collect()
}

// === impl Stamped ===

impl Stamped {
    pub fn new(stamp: &Stamp) -> Self {
        let terms = &stamp.terms;
        let stamped = [
            ("@ACTIVITY@", stamp.activity.to_string()),
            ("@EPOCH@", stamp.epoch.to_string()),
            ("@RUN_ID@", stamp.run_id.clone()),
            ("@OPENS_AT@", terms.opens_at_ms.to_string()),
            ("@CLOSES_AT@", terms.closes_at_ms.to_string()),
            (
                "@ORDERS_PER_USER_MAX@",
                terms.orders_per_user_max.to_string(),
            ),
            ("@UNITS_PER_USER_MAX@", terms.units_per_user_max.to_string()),
        ];
        let script = |text: &str| {
            let all = stamped.iter();
            let text = all.fold(text.to_string(), |text, (name, value)| {
                text.replace(name, value)
            });
            Script::new(&text)
        };
        Self {
            reserve: script(include_str!("../../../lua/reserve.lua")),
            open: script(include_str!("../../../lua/open.lua")),
        }
    }

    /// Makes both known to this Redis. Only the process that the database elected calls it, before
    /// it reholds the first order.
    pub async fn load<C: ConnectionLike>(&self, con: &mut C) -> Result<(), ScriptError> {
        self.reserve.load_async(con).await?;
        self.open.load_async(con).await?;
        Ok(())
    }

    /// Holds for purchases that book themselves. At most `ORDERS_PER_CALL_MAX` orders.
    pub async fn reserve<C: ConnectionLike>(
        &self,
        con: &mut C,
        k: &GateKeys,
        orders: &[NewOrder],
    ) -> Result<Done<ReserveAnswer>, ScriptError> {
        let command = self.reserve_command(k, orders);
        hold(con, command, orders.len()).await
    }

    /// The same for purchases that are booked later: each hold is handed to the booking workers by
    /// the same script.
    pub async fn accept<C: ConnectionLike>(
        &self,
        con: &mut C,
        k: &GateKeys,
        orders: &[NewOrder],
    ) -> Result<Done<ReserveAnswer>, ScriptError> {
        let keys = [
            &k.meta, &k.stock, &k.rsv, &k.pend, &k.user, &k.pending, &k.q,
        ];
        let command = self.command(&keys, orders);
        hold(con, command, orders.len()).await
    }

    /// What `reserve` sends, for benches that send it by other means.
    pub fn reserve_command(&self, k: &GateKeys, orders: &[NewOrder]) -> Cmd {
        let keys = [&k.meta, &k.stock, &k.rsv, &k.pend, &k.user, &k.pending];
        self.command(&keys, orders)
    }

    fn command(&self, keys: &[&String], orders: &[NewOrder]) -> Cmd {
        let mut args = Vec::with_capacity(orders.len() * 6);
        for o in orders {
            push_order(&mut args, o.rid, &o.user, &o.fingerprint, &o.lines);
        }
        command(&self.reserve, keys, &args)
    }

    pub async fn open<C: ConnectionLike>(
        &self,
        con: &mut C,
        k: &GateKeys,
    ) -> Result<OpenAnswer, ScriptError> {
        let reply = run_loaded(con, &self.open, &[&k.meta], &[]).await?;
        Ok(OpenAnswer::read(reply)?)
    }
}

// === impl GateScripts ===

impl Default for GateScripts {
    fn default() -> Self {
        Self {
            commit: Script::new(include_str!("../../../lua/commit.lua")),
            release: Script::new(include_str!("../../../lua/release.lua")),
            rehold: Script::new(include_str!("../../../lua/rehold.lua")),
            warm: Script::new(include_str!("../../../lua/warm.lua")),
            seal: Script::new(include_str!("../../../lua/seal.lua")),
            gate: Script::new(include_str!("../../../lua/gate.lua")),
            audit: Script::new(include_str!("../../../lua/audit.lua")),
            overdue: Script::new(include_str!("../../../lua/overdue.lua")),
            expire: Script::new(include_str!("../../../lua/expire.lua")),
            recount: Script::new(include_str!("../../../lua/recount.lua")),
        }
    }
}

impl GateScripts {
    /// At most `ORDERS_PER_CALL_MAX` reservations.
    pub async fn commit<C: ConnectionLike>(
        &self,
        con: &mut C,
        k: &GateKeys,
        rids: &[Rid],
    ) -> Result<Done<CommitAnswer>, ScriptError> {
        let keys = [&k.meta, &k.rsv, &k.pend, &k.pending, &k.committed];
        let reply = run(con, &self.commit, &keys, &texts(rids)).await?;
        Ok(done("commit.lua", reply, rids.len(), CommitAnswer::read)?)
    }

    /// At most `ORDERS_PER_CALL_MAX` reservations. `reason` is kept in the records.
    pub async fn release<C: ConnectionLike>(
        &self,
        con: &mut C,
        k: &GateKeys,
        rids: &[Rid],
        reason: &str,
    ) -> Result<Done<ReleaseAnswer>, ScriptError> {
        let keys = [
            &k.meta,
            &k.stock,
            &k.rsv,
            &k.pend,
            &k.user,
            &k.pending,
            &k.committed,
        ];
        let mut args = vec![reason.to_string()];
        args.extend(texts(rids));
        let reply = run(con, &self.release, &keys, &args).await?;
        Ok(done("release.lua", reply, rids.len(), ReleaseAnswer::read)?)
    }

    /// At most `ORDERS_PER_CALL_MAX` orders.
    pub async fn rehold<C: ConnectionLike>(
        &self,
        con: &mut C,
        k: &GateKeys,
        orders: &[Order],
    ) -> Result<Done<ReholdAnswer>, ScriptError> {
        let keys = [&k.meta, &k.total, &k.stock, &k.rsv, &k.user, &k.committed];
        let mut args = Vec::with_capacity(orders.len() * 6);
        for o in orders {
            push_order(&mut args, o.id.rid, &o.user, &o.fingerprint, &o.lines);
        }
        let reply = run(con, &self.rehold, &keys, &args).await?;
        Ok(done("rehold.lua", reply, orders.len(), ReholdAnswer::read)?)
    }

    pub async fn warm<C: ConnectionLike>(
        &self,
        con: &mut C,
        k: &GateKeys,
        epoch: i64,
        terms: &Terms,
        skus: &[Allocation],
    ) -> Result<WarmAnswer, ScriptError> {
        let keys = [
            &k.meta,
            &k.total,
            &k.stock,
            &k.pending,
            &k.committed,
            &k.rsv,
            &k.pend,
            &k.user,
        ];
        let head = [
            epoch,
            terms.opens_at_ms,
            terms.closes_at_ms,
            terms.orders_per_user_max,
            terms.units_per_user_max,
            terms.holds_max,
        ];
        let mut args = head.map(|n| n.to_string()).to_vec();
        for a in skus {
            args.push(a.sku.to_string());
            args.push(a.total.to_string());
        }
        let reply = run(con, &self.warm, &keys, &args).await?;
        Ok(WarmAnswer::read(reply)?)
    }

    pub async fn seal<C: ConnectionLike>(
        &self,
        con: &mut C,
        k: &GateKeys,
        epoch: i64,
        skus: &[Allocation],
    ) -> Result<SealAnswer, ScriptError> {
        let keys = [&k.meta, &k.total, &k.stock, &k.pending, &k.committed];
        let sum: i64 = skus.iter().map(|a| a.total).sum();
        let args = [epoch.to_string(), skus.len().to_string(), sum.to_string()];
        let reply = run(con, &self.seal, &keys, &args).await?;
        Ok(SealAnswer::read(reply)?)
    }

    /// Moves the gate to `state` when it stands in one of `from`; sets `epoch` as well when given.
    pub async fn gate<C: ConnectionLike>(
        &self,
        con: &mut C,
        k: &GateKeys,
        epoch: Option<i64>,
        state: ShutState,
        from: &[GateState],
    ) -> Result<Moved, ScriptError> {
        let epoch = epoch.map_or_else(String::new, |e| e.to_string());
        let mut args = vec![epoch, state.to_string()];
        args.extend(from.iter().map(GateState::to_string));
        let reply = run(con, &self.gate, &[&k.meta], &args).await?;
        Ok(Moved::read(reply)?)
    }

    /// Sets the counters of a gate that does not sell to what its reservations add up to.
    pub async fn recount<C: ConnectionLike>(
        &self,
        con: &mut C,
        k: &GateKeys,
        epoch: i64,
    ) -> Result<RecountAnswer, ScriptError> {
        let keys = [
            &k.meta,
            &k.total,
            &k.stock,
            &k.pending,
            &k.committed,
            &k.rsv,
        ];
        let reply = run(con, &self.recount, &keys, &[epoch.to_string()]).await?;
        Ok(RecountAnswer::read(reply)?)
    }

    /// Lets all keys of the activity go once `grace` is over; at once when it is zero.
    pub async fn expire<C: ConnectionLike>(
        &self,
        con: &mut C,
        k: &GateKeys,
        grace: Duration,
    ) -> Result<ExpireAnswer, ScriptError> {
        let keys = [
            &k.meta,
            &k.total,
            &k.stock,
            &k.pending,
            &k.committed,
            &k.rsv,
            &k.pend,
            &k.user,
            &k.q,
            &k.b,
        ];
        let args = [grace.as_millis().to_string()];
        let reply = run(con, &self.expire, &keys, &args).await?;
        Ok(ExpireAnswer::read(reply)?)
    }

    pub async fn audit<C: ConnectionLike>(
        &self,
        con: &mut C,
        k: &GateKeys,
    ) -> Result<AuditAnswer, ScriptError> {
        let keys = [
            &k.meta,
            &k.total,
            &k.stock,
            &k.pending,
            &k.committed,
            &k.pend,
        ];
        let reply = run(con, &self.audit, &keys, &[]).await?;
        Ok(AuditAnswer::read(reply)?)
    }

    /// At most `ORDERS_PER_CALL_MAX` of the holds that are at least `age` old, the oldest first,
    /// without the `skip` oldest: rid and record as they stand there.
    pub async fn overdue<C: ConnectionLike>(
        &self,
        con: &mut C,
        k: &GateKeys,
        age: Duration,
        skip: usize,
    ) -> Result<Vec<(String, String)>, ScriptError> {
        let args = [
            age.as_millis().to_string(),
            skip.to_string(),
            ORDERS_PER_CALL_MAX.to_string(),
        ];
        let reply = run(con, &self.overdue, &[&k.pend, &k.rsv], &args).await?;
        pairs("overdue.lua", reply)
    }
}
