//! One strategy under the run's load: fresh services, a fresh activity, a burst, and what the stores
//! say afterwards.

use std::sync::Arc;
use std::time::Duration;

use super::buyer;
use super::check::{self, Evidence, Reading};
use super::client::{ClientError, Opened, Operator};
use super::cpu;
use super::history;
use super::load::{self, Burst, LoadError, OnEnd, Target};
use super::plan::{LoadPlan, Plan, Servers};
use super::progress::Step;
use super::read;
use super::row::{self, Cpu, Trial};
use super::service::{ServiceError, ServiceSpec, Services};
use crate::lab::{Lab, ServerId};
use crate::run::Cell;
use crate::sale::ActivityId;
use crate::strategy::{Kind, Need, Strategy};

/// The control oversells by chance; so often it gets another.
pub const CONTROL_BURSTS_MAX: u32 = 5;
/// Buyers of a burst that warms up, and its stock.
const WARM_UP_USERS: u32 = 200;
const WARM_UP_STOCK: i64 = 40;
/// Two bursts that differ by less are alike: the cost of an order is flat.
const FLAT: f64 = 0.10;

/// What one cell is measured with.
#[derive(Debug, Clone, Copy)]
pub struct Bench<'a> {
    pub plan: &'a Plan,
    /// With the database of this cell.
    pub servers: &'a Servers,
    /// Has no server when they were given: then their CPU time is not known.
    pub lab: &'a Lab,
    pub logs: &'a std::path::Path,
    pub durability: &'static str,
}

