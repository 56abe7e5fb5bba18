//! The soak: does every law hold while everything that can break breaks, and once it is over?
//!
//! Several processes of the service sell through `redis-lua`, on PostgreSQL and a Redis of their
//! own (AOF everysec). Meanwhile Redis is killed and comes back whole, with a cut history or empty;
//! services are killed; a relay is stopped past its lease; connections to the database are cut at
//! COMMIT; answers of Redis are late or lost, and requests arrive long after their client gave up.
//! At the end all of it stops, the stores come to rest, and the laws are checked in the database
//! and in Redis themselves; then the rest is sold, so that no unit and no user is left blocked.
//!
//! `SOAK_S` is its length in seconds (`make soak`: 120), `SOAK_SEED` repeats what was injected.

mod chaos;
mod controls;
mod counts;
mod crew;
mod crowd;
pub(crate) mod laws;

use std::sync::Arc;
use std::time::Duration;

use flashlock::clock;
use flashlock::lab::{Lab, LabPlan};
use futures::stream::{self, StreamExt};
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::world::{Api, world};
use chaos::{Chaos, before_redis, before_the_database};
use counts::Counts;
use crew::{Crew, Post};
use crowd::{BUYERS, Crowd, buyer_may_get};
use laws::Ground;

/// Without `SOAK_S`.
const LENGTH_S: u64 = 10;
/// Units of each SKU and users, per second: enough that it is sold out now and then, and that
/// users are left at the end.
const STOCK_PER_S: u64 = 12;
const USERS_PER_S: u64 = 40;
/// A busy machine gets this much longer to meet everything.
const LONGER_MAX: u32 = 3;
/// What crashes leave ends within seconds; most of this is for a busy machine.
const REST_MAX: Duration = Duration::from_secs(90);
/// Breaches that are shown: one broken thing breaks many laws.
const BROKEN_SHOWN: usize = 20;
/// Between two looks at the laws that hold at every moment.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What must have been injected, in a run of ten seconds and from a minute on.
const INJECTED: [(&str, u64, u64); 11] = [
    ("redis killed", 5, 30),
    ("redis killed and its history cut", 1, 5),
    ("redis killed and emptied", 1, 5),
    ("api killed", 5, 5),
    ("worker killed", 5, 5),
    ("relay paused past its lease", 1, 5),
    ("booking slowed beyond the sweeper's grace", 1, 5),
    ("connection cut before COMMIT was read", 1, 5),
    ("connection cut after COMMIT was done", 1, 5),
    ("answer of redis", 1, 5),
    ("request to redis late", 1, 5),
];

/// One run: what is sold, by whom, and where it is looked at.
struct Soak {
    ground: Ground,
    crew: Arc<Crew>,
    crowd: Arc<Crowd>,
    injected: Counts,
    lab: Arc<Lab>,
    seed: u64,
    stock: i64,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_law_holds_through_kills_cuts_and_pauses() {
    let of = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let length = Duration::from_secs(of("SOAK_S").unwrap_or(LENGTH_S));
    let seed = of("SOAK_SEED").unwrap_or_else(|| u64::from(rand::random::<u32>()));
    println!("soak of {length:?}; to repeat what is injected: SOAK_SEED={seed}");
    let stop = CancellationToken::new();
    let soak = Soak::begin(seed, length, &stop).await;
    let begun = clock::now();
    let broken = soak.sell_through_chaos(length, &stop).await;
    let lasted = begun.elapsed();
    println!("injected in {lasted:.1?}:\n{}", soak.injected);
    println!("answered:\n{}", soak.crowd.answers);
    assert!(broken.is_empty(), "seed {seed}: {broken:#?}");
    let rested = soak.come_to_rest().await;
    println!("counted by the services:\n{}", soak.crew.counted().await);
    println!("boundaries:\n{}", soak.boundaries().await);
    let mut broken = soak.sell_the_rest().await;
    broken.truncate(BROKEN_SHOWN);
    assert!(broken.is_empty(), "seed {seed}: {broken:#?}");
    println!(
        "at rest after {rested:.1?}; D1 to D5, R1, R2, E1 and E2 hold, all {} units of each SKU are \
         sold, {} orders were told and are there, no answer was outside the contract",
        soak.stock,
        soak.crowd.told.lock().expect("no panic").len()
    );
    let missing = soak.not_met(length).await;
    assert!(
        missing.is_empty(),
        "seed {seed}: too little happened: {missing:#?}"
    );
}

// === impl Soak ===

impl Soak {
    async fn begin(seed: u64, length: Duration, stop: &CancellationToken) -> Self {
        let plan = LabPlan {
            redis: true,
            ..LabPlan::nothing()
        };
        let lab = Lab::start(&plan).await.expect("a lab");
        let redis = lab.redis_url().expect("redis runs");
        let database = world().database("postgres").await;
        let injected = Counts::default();
        let sql = before_the_database(&database, seed ^ 1, &injected, stop).await;
        let tap = before_redis(&redis, seed ^ 2, &injected, stop).await;
        let post = |name, roles, redis_url: &str| Post {
            name,
            roles,
            database_url: sql.instead_of(&database),
            redis_url: redis_url.to_string(),
        };
        let far = tap.instead_of(&redis);
        let crew = Crew::start(vec![
            post("api-1", "api", &redis),
            post("api-2", "api", &far),
            post("api-3", "api", &far),
            post("relay", "api,relay", &redis),
            post("worker-1", "api,relay,closer", &far),
            post("worker-2", "api,relay,closer,sweeper", &redis),
            post("worker-3", "api,sweeper,reconciler", &redis),
        ])
        .await;
        let stock = STOCK_PER_S * length.as_secs();
        let skus = ["A", "B"].map(|sku| json!({"sku": sku, "stock": stock}));
        // The crowd is a small one that asks often: no buckets.
        let sale = json!({"strategy": "redis-lua", "skus": skus, "pay_window_s": 1,
                          "limits": null});
        let api = crew.members[0].api();
        let activity = open_through_cuts(&api, &sale).await;
        let crew = Arc::new(crew);
        Self {
            ground: Ground::open(activity.parse().expect("an id"), &database, &redis).await,
            crowd: Arc::new(Crowd::new(&crew, &activity, USERS_PER_S * length.as_secs())),
            crew,
            injected,
            lab: Arc::new(lab),
            seed,
            stock: i64::try_from(stock).expect("few"),
        }
    }

