//! Buyers, payers and cancellers, and whether each of their answers is one they may get.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flashlock::sale::Booking;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::counts::Counts;
use super::crew::Crew;
use super::sale::is_final;
use crate::world::Answer;

/// Buyers of each sale at the same time.
pub(super) const BUYERS: u64 = 16;
/// A buyer who is told to come again does so this often, and then gives up: what may have been
/// held is left to the sweeper.
const TRIES_MAX: u32 = 5;
/// Between two tries.
const AGAIN: Duration = Duration::from_millis(120);
/// How often a buyer looks at an order that was accepted, before leaving it for later: some seconds.
const LOOKS_MAX: u32 = 60;
/// A client waits this long.
const PATIENCE: Duration = Duration::from_secs(12);
/// Beyond the pay window of one second.
const LATE_MS: std::ops::Range<u64> = 1_000..2_600;

pub(super) struct Crowd {
    pub(super) crew: Arc<Crew>,
    pub(super) activity: String,
    pub(super) booking: Booking,
    pub(super) users: u64,
    pub(super) answers: Counts,
    /// Orders that buyers were told they have, with their user.
    pub(super) told: Mutex<BTreeMap<String, String>>,
    /// Orders that were accepted, with their user: no promise that there will be one.
    pub(super) accepted: Mutex<BTreeMap<String, String>>,
    /// Ids of orders that were named to others, as `already-purchased` does.
    pub(super) named: Mutex<BTreeMap<String, String>>,
    pub(super) wrong: Mutex<Vec<String>>,
}

type Lines = &'static [(&'static str, i64)];

const BASKETS: [Lines; 4] = [
    &[("A", 1)],
    &[("B", 1)],
    &[("A", 1), ("B", 1)],
    &[("B", 1), ("A", 2)],
];

// === impl Crowd ===

impl Crowd {
    pub(super) fn new(crew: &Arc<Crew>, activity: &str, booking: Booking, users: u64) -> Self {
        Self {
            crew: Arc::clone(crew),
            activity: activity.to_string(),
            booking,
            users,
            answers: Counts::default(),
            told: Mutex::default(),
            accepted: Mutex::default(),
            named: Mutex::default(),
            wrong: Mutex::default(),
        }
    }

    /// Orders that buyers have got so far, or were told to look for.
    pub(super) fn sold(&self) -> u64 {
        self.answers.of("buy: 201") + self.answers.of("buy: 202")
    }

    /// One buyer after the other, until it is stopped.
    pub(super) async fn buyer(self: Arc<Self>, seed: u64, stop: CancellationToken) {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut after = tokio::task::JoinSet::new();
        while !stop.is_cancelled() {
            if let Some(order) = self.buy_somehow(&mut rng).await {
                let (crowd, seed) = (Arc::clone(&self), rng.random());
                after.spawn(async move { crowd.fate(&order, seed).await });
            }
        }
        after.join_all().await;
    }

    async fn buy_somehow(&self, rng: &mut StdRng) -> Option<String> {
        let user = format!("u{}", rng.random_range(0..self.users));
        let basket = BASKETS[rng.random_range(0..BASKETS.len())];
        let keys = [rng.random::<u32>(), rng.random()].map(|key| format!("k{key}"));
        match rng.random_range(0..10) {
            // A double click: the same key twice at once, through whichever processes.
            0 => {
                let (mut other, key) = (StdRng::seed_from_u64(rng.random()), &keys[0]);
                let twice = tokio::join!(
                    self.buy(&user, key, basket, rng),
                    self.buy(&user, key, basket, &mut other)
                );
                twice.0.or(twice.1)
            }
            // Two tabs: two keys at once.
            1 => {
                let mut other = StdRng::seed_from_u64(rng.random());
                let two = tokio::join!(
                    self.buy(&user, &keys[0], basket, rng),
                    self.buy(&user, &keys[1], basket, &mut other)
                );
                two.0.or(two.1)
            }
            // Leaves in the middle, and may come back with the same key.
            2 | 3 => {
                let leaves = Duration::from_millis(rng.random_range(0..40));
                let mut other = StdRng::seed_from_u64(rng.random());
                let first = self.buy(&user, &keys[0], basket, &mut other);
                let _left = tokio::time::timeout(leaves, first).await;
                match rng.random_bool(0.5) {
                    true => self.buy(&user, &keys[0], basket, rng).await,
                    false => None,
                }
            }
            // Asks once more for what it has.
            4 => {
                let order = self.buy(&user, &keys[0], basket, rng).await?;
                self.buy(&user, &keys[0], basket, rng).await;
                Some(order)
            }
            _ => self.buy(&user, &keys[0], basket, rng).await,
        }
    }

    /// Buys, again and again with the same key while told to; the order, if there is one or may be.
    pub(super) async fn buy(
        &self,
        user: &str,
        key: &str,
        lines: Lines,
        rng: &mut StdRng,
    ) -> Option<String> {
        // One in three does not come again.
        let tries = if rng.random_bool(0.67) { TRIES_MAX } else { 1 };
        for _ in 0..tries {
            let api = self.crew.api(rng);
            let bought = api.try_buy(&self.activity, user, key, lines);
            match tokio::time::timeout(PATIENCE, bought).await {
                Ok(Ok(answer)) => {
                    self.check("buy", &answer, buyer_may_get(&answer, self.booking));
                    match answer.status {
                        200 | 201 => {
                            let order = answer.order_id();
                            let mut told = self.told.lock().expect("no panic");
                            told.insert(order.clone(), user.to_string());
                            return Some(order);
                        }
                        202 => {
                            let order = answer.order_id();
                            let mut accepted = self.accepted.lock().expect("no panic");
                            accepted.insert(order.clone(), user.to_string());
                            return Some(order);
                        }
                        503 => {}
                        _ => {
                            if let Some(id) = answer.body["order_id"].as_str() {
                                let mut named = self.named.lock().expect("no panic");
                                named.insert(id.to_string(), format!("{user} {answer:?}"));
                            }
                            return None;
                        }
                    }
                }
                Ok(Err(_gone)) => self.answers.add("buy: connection lost", 1),
                Err(_hangs) => self.wrong(format!("{user} waited for more than {PATIENCE:?}")),
            }
            tokio::time::sleep(AGAIN).await;
        }
        None
    }

