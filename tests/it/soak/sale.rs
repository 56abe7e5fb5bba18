//! One activity of the soak: who buys there, where it is looked at, and what is wrong once it is over.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use flashlock::clock;
use flashlock::sale::Booking;
use futures::stream::{self, StreamExt};
use rand::rngs::StdRng;
use serde_json::{Value, json};

use super::crew::Crew;
use super::crowd::{Crowd, buyer_may_get};
use super::laws::Ground;
use crate::world::{Answer, Api};

/// What was accepted is booked well within this once everything is up, on a busy machine.
const DECIDED_MAX: Duration = Duration::from_secs(30);
/// Between two looks at an order that is on its way.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How much is sold, and to how many.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    /// Units of each SKU.
    pub(super) stock: u64,
    pub(super) users: u64,
}

pub(super) struct Sale {
    pub(super) ground: Ground,
    pub(super) crowd: Arc<Crowd>,
    stock: u64,
}

// === impl Sale ===

impl Sale {
    pub(super) async fn open(
        crew: &Arc<Crew>,
        booking: Booking,
        size: Size,
        database_url: &str,
        redis_url: &str,
    ) -> Self {
        let skus = ["A", "B"].map(|sku| json!({"sku": sku, "stock": size.stock}));
        // The crowd is a small one that asks often: no buckets.
        let sale = json!({"strategy": "redis-lua", "booking": booking.as_str(), "skus": skus,
                          "pay_window_s": 1, "limits": null});
        let activity = open_through_cuts(&crew.members[0].api(), &sale).await;
        let id = activity.parse().expect("an id");
        Self {
            ground: Ground::open(id, database_url, redis_url).await,
            crowd: Arc::new(Crowd::new(crew, &activity, booking, size.users)),
            stock: size.stock,
        }
    }

    /// Whether somebody can buy: whoever finds out that the gate is lost has it rebuilt.
    pub(super) async fn sells(&self, rng: &mut StdRng) -> bool {
        let bought = self.crowd.buy("probe", "k", &[("A", 1)], rng).await;
        bought.is_some()
    }

    /// What is under way, or breaks a law.
    pub(super) async fn unrested(&self) -> Vec<String> {
        let mut broken = self.ground.unended().await;
        broken.extend(self.ground.broken_at_rest().await);
        broken.extend(self.ground.undelivered().await);
        broken
    }

    /// Nobody closes orders any more: every user without a live order can buy, or is told that it
    /// is sold out, until each unit is in a live order. What is wrong with that, and with all that
    /// buyers were ever told.
    pub(super) async fn sell_the_rest(&self, api: &Api) -> Vec<String> {
        let mut broken = self.crowd.wrong.lock().expect("no panic").clone();
        let users = (0..self.crowd.users).map(|n| format!("u{n}"));
        let more = (0..self.stock).map(|n| format!("more-{n}"));
        let buyers = users.chain(more).map(|user| self.buy_last(api, user));
        let told: Vec<_> = stream::iter(buyers).buffered(8).collect().await;
        broken.extend(told.into_iter().flatten());
        broken.extend(self.ground.broken_at_rest().await);
        broken.extend(self.unsold().await);
        broken.extend(self.unfounded().await);
        broken.extend(self.unknown(api).await);
        broken.extend(self.undecided(api).await);
        let booking = self.crowd.booking;
        broken
            .iter_mut()
            .for_each(|what| *what = format!("{booking}: {what}"));
        broken
    }

    /// One unit of whatever is left, for a user who may have an order; what is wrong with the answer.
    async fn buy_last(&self, api: &Api, user: String) -> Option<String> {
        for sku in ["A", "B"] {
            let line = [(sku, 1)];
            let sale = self.ground.id.as_str();
            let answer = api.buy_surely(sale, &user, "last", &line).await;
            let may = buyer_may_get(&answer, self.crowd.booking);
            match (answer.status, answer.problem()) {
                (409, "sold-out") => {}
                (202, "") if may => {
                    let order = decided(api, &answer.order_id()).await;
                    let is_booked = order.body["status"] == "PENDING_PAYMENT";
                    return (!is_booked).then(|| format!("{user} was accepted: {order:?}"));
                }
                (_, "already-purchased" | "") if may => return None,
                _ => return Some(format!("{user}: {answer:?}")),
            }
        }
        None
    }

