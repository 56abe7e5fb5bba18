//! Did the sale hold? S1-S5, judged from what the stores say at the end and from what the buyers
//! were told. Pure: no clock, no server.

mod gate;

use std::collections::{BTreeMap, BTreeSet};

pub use gate::{GateSku, GateState};

use super::buyer::Asked;
use crate::run::{Finding, Safety, Verdict};
use crate::sale::{ActivityId, IdempotencyKey, OrderId, Rid, Sku, UserId};
use crate::store::{FinalOrder, FinalState};

/// The event that stands for a booked order.
const CREATED: &str = "order.created";

/// One store's part of the evidence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reading<T> {
    Read(T),
    /// This strategy does not use the store.
    NotUsed,
    /// It could not be read, and why: nothing is decided from it.
    Failed(String),
}

/// Everything a verdict is made from.
#[derive(Debug)]
pub struct Evidence<'a> {
    pub activity: &'a ActivityId,
    pub database: &'a Reading<FinalState>,
    pub gate: &'a Reading<GateState>,
    /// Order ids that buyers were told are booked.
    pub acknowledged: &'a BTreeSet<String>,
    /// User and key of every click.
    pub asked: &'a Asked,
}

/// Judges S1-S5. A store that could not be read makes *unknown*, never *ok*.
pub fn judge(evidence: &Evidence<'_>) -> Safety {
    let state = match evidence.database {
        Reading::Read(state) => state,
        Reading::NotUsed => return undecided("no final read: the database was not read"),
        Reading::Failed(why) => return undecided(&format!("no final read: {why}")),
    };
    let oversold: i64 = sums(state).values().map(Sums::oversold).sum();
    let duplicates = duplicates(state);
    let lost = lost(evidence, state);
    let phantoms = phantoms(evidence, state);
    let findings = vec![
        s1(state),
        s2(state, evidence.gate),
        s3(state, &duplicates),
        s4(evidence, &lost),
        s5(evidence, state, &phantoms),
    ];
    Safety {
        verdict: findings
            .iter()
            .map(|f| f.verdict)
            .fold(Verdict::Ok, Verdict::worse),
        oversold,
        duplicate_orders: count(duplicates.len()),
        lost_orders: count(lost.len()),
        phantom_orders: count(phantoms.len()),
        findings,
    }
}

/// Nothing could be judged.
pub fn undecided(why: &str) -> Safety {
    Safety {
        verdict: Verdict::Unknown,
        oversold: 0,
        duplicate_orders: 0,
        lost_orders: 0,
        phantom_orders: 0,
        findings: ["S1", "S2", "S3", "S4", "S5"]
            .map(|property| finding(property, Verdict::Unknown, why.to_string()))
            .to_vec(),
    }
}

// === S1: no oversell ===

/// One SKU, as the rows of the database add up.
#[derive(Debug, Default, Clone, Copy)]
struct Sums {
    total: i64,
    available: i64,
    /// Units in live orders.
    live: i64,
    /// Units taken minus given back, by the ledger.
    ledger: i64,
    /// The highest the ledger's sum ever was, in the order in which it was written.
    ledger_peak: i64,
}

impl Sums {
    fn oversold(&self) -> i64 {
        (self.live - self.total).max(0)
    }
}

fn sums(state: &FinalState) -> BTreeMap<Sku, Sums> {
    let mut sums: BTreeMap<Sku, Sums> = BTreeMap::new();
    for sku in &state.skus {
        let sum = sums.entry(sku.sku.clone()).or_default();
        sum.total += sku.total;
        sum.available += sku.available;
    }
    for line in live(state).flat_map(|order| &order.lines) {
        sums.entry(line.sku.clone()).or_default().live += line.quantity;
    }
    for row in &state.ledger {
        let sum = sums.entry(row.sku.clone()).or_default();
        sum.ledger += row.taken;
        sum.ledger_peak = sum.ledger_peak.max(sum.ledger);
    }
    sums
}