    /// Paid, cancelled, paid too late, or left to the closer.
    async fn fate(&self, order: &str, seed: u64) {
        let mut rng = StdRng::seed_from_u64(seed);
        if self.booking == Booking::Async && !self.is_booked(order, &mut rng).await {
            return;
        }
        let late = Duration::from_millis(rng.random_range(LATE_MS));
        match rng.random_range(0..20) {
            0..3 => self.pay(order, &mut rng).await,
            3..7 => self.end(order, "cancel", Value::Null, &mut rng).await,
            7..11 => {
                tokio::time::sleep(late).await;
                self.pay(order, &mut rng).await;
            }
            11..13 => {
                let mut other = StdRng::seed_from_u64(rng.random());
                tokio::join!(
                    self.pay(order, &mut rng),
                    self.end(order, "cancel", Value::Null, &mut other)
                );
            }
            _ => {}
        }
    }

    /// Looks at an accepted order until it is decided. `false`: there is none to pay, or not yet.
    async fn is_booked(&self, order: &str, rng: &mut StdRng) -> bool {
        let path = format!("/v1/orders/{order}");
        for _ in 0..LOOKS_MAX {
            let api = self.crew.api(rng);
            match tokio::time::timeout(PATIENCE, api.try_get(&path)).await {
                Ok(Ok(read)) => {
                    let may = read.status == 202 || is_final(&read) || may_come_again(&read);
                    self.check("order", &read, may);
                    // What was given up is told with its user as well, and has no lines.
                    if let Some(user) = read.body["user_id"].as_str()
                        && read.body["status"] != "ABANDONED"
                    {
                        let mut told = self.told.lock().expect("no panic");
                        told.insert(order.to_string(), user.to_string());
                    }
                    if is_final(&read) {
                        return read.body["status"] == "PENDING_PAYMENT";
                    }
                }
                Ok(Err(_gone)) => self.answers.add("order: connection lost", 1),
                Err(_hangs) => self.wrong(format!("{path}: more than {PATIENCE:?}")),
            }
            tokio::time::sleep(AGAIN).await;
        }
        self.answers.add("order: left for later", 1);
        false
    }

    async fn pay(&self, order: &str, rng: &mut StdRng) {
        let txn = format!("{order}-{}", rng.random_range(0..2));
        let body = json!({"provider": "soak", "provider_txn": txn});
        self.end(order, "payments", body, rng).await;
    }

    /// Posts to an order until the answer is final.
    async fn end(&self, order: &str, what: &str, body: Value, rng: &mut StdRng) {
        let path = format!("/v1/orders/{order}/{what}");
        for _ in 0..TRIES_MAX {
            let api = self.crew.api(rng);
            let posted = api.try_post(&path, body.clone());
            match tokio::time::timeout(PATIENCE, posted).await {
                Ok(Ok(answer)) => {
                    self.check(what, &answer, owner_may_get(what, &answer));
                    if answer.status != 503 {
                        return;
                    }
                }
                Ok(Err(_gone)) => self.answers.add(&format!("{what}: connection lost"), 1),
                Err(_hangs) => self.wrong(format!("{path}: more than {PATIENCE:?}")),
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    fn check(&self, what: &str, answer: &Answer, may: bool) {
        let name = match answer.problem() {
            "" => {
                let says = |field: &str| answer.body[field].as_str();
                let order = says("status").filter(|_| what == "order");
                says("outcome").or(order).unwrap_or("done")
            }
            name => name,
        };
        self.answers
            .add(&format!("{what}: {} {name}", answer.status), 1);
        if !may {
            self.wrong(format!("{what}: {answer:?}"));
        }
    }

    pub(super) fn wrong(&self, what: String) {
        self.wrong.lock().expect("no panic").push(what);
    }
}

/// An answer of the contract to somebody who buys while the sale is open.
pub(super) fn buyer_may_get(answer: &Answer, booking: Booking) -> bool {
    match answer.status {
        201 => booking == Booking::Sync && answer.body["id"].is_string(),
        202 => booking == Booking::Async && is_accepted(answer),
        200 => answer.headers.contains_key("idempotent-replay"),
        409 => ["sold-out", "already-purchased", "order-abandoned"].contains(&answer.problem()),
        _ => may_come_again(answer),
    }
}

fn is_accepted(answer: &Answer) -> bool {
    answer.body["id"].is_string()
        && answer.body["status"] == "ACCEPTED"
        && answer.headers.contains_key("location")
        && answer.headers.contains_key("retry-after")
}

fn owner_may_get(what: &str, answer: &Answer) -> bool {
    match answer.status {
        200 => true,
        409 => what == "cancel" && answer.problem() == "not-allowed-in-state",
        _ => may_come_again(answer),
    }
}

fn may_come_again(answer: &Answer) -> bool {
    let known = [
        "busy",
        "gate-recovering",
        "outcome-unknown",
        "strategy-unavailable",
    ];
    answer.status == 503
        && known.contains(&answer.problem())
        && answer.body["retry_with_same_key"] == true
        && answer.headers.contains_key("retry-after")
}
