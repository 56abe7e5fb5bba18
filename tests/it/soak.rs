//! The soak: does every law hold while everything that can break breaks, and once it is over?
//!
//! Several processes of the service sell two activities through `redis-lua`, one booked before the
//! answer and one after it, on PostgreSQL and a Redis of their own (AOF everysec). Meanwhile Redis is
//! killed every second and comes back whole, with a cut history or empty; services are killed; a
//! relay is stopped past its lease; connections to the database are cut at COMMIT; answers of Redis
//! are late or lost, and requests arrive long after their client gave up.
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
mod met;
mod sale;

use std::sync::Arc;
use std::time::Duration;

use flashlock::clock;
use flashlock::lab::{Lab, LabPlan};
use flashlock::sale::Booking;
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::world::world;
use chaos::{Chaos, before_redis, before_the_database};
use counts::Counts;
use crew::{Crew, Post};
use crowd::BUYERS;
use sale::{Sale, Size};

/// Without `SOAK_S`.
const LENGTH_S: u64 = 10;
/// Units of each SKU and users of each sale, per second: enough that it is sold out now and then, and
/// that users are left at the end.
const STOCK_PER_S: u64 = 12;
const USERS_PER_S: u64 = 40;
/// A busy machine gets this much longer to meet everything.
const LONGER_MAX: u32 = 6;
/// What crashes leave ends within seconds; most of this is for a busy machine.
const REST_MAX: Duration = Duration::from_secs(90);
/// Breaches that are shown: one broken thing breaks many laws.
const BROKEN_SHOWN: usize = 20;
/// Between two looks at the laws that hold at every moment.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// One run: what is sold and by whom.
struct Soak {
    sales: Vec<Sale>,
    crew: Arc<Crew>,
    injected: Counts,
    lab: Arc<Lab>,
    seed: u64,
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
    for Sale { crowd, .. } in &soak.sales {
        println!("answered ({}):\n{}", crowd.booking, crowd.answers);
    }
    assert!(broken.is_empty(), "seed {seed}: {broken:#?}");
    let rested = soak.come_to_rest().await;
    println!("counted by the services:\n{}", soak.crew.counted().await);
    println!("boundaries:\n{}", soak.boundaries().await);
    let mut broken = soak.sell_the_rest().await;
    broken.truncate(BROKEN_SHOWN);
    assert!(broken.is_empty(), "seed {seed}: {broken:#?}");
    println!(
        "at rest after {rested:.1?}; D1 to D5, R1, R2, E1 and E2 hold, all units are sold, {} orders \
         were told and are there, no answer was outside the contract",
        soak.told()
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
            post("worker-1", "api,relay,closer,booker", &far),
            post("worker-2", "api,relay,closer,sweeper,booker", &redis),
            post("worker-3", "api,sweeper,reconciler,booker", &redis),
        ])
        .await;
        let crew = Arc::new(crew);
        let size = Size {
            stock: STOCK_PER_S * length.as_secs(),
            users: USERS_PER_S * length.as_secs(),
        };
        let mut sales = Vec::new();
        for booking in [Booking::Sync, Booking::Async] {
            sales.push(Sale::open(&crew, booking, size, &database, &redis).await);
        }
        Self {
            sales,
            crew,
            injected,
            lab: Arc::new(lab),
            seed,
        }
    }

    /// Everything at once for `length`; what broke a law that holds at every moment.
    async fn sell_through_chaos(&self, length: Duration, stop: &CancellationToken) -> Vec<String> {
        let chaos = Arc::new(Chaos {
            seed: self.seed,
            crew: Arc::clone(&self.crew),
            lab: Arc::clone(&self.lab),
            crowds: self.sales.iter().map(|s| Arc::clone(&s.crowd)).collect(),
            length,
            injected: self.injected.clone(),
            stop: stop.clone(),
        });
        let mut work = JoinSet::new();
        work.spawn(chaos.run());
        for (n, sale) in (0..BUYERS).flat_map(|n| self.sales.iter().map(move |sale| (n, sale))) {
            let crowd = Arc::clone(&sale.crowd);
            work.spawn(crowd.buyer(self.seed.wrapping_add(100 + n), stop.clone()));
        }
        let begun = clock::now();
        let mut broken = Vec::new();
        while broken.is_empty() {
            tokio::time::sleep(LOOK_EVERY).await;
            for sale in &self.sales {
                broken.extend(sale.ground.broken_now().await);
            }
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
        let mut shut: Vec<&Sale> = self.sales.iter().collect();
        loop {
            let mut still_shut = Vec::new();
            for sale in shut {
                if !sale.sells(&mut rng).await {
                    still_shut.push(sale);
                }
            }
            shut = still_shut;
            let mut broken = Vec::new();
            for sale in &self.sales {
                broken.extend(sale.unrested().await);
            }
            if shut.is_empty() && broken.is_empty() {
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

    /// Nobody closes orders any more; what is wrong with the rest, and with all that was told.
    async fn sell_the_rest(&self) -> Vec<String> {
        for closer in ["worker-1", "worker-2"] {
            self.crew.dismiss(closer).await;
        }
        let api = self.crew.members[0].api();
        let mut broken = Vec::new();
        for sale in &self.sales {
            broken.extend(sale.sell_the_rest(&api).await);
        }
        broken
    }

    /// Orders that buyers were told of.
    fn told(&self) -> usize {
        let told = |sale: &Sale| sale.crowd.told.lock().expect("no panic").len();
        self.sales.iter().map(told).sum()
    }
}