    /// Everything at once for `length`; what broke a law that holds at every moment.
    async fn sell_through_chaos(&self, length: Duration, stop: &CancellationToken) -> Vec<String> {
        let chaos = Arc::new(Chaos {
            seed: self.seed,
            crew: Arc::clone(&self.crew),
            lab: Arc::clone(&self.lab),
            activity: self.ground.id.to_string(),
            length,
            injected: self.injected.clone(),
            answers: self.crowd.answers.clone(),
            stop: stop.clone(),
        });
        let mut work = JoinSet::new();
        work.spawn(chaos.run());
        for n in 0..BUYERS {
            let crowd = Arc::clone(&self.crowd);
            work.spawn(crowd.buyer(self.seed.wrapping_add(100 + n), stop.clone()));
        }
        let begun = clock::now();
        let mut broken = Vec::new();
        while broken.is_empty() {
            tokio::time::sleep(LOOK_EVERY).await;
            broken = self.ground.broken_now().await;
            self.injected.add("looked at the laws of every moment", 1);
            let over = begun.elapsed() >= length * LONGER_MAX;
            if over || begun.elapsed() >= length && self.not_met(length).await.is_empty() {
                break;
            }
        }
        stop.cancel();
        while let Some(done) = work.join_next().await {
            done.expect("no panic");
        }
        broken
    }