/// Why a strategy was not measured.
#[derive(Debug, thiserror::Error)]
pub enum CellError {
    /// What to install or start.
    #[error("{0}")]
    Unavailable(String),
    #[error(transparent)]
    Service(#[from] ServiceError),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("the history could not be written: {0}")]
    History(#[source] std::io::Error),
}

/// A row of the report.
#[derive(Debug)]
pub struct Measured {
    pub cell: Cell,
    /// Why its figures should not be compared.
    pub disturbances: Vec<String>,
}

// === impl Bench ===

impl Bench<'_> {
    /// Runs the strategy. An `Err` says why there is nothing to report.
    pub async fn run(&self, strategy: Strategy, step: &Step) -> Result<Measured, CellError> {
        let spec = ServiceSpec {
            binary: self.plan.service.clone(),
            servers: self.servers.clone(),
            logs: self.logs.to_path_buf(),
            name: strategy.name().to_string(),
        };
        step.now("creating tables");
        spec.migrate().await?;
        step.now("starting services");
        let services = spec.start(self.plan.instances).await?;
        let measured = self.measure(strategy, &services, step).await;
        step.now("stopping services");
        let died = services.ended();
        let in_time = services.stop().await;
        let mut measured = measured?;
        let mut disturbed = |what: String| {
            let name = strategy.name();
            measured.disturbances.push(format!("{name}: {what}"));
        };
        if died > 0 {
            disturbed(format!(
                "{died} service processes ended before they were told to"
            ));
        }
        if !in_time {
            disturbed("a service did not end when it was told to, and was killed".to_string());
        }
        Ok(measured)
    }

    async fn measure(
        &self,
        strategy: Strategy,
        services: &Services,
        step: &Step,
    ) -> Result<Measured, CellError> {
        let load = &self.plan.load;
        let client = load::client(load.concurrency, &load.patience)?;
        let operator = Operator::of(&client, &services.urls()[0]);
        let name = strategy.name().to_string();
        if let Some(why) = operator.unavailable().await?.remove(&name).flatten() {
            return Err(CellError::Unavailable(why));
        }
        self.warm_up(strategy, services, &client, step).await?;
        let bursts_max = match strategy.is_control() {
            true => CONTROL_BURSTS_MAX,
            false => 1,
        };
        let mut bursts = 1;
        let trial = loop {
            let trial = self.trial(strategy, services, &client, step).await?;
            if bursts == bursts_max || trial.safety.oversold > 0 || !strategy.is_control() {
                break trial;
            }
            bursts += 1;
        };
        let disturbances = row::disturbances(strategy, &trial);
        Ok(Measured {
            cell: row::cell(self.plan, self.durability, strategy, trial, bursts),
            disturbances,
        })
    }

    /// Bursts that are not counted, until two in a row cost the same.
    async fn warm_up(
        &self,
        strategy: Strategy,
        services: &Services,
        client: &reqwest::Client,
        step: &Step,
    ) -> Result<(), CellError> {
        let load = LoadPlan {
            users: WARM_UP_USERS.min(self.plan.load.users),
            stock: WARM_UP_STOCK.min(self.plan.load.stock),
            ..self.plan.load.clone()
        };
        let mut before: Option<Duration> = None;
        for round in 0..self.plan.profile.warm_ups_max() {
            step.now("warming up");
            let seed = self.plan.seed.wrapping_add(u64::from(round) + 1);
            let clicks = buyer::clicks(&load, seed, services.urls().len());
            let silent: OnEnd = Arc::new(|_| ());
            let (_, target) = self.open(strategy, services, client, load.stock).await?;
            let burst = load::burst(client, &target, &load, &clicks, silent).await;
            let now = burst.elapsed;
            let flat =
                |before: Duration| now.abs_diff(before).as_secs_f64() < FLAT * before.as_secs_f64();
            if before.is_some_and(flat) {
                break;
            }
            before = Some(now);
        }
        Ok(())
    }

    /// A fresh activity that is open, with connections to every instance.
    async fn open(
        &self,
        strategy: Strategy,
        services: &Services,
        client: &reqwest::Client,
        stock: i64,
    ) -> Result<(Opened, Target), CellError> {
        let operator = Operator::of(client, &services.urls()[0]);
        let activity = operator.open_activity(self.plan, strategy, stock).await?;
        let target = Target {
            instances: services.urls().to_vec(),
            activity: activity.id.to_string(),
            sku: Plan::sku().to_string(),
        };
        load::connect(client, &target, self.plan.load.concurrency).await?;
        Ok((activity, target))
    }

    /// The burst that counts, and its judgement.
    async fn trial(
        &self,
        strategy: Strategy,
        services: &Services,
        client: &reqwest::Client,
        step: &Step,
    ) -> Result<Trial, CellError> {
        let load = &self.plan.load;
        let clicks = buyer::clicks(load, self.plan.seed, services.urls().len());
        step.expect(
            clicks.len(),
            &format!("{} buyers, {} units", load.users, load.stock),
        );
        let ticking = step.clone();
        let on_end: OnEnd = Arc::new(move |_| ticking.tick());
        let (
            Opened {
                id: activity,
                guard,
            },
            target,
        ) = self.open(strategy, services, client, load.stock).await?;
        let before = self.cpu(strategy, services);
        let burst = load::burst(client, &target, load, &clicks, on_end).await;
        let generator = cpu::read(&[std::process::id()]);
        step.now("reading the stores");
        let gate_url = match strategy.entry().kind {
            Kind::Gate => self.servers.redis_url.as_deref(),
            Kind::Lock | Kind::Transaction | Kind::Control => None,
        };
        if let Some(url) = gate_url {
            read::rest(url, &activity).await;
        }
        let after = self.cpu(strategy, services);
        let gate = match gate_url {
            Some(url) => read::gate(url, &activity).await,
            None => Reading::NotUsed,
        };
        let database = match &self.servers.database_url {
            Some(url) => read::database(url, &activity).await,
            None => Reading::Failed("there is no database".to_string()),
        };
        let safety = check::judge(&Evidence {
            activity: &activity,
            database: &database,
            gate: &gate,
            acknowledged: &burst.booked,
            asked: &buyer::asked(&clicks),
        });
        self.keep_history(strategy, &activity, &burst)?;
        Ok(Trial {
            guard,
            burst,
            safety,
            generator_us: match (&before.generator, &generator) {
                (Some(before), Some(after)) => cpu::between(before, after),
                (None | Some(_), _) => 0,
            },
            cpu: (before, after),
        })
    }

    fn keep_history(
        &self,
        strategy: Strategy,
        activity: &ActivityId,
        burst: &Burst,
    ) -> Result<(), CellError> {
        let name = strategy.name().to_string();
        let sku = Plan::sku().to_string();
        let head = history::Head {
            layer: "run",
            strategy: &name,
            activity: activity.as_str(),
            seed: self.plan.seed,
            sku: &sku,
            stock: self.plan.load.stock,
        };
        let path = self.plan.out.join("history").join(format!("{name}.jsonl"));
        history::write(&path, &head, &burst.events).map_err(CellError::History)
    }

    fn cpu(&self, strategy: Strategy, services: &Services) -> Cpu {
        let of = |kinds: &[&str]| {
            let pids: Vec<u32> = self
                .lab
                .pids()
                .into_iter()
                .filter(|(id, _): &(ServerId, _)| kinds.contains(&id.kind()))
                .flat_map(|(_, pids)| pids)
                .collect();
            cpu::read(&pids)
        };
        // What a server does while nobody asks it is not part of an order.
        let mut redis: Vec<&str> = Vec::new();
        let mut zookeeper: Vec<&str> = Vec::new();
        for need in strategy.entry().needs {
            match need {
                Need::Redis => redis.push("redis"),
                Need::Redlock => redis.push("redlock"),
                Need::Zookeeper => zookeeper.push("zookeeper"),
            }
        }
        Cpu {
            generator: cpu::read(&[std::process::id()]),
            service: cpu::read(&services.pids()),
            redis: of(&redis),
            zookeeper: of(&zookeeper),
            database: of(&["postgres", "mariadb"]),
        }
    }
}