fn s1(state: &FinalState) -> Finding {
    let sums = sums(state);
    if sums.is_empty() {
        return finding(
            "S1",
            Verdict::Unknown,
            "the activity has no SKU in the database".to_string(),
        );
    }
    let mut verdict = Verdict::Ok;
    let mut says = Vec::new();
    for (sku, sum) in &sums {
        let Sums { total, live, .. } = *sum;
        if sum.oversold() > 0 {
            verdict = verdict.worse(Verdict::Violated);
            says.push(format!(
                "{sku}: {live} units in live orders, {total} on sale: {} oversold",
                sum.oversold()
            ));
        } else if sum.ledger_peak > total {
            // Rows are numbered when they are written, not when they are committed: with units
            // given back in between, a peak alone does not prove that too many were out at once.
            let gave_back = state.ledger.iter().any(|r| r.sku == *sku && r.taken < 0);
            verdict = verdict.worse(match gave_back {
                true => Verdict::Unknown,
                false => Verdict::Violated,
            });
            says.push(format!(
                "{sku}: the ledger's sum reached {} of {total} units on the way",
                sum.ledger_peak
            ));
        } else {
            says.push(format!(
                "{sku}: {live} units in live orders, {total} on sale, the ledger never above {}",
                sum.ledger_peak
            ));
        }
    }
    finding("S1", verdict, says.join("; "))
}

// === S2: conservation ===

fn s2(state: &FinalState, gate: &Reading<GateState>) -> Finding {
    let sums = sums(state);
    let mut broken = Vec::new();
    for (sku, sum) in &sums {
        let Sums {
            total,
            available,
            live,
            ledger,
            ..
        } = *sum;
        if available + live != total {
            broken.push(format!(
                "{sku}: {available} available + {live} in live orders is not the total of {total}"
            ));
        }
        if ledger != live {
            broken.push(format!(
                "{sku}: the ledger sums to {ledger}, live orders to {live}"
            ));
        }
    }
    let across = match gate {
        Reading::NotUsed => String::new(),
        Reading::Read(gate) => {
            broken.extend(gate::breaks(&sums, gate));
            ", the gate in Redis agrees with the database, no hold is left".to_string()
        }
        Reading::Failed(why) => {
            // A breach inside the database stays one, whatever the gate says.
            let verdict = match broken.is_empty() {
                true => Verdict::Unknown,
                false => Verdict::Violated,
            };
            broken.push(format!("the gate in Redis could not be read: {why}"));
            return finding("S2", verdict, broken.join("; "));
        }
    };
    if !broken.is_empty() {
        return finding("S2", Verdict::Violated, broken.join("; "));
    }
    let says: Vec<String> = sums
        .iter()
        .map(|(sku, s)| {
            format!(
                "{sku}: {} available + {} in live orders = {}, the ledger sums to {}",
                s.available, s.live, s.total, s.ledger
            )
        })
        .collect();
    let verdict = match sums.is_empty() {
        true => Verdict::Unknown,
        false => Verdict::Ok,
    };
    finding("S2", verdict, says.join("; ") + &across)
}

// === S3: one live order per user ===

fn duplicates(state: &FinalState) -> Vec<&FinalOrder> {
    let mut seen = BTreeSet::new();
    live(state)
        .filter(|order| !seen.insert(&order.user))
        .collect()
}

fn s3(state: &FinalState, duplicates: &[&FinalOrder]) -> Finding {
    let orders = live(state).count();
    match duplicates.first() {
        None => finding(
            "S3",
            Verdict::Ok,
            format!("{orders} live orders, each of another user"),
        ),
        Some(first) => finding(
            "S3",
            Verdict::Violated,
            format!(
                "{} of {orders} live orders are a user's second, such as {} of {}",
                duplicates.len(),
                first.rid,
                first.user
            ),
        ),
    }
}

// === S4: no acknowledged order lost ===

