//! On what is it measured: servers of our own, activities, and orders that nobody has placed before?

use std::sync::Arc;

use flashlock::bench::environment;
use flashlock::deduct::Deduct;
use flashlock::gate::Gate;
use flashlock::lab::{DatabaseKind, Lab, LabPlan};
use flashlock::order::{Fingerprint, NewOrder};
use flashlock::sale::{
    Activity, ActivityId, ActivityState, Allocation, Booking, GuardMode, Limits, Line,
    LockSettings, Purchase, Sku, StrategyName, Watchdog,
};
use flashlock::store::{Store, StoreOptions};
use flashlock::strategy::redis_lua::RedisLua;

use crate::{Failed, Figure};

/// What every activity sells.
pub(crate) const SKU: &str = "LIMITED-1";
/// More than any figure takes.
pub(crate) const STOCK: i64 = 10_000_000;
/// The year 9998, in Unix milliseconds.
const FAR_MS: i64 = 253_370_764_799_999;
/// One writes; the closer process has a pool of its own.
const CONNECTIONS_MAX: u32 = 4;

/// The servers.
pub(crate) struct Ground {
    pub(crate) lab: Lab,
}

// === impl Ground ===

impl Ground {
    pub(crate) async fn start(figures: &[Figure]) -> Result<Self, Failed> {
        let databases = figures.contains(&Figure::Close);
        let lab = Lab::start(&LabPlan {
            redis: true,
            postgres: databases
                || figures.contains(&Figure::Book)
                || figures.contains(&Figure::Settle),
            mariadb: databases,
            ..LabPlan::nothing()
        })
        .await?;
        Ok(Self { lab })
    }

    /// One line per server: version and durability.
    pub(crate) async fn describe(&self) -> String {
        let on = environment::describe(self.lab.directory(), self.lab.settings().await);
        let mut text = format!(
            "{} cores of {}, {}, data on {}\n",
            on.cores, on.cpu, on.kernel, on.file_system
        );
        for (server, settings) in &on.servers {
            let settings: Vec<String> = settings.iter().map(|(k, v)| format!("{k} {v}")).collect();
            text.push_str(&format!("{server}: {}\n", settings.join(", ")));
        }
        text
    }

    pub(crate) async fn stop(self) -> Result<(), Failed> {
        Ok(self.lab.stop().await?)
    }

    pub(crate) fn redis_url(&self) -> Result<String, Failed> {
        self.lab
            .redis_url()
            .ok_or_else(|| "redis-server is not installed: run `make deps`".into())
    }

    pub(crate) fn gate(&self) -> Result<Gate, Failed> {
        Ok(Gate::new(&self.redis_url()?)?)
    }

    /// The URL of a fresh database, of kind `sqlite`, `postgres` or `mysql`.
    pub(crate) async fn database(&self, kind: &str) -> Result<String, Failed> {
        let name = format!("speed_{}", ActivityId::generate());
        let kind = match kind {
            "postgres" => DatabaseKind::Postgres,
            "mysql" => DatabaseKind::Mysql,
            _sqlite => {
                let file = self.lab.directory().join(format!("{name}.db"));
                return Ok(format!("sqlite:{}", file.display()));
            }
        };
        Ok(self.lab.create_database(kind, &name).await?)
    }
}

/// Opens the database and creates its tables.
pub(crate) async fn store(url: &str) -> Result<Store, Failed> {
    let store = Store::open(&StoreOptions {
        url: url.to_string(),
        connections_max: CONNECTIONS_MAX,
    })
    .await?;
    store.migrate().await?;
    Ok(store)
}

/// An activity that is open, as far as the database is concerned.
pub(crate) fn activity(strategy: &str) -> Activity {
    Activity {
        id: ActivityId::generate(),
        state: ActivityState::Open,
        strategy: StrategyName::new(strategy),
        guard: GuardMode::Fence,
        batch_max: 64,
        booking: Booking::Sync,
        lock: LockSettings {
            ttl_ms: 10_000,
            wait_ms: 5_000,
            watchdog: Watchdog::On,
        },
        limits: Limits::default(),
        opens_at_ms: 0,
        closes_at_ms: FAR_MS,
        pay_window_s: 60,
        units_per_user_max: 10,
        fence_generation: 0,
        gate_epoch: 0,
        gate_run_id: String::new(),
        skus: vec![Allocation {
            sku: sku(),
            total: STOCK,
        }],
    }
}

fn sku() -> Sku {
    match SKU.parse() {
        Ok(sku) => sku,
        Err(error) => unreachable!("{SKU}: {error}"),
    }
}

/// Warms the activity's gate up from the database and opens it; the activity with its epoch.
pub(crate) async fn open_gate(
    gate: &Gate,
    store: &Store,
    activity: &Activity,
) -> Result<Activity, Failed> {
    let books = Arc::new(store.clone());
    let strategy = RedisLua::new(gate.clone(), books.clone(), books);
    strategy.open(activity).await?;
    let opened = store.activity(&activity.id).await?;
    opened.ok_or_else(|| "the activity is gone".into())
}

/// `n` orders of one unit, each of another user, admitted at `at_ms`.
pub(crate) fn orders(activity: &Activity, n: usize, at_ms: i64) -> Result<Vec<NewOrder>, Failed> {
    (0..n)
        .map(|i| {
            let line = Line {
                sku: sku(),
                quantity: 1,
            };
            // As wide as redis-benchmark's own numbers.
            let user = format!("u{i:012}").parse()?;
            let key = format!("key-{i}").parse()?;
            let purchase = Purchase::new(activity.id.clone(), user, key, [line])
                .ok_or("one line of one unit is no purchase")?;
            Ok(NewOrder {
                rid: purchase.rid(),
                user: purchase.user.clone(),
                fingerprint: Fingerprint::of(&purchase),
                lines: purchase.lines().to_vec(),
                admitted_at_ms: at_ms,
            })
        })
        .collect()
}