    /// Units that are not in a live order.
    async fn unsold(&self) -> Option<String> {
        let left = self
            .ground
            .number(
                "SELECT CAST(SUM(available) AS BIGINT) FROM activity_sku WHERE activity_id = $1",
            )
            .await;
        (left != 0).then(|| format!("{left} units cannot be sold"))
    }

    /// Orders that buyers were told of and that are not there, or are another user's.
    async fn unfounded(&self) -> Vec<String> {
        let mut broken = Vec::new();
        let told = self.crowd.told.lock().expect("no panic").clone();
        let state = self.ground.store.final_state(&self.ground.id).await;
        let orders = state.expect("the database answers").orders;
        for order in &orders {
            let id = format!("{}.{}", self.ground.id, order.rid);
            if told
                .get(&id)
                .is_some_and(|user| user != order.user.as_str())
            {
                broken.push(format!(
                    "{id} is of {:?} and not {:?}",
                    order.user, told[&id]
                ));
            }
        }
        let there: BTreeSet<String> = orders
            .iter()
            .filter(|order| !order.lines.is_empty())
            .map(|order| format!("{}.{}", self.ground.id, order.rid))
            .collect();
        let missing = told.keys().filter(|id| !there.contains(*id));
        broken.extend(missing.map(|id| format!("{id} was told to its buyer and is not there")));
        broken
    }

    /// Ids that were named to a buyer and that nobody knows any more.
    async fn unknown(&self, api: &Api) -> Vec<String> {
        let named = self.crowd.named.lock().expect("no panic").clone();
        let mut broken = Vec::new();
        for (id, to) in named {
            let read = api.get(&format!("/v1/orders/{id}")).await;
            if read.status != 200 {
                broken.push(format!("{id} was named to {to}: {read:?}"));
            }
        }
        broken
    }

    /// Orders that were accepted and have no final answer, though nothing is under way.
    async fn undecided(&self, api: &Api) -> Vec<String> {
        let accepted = self.crowd.accepted.lock().expect("no panic").clone();
        let mut broken = Vec::new();
        for (id, user) in accepted {
            let read = api.get(&format!("/v1/orders/{id}")).await;
            if !is_final(&read) {
                broken.push(format!("{id} was accepted for {user}: {read:?}"));
            }
        }
        broken
    }
}

/// Whether an order's resource says what became of it.
pub(super) fn is_final(read: &Answer) -> bool {
    const FINAL: [&str; 5] = ["PENDING_PAYMENT", "PAID", "CLOSED", "REJECTED", "ABANDONED"];
    read.status == 200 && FINAL.contains(&read.body["status"].as_str().unwrap_or_default())
}

/// What became of an accepted order, while nothing breaks.
async fn decided(api: &Api, order: &str) -> Answer {
    let begun = clock::now();
    loop {
        let read = api.get(&format!("/v1/orders/{order}")).await;
        if read.status != 202 || begun.elapsed() >= DECIDED_MAX {
            return read;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Opens a sale over connections that may be cut at any COMMIT.
async fn open_through_cuts(api: &Api, sale: &Value) -> String {
    let (mut id, mut said) = (None, String::new());
    for _ in 0..100 {
        let Some(activity) = &id else {
            let created = api.post("/v1/activities", sale.clone()).await;
            id = created.body["id"].as_str().map(str::to_string);
            continue;
        };
        let step = async |step| {
            let path = format!("/v1/activities/{activity}/{step}");
            api.post(&path, Value::Null).await
        };
        // Refused where it is open already, and its opening was cut off after it was done.
        let warm = step("warm-up").await;
        let open = step("open").await;
        if open.status == 200 {
            return activity.clone();
        }
        said = format!("{warm:?}, {open:?}");
    }
    panic!("the sale could not be opened: {said}");
}