fn lost<'a>(evidence: &Evidence<'a>, state: &FinalState) -> Vec<&'a String> {
    use crate::order::OrderState::{Abandoned, Closed, Paid, PendingPayment, Rejected};
    let kept: BTreeSet<Rid> = state
        .orders
        .iter()
        .filter(|order| match order.state {
            PendingPayment | Paid | Closed => true,
            // Never booked: to have told a buyer so is to have lost the order.
            Rejected | Abandoned => false,
        })
        .map(|order| order.rid)
        .collect();
    evidence
        .acknowledged
        .iter()
        .filter(|id| match id.parse::<OrderId>() {
            Ok(id) => id.activity != *evidence.activity || !kept.contains(&id.rid),
            Err(_not_an_id) => true,
        })
        .collect()
}

fn s4(evidence: &Evidence<'_>, lost: &[&String]) -> Finding {
    let told = evidence.acknowledged.len();
    match lost.first() {
        None => finding(
            "S4",
            Verdict::Ok,
            format!("{told} orders were acknowledged, and the database has each"),
        ),
        Some(first) => finding(
            "S4",
            Verdict::Violated,
            format!(
                "{} of {told} acknowledged orders are not in the database, such as {first}",
                lost.len()
            ),
        ),
    }
}

// === S5: no order nobody asked for ===

fn phantoms<'a>(evidence: &Evidence<'_>, state: &'a FinalState) -> Vec<&'a FinalOrder> {
    let asked: BTreeMap<Rid, UserId> = evidence
        .asked
        .iter()
        .filter_map(|(user, key)| {
            let user: UserId = user.parse().ok()?;
            let key: IdempotencyKey = key.parse().ok()?;
            Some((Rid::of(evidence.activity, &user, &key), user))
        })
        .collect();
    live(state)
        .filter(|order| asked.get(&order.rid) != Some(&order.user))
        .collect()
}

fn s5(evidence: &Evidence<'_>, state: &FinalState, phantoms: &[&FinalOrder]) -> Finding {
    let mut broken = Vec::new();
    if let Some(first) = phantoms.first() {
        broken.push(format!(
            "{} live orders that nobody asked for, such as {} of {}",
            phantoms.len(),
            first.rid,
            first.user
        ));
    }
    let mut events: BTreeMap<Rid, usize> = BTreeMap::new();
    for event in state.outbox.iter().filter(|e| e.kind == CREATED) {
        *events.entry(event.rid).or_default() += 1;
    }
    for order in live(state) {
        match events.get(&order.rid).copied().unwrap_or(0) {
            1 => {}
            n => broken.push(format!("order {} has {n} {CREATED} events", order.rid)),
        }
    }
    let booked: BTreeSet<Rid> = state.orders.iter().map(|order| order.rid).collect();
    for rid in events.keys().filter(|rid| !booked.contains(rid)) {
        broken.push(format!("a {CREATED} event names {rid}, which is no order"));
    }
    let orders = live(state).count();
    if broken.is_empty() {
        return finding(
            "S5",
            Verdict::Ok,
            format!(
                "{orders} live orders, each among the {} requests of the buyers, with one {CREATED} event each",
                evidence.asked.len()
            ),
        );
    }
    /// Enough to see the kind of fault.
    const SAYS_MAX: usize = 4;
    let more = broken.len().saturating_sub(SAYS_MAX);
    broken.truncate(SAYS_MAX);
    if more > 0 {
        broken.push(format!("and {more} more of the kind"));
    }
    finding("S5", Verdict::Violated, broken.join("; "))
}

// === shared ===

fn live(state: &FinalState) -> impl Iterator<Item = &FinalOrder> {
    state.orders.iter().filter(|order| order.state.is_live())
}

fn finding(property: &str, verdict: Verdict, says: String) -> Finding {
    Finding {
        property: property.to_string(),
        verdict,
        says,
    }
}

fn count(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