    /// Waits until nothing is under way and every law holds; how long that took.
    async fn come_to_rest(&self) -> Duration {
        let begun = clock::now();
        let mut rng = StdRng::seed_from_u64(self.seed);
        let mut opens = false;
        loop {
            // Whoever buys finds out that the gate is lost, and has it rebuilt.
            if !opens {
                let bought = self.crowd.buy("probe", "k", &[("A", 1)], &mut rng).await;
                opens = bought.is_some();
            }
            let mut broken = self.ground.unended().await;
            broken.extend(self.ground.broken_at_rest().await);
            if opens && broken.is_empty() {
                return begun.elapsed();
            }
            if begun.elapsed() > REST_MAX {
                for member in &self.crew.members {
                    println!("{}:\n{}", member.name, member.log().await);
                }
                panic!("seed {}: after {REST_MAX:?}: {broken:#?}", self.seed);
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    }

    /// How often each boundary was met, as the services, the database and the buyers tell.
    async fn boundaries(&self) -> Counts {
        let boundaries = Counts::default();
        let (counted, answers) = (self.crew.counted().await, &self.crowd.answers);
        let told = |what: &str, n: u64| boundaries.add(what, n);
        let rows = async |what: &str, sql: &'static str| {
            let n = self.ground.number(sql).await;
            told(what, u64::try_from(n).expect("a count"));
        };
        // What the resolver of unknown outcomes gives up has a row of its own.
        rows(
            "1 holds swept and given up by a tombstone",
            "SELECT COUNT(*) FROM orders o WHERE o.activity_id = $1 AND o.state = 'ABANDONED' \
             AND NOT EXISTS (SELECT 1 FROM compensation c WHERE c.rid = o.id)",
        )
        .await;
        rows(
            "2 unknown outcomes compensated",
            "SELECT COUNT(*) FROM compensation WHERE activity_id = $1 AND state = 'DONE'",
        )
        .await;
        rows(
            "3 gates rebuilt (epochs)",
            "SELECT gate_epoch - 1 FROM activity WHERE id = $1",
        )
        .await;
        told(
            "5 duplicates dropped by the inbox",
            counted.of("flashlock_inbox_duplicates_total"),
        );
        rows(
            "6 late payments: REFUND_DUE",
            "SELECT COUNT(*) FROM payment p JOIN orders o ON o.id = p.order_id \
             WHERE o.activity_id = $1 AND p.outcome = 'REFUND_DUE' AND o.state = 'CLOSED'",
        )
        .await;
        rows(
            "7 restocks",
            "SELECT COUNT(*) FROM stock_ledger WHERE activity_id = $1 AND kind = 'RELEASE'",
        )
        .await;
        told("8 reconciled while it sold", self.injected.of("reconciled"));
        told(
            "9 second orders refused by the marker",
            answers.of("buy: 409 already-purchased"),
        );
        told("  replays", answers.of("buy: 200"));
        boundaries
    }

    /// Nobody closes orders any more: every user without a live order can buy, or is told that it
    /// is sold out, until each unit is in a live order.
    async fn sell_the_rest(&self) -> Vec<String> {
        for closer in ["worker-1", "worker-2"] {
            for member in self.crew.named(closer) {
                member.dismiss().await;
            }
        }
        let mut broken = self.crowd.wrong.lock().expect("no panic").clone();
        let api = self.crew.members[0].api();
        let users = (0..self.crowd.users).map(|n| format!("u{n}"));
        let more = (0..self.stock).map(|n| format!("more-{n}"));
        let buyers = users.chain(more).map(|user| self.buy_last(&api, user));
        let told: Vec<_> = stream::iter(buyers).buffered(8).collect().await;
        broken.extend(told.into_iter().flatten());
        broken.extend(self.ground.broken_at_rest().await);
        broken.extend(self.unsold().await);
        broken.extend(self.unfounded().await);
        broken.extend(self.unknown(&api).await);
        broken
    }

    /// One unit of whatever is left, for a user who may have an order; what is wrong with the answer.
    async fn buy_last(&self, api: &Api, user: String) -> Option<String> {
        for sku in ["A", "B"] {
            let line = [(sku, 1)];
            let sale = self.ground.id.as_str();
            let answer = api.buy_surely(sale, &user, "last", &line).await;
            match answer.problem() {
                "sold-out" => {}
                "already-purchased" | "" if buyer_may_get(&answer) => return None,
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
        let there: std::collections::BTreeSet<String> = orders
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

    /// What was not injected often enough, and the boundaries that were not met.
    async fn not_met(&self, length: Duration) -> Vec<String> {
        let mut missing = Vec::new();
        for (what, ten_seconds, a_minute) in INJECTED {
            let at_least = match length.as_secs() < 60 {
                true => ten_seconds,
                false => a_minute,
            };
            let n = self.injected.of(what);
            if n < at_least {
                missing.push(format!("{what}: {n} of {at_least}"));
            }
        }
        let boundaries = self.boundaries().await.each();
        let never = boundaries.into_iter().filter(|(_, n)| *n == 0);
        missing.extend(never.map(|(what, _)| format!("{what}: never")));
        missing
    }
}

/// Opens a sale over connections that may be cut at any COMMIT.
async fn open_through_cuts(api: &Api, sale: &Value) -> String {
    let mut id = None;
    for _ in 0..100 {
        let Some(activity) = &id else {
            let created = api.post("/v1/activities", sale.clone()).await;
            id = created.body["id"].as_str().map(str::to_string);
            continue;
        };
        let mut open = true;
        for step in ["warm-up", "open"] {
            let path = format!("/v1/activities/{activity}/{step}");
            open &= api.post(&path, Value::Null).await.status == 200;
        }
        if open {
            return activity.clone();
        }
    }
    panic!("the sale could not be opened");
}
