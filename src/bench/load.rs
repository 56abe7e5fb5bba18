//! Everyone at once, over HTTP, to every service process: the burst at the opening of a sale.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::answer::{Answer, Refusal};
use super::buyer::Click;
use super::history::{Event, Layer, What};
use super::plan::{LoadPlan, Patience};
use super::stats::Times;
use crate::clock::{self, Instant};

/// Longest wait for a connection to a service on this machine.
const CONNECT_WAIT: Duration = Duration::from_secs(3);

/// Where the clicks go and what they ask for.
#[derive(Debug, Clone)]
pub struct Target {
    /// `http://127.0.0.1:PORT` of each instance.
    pub instances: Vec<String>,
    pub activity: String,
    pub sku: String,
}

/// How one click ended, after its tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClickEnd {
    Booked,
    SoldOut,
    AlreadyPurchased,
    Limited,
    /// Gave up; every answer said that nothing was booked.
    Busy,
    /// Gave up; at least one request may have booked.
    Unknown,
    Unexpected,
}

/// What a burst came to, as its buyers saw it.
#[derive(Debug)]
pub struct Burst {
    /// Requests sent.
    pub attempts: u64,
    /// Distinct orders that a buyer was told are booked.
    pub booked: BTreeSet<String>,
    /// Clicks by how they ended, `Booked` included.
    pub ends: Vec<ClickEnd>,
    /// First answers by name.
    pub answers: BTreeMap<String, u64>,
    /// What was outside the contract, the first few.
    pub surprises: Vec<String>,
    /// From the opening to the last final answer.
    pub elapsed: Duration,
    /// From the opening (the intended click) to the final answer.
    pub latency: Times,
    /// From the sending of a request to its answer.
    pub service: Times,
    pub events: Vec<Event>,
}

/// What one click leaves.
struct Clicked {
    end: ClickEnd,
    attempts: u32,
    order: Option<String>,
    first: Option<String>,
    surprise: Option<String>,
    latency: Duration,
    service: Vec<Duration>,
    events: Vec<Event>,
}

/// Why no burst could be sent.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("the HTTP client could not be made: {0}")]
    Client(#[source] reqwest::Error),
    #[error("{instance} does not answer: {source}")]
    Connect {
        instance: String,
        #[source]
        source: reqwest::Error,
    },
}

/// Told after every final answer, for a progress bar.
pub type OnEnd = Arc<dyn Fn(ClickEnd) + Send + Sync>;

// === the burst ===

/// A client with one kept-alive connection per request in flight.
pub fn client(concurrency: u32, patience: &Patience) -> Result<reqwest::Client, LoadError> {
    reqwest::Client::builder()
        .pool_max_idle_per_host(usize::try_from(concurrency).unwrap_or(usize::MAX))
        .connect_timeout(CONNECT_WAIT)
        .timeout(patience.one_answer)
        .tcp_nodelay(true)
        .no_proxy()
        .build()
        .map_err(LoadError::Client)
}

/// Opens the connections ahead of the burst, so that no buyer pays for a handshake.
pub async fn connect(
    client: &reqwest::Client,
    target: &Target,
    concurrency: u32,
) -> Result<(), LoadError> {
    let each = usize::try_from(concurrency).unwrap_or(1);
    for instance in &target.instances {
        let url = format!("{instance}/healthz");
        let all = (0..each.div_ceil(target.instances.len())).map(|_| client.get(&url).send());
        for answer in futures::future::join_all(all).await {
            let connected = match answer {
                Ok(answer) => answer.bytes().await.map(drop),
                Err(error) => Err(error),
            };
            connected.map_err(|source| LoadError::Connect {
                instance: instance.clone(),
                source,
            })?;
        }
    }
    Ok(())
}

/// Lets every buyer click at this instant. Ends when each click has a final answer or its patience
/// is over.
///
/// # Cancel safety
/// Dropped, the clicks under way are dropped with it: what they asked for may or may not happen.
pub async fn burst(
    client: &reqwest::Client,
    target: &Target,
    load: &LoadPlan,
    clicks: &[Click],
    on_end: OnEnd,
) -> Burst {
    let target = Arc::new(target.clone());
    let slots = Arc::new(Semaphore::new(
        usize::try_from(load.concurrency).unwrap_or(Semaphore::MAX_PERMITS),
    ));
    let opened = clock::now();
    let mut tasks = JoinSet::new();
    for (number, click) in clicks.iter().cloned().enumerate() {
        let buyer = Buyer {
            client: client.clone(),
            target: Arc::clone(&target),
            slots: Arc::clone(&slots),
            patience: load.patience,
            opened,
            number,
            click,
        };
        let on_end = Arc::clone(&on_end);
        tasks.spawn(async move {
            let clicked = buyer.click().await;
            on_end(clicked.end);
            clicked
        });
    }
    let mut clicked = Vec::with_capacity(clicks.len());
    while let Some(done) = tasks.join_next().await {
        // A click does not panic; if one does, the run must not go on as if it had not been there.
        clicked.push(done.expect("a click's task runs to its end"));
    }
    summed(clicked, opened.elapsed())
}

fn summed(clicked: Vec<Clicked>, elapsed: Duration) -> Burst {
    /// Enough to see what is wrong.
    const SURPRISES_MAX: usize = 5;
    let mut burst = Burst {
        attempts: 0,
        booked: BTreeSet::new(),
        ends: Vec::with_capacity(clicked.len()),
        answers: BTreeMap::new(),
        surprises: Vec::new(),
        elapsed,
        latency: Times::of(clicked.iter().map(|c| c.latency)),
        service: Times::of(clicked.iter().flat_map(|c| c.service.iter().copied())),
        events: Vec::new(),
    };
    for click in clicked {
        burst.attempts += u64::from(click.attempts);
        burst.booked.extend(click.order);
        burst.ends.push(click.end);
        let first = click.first.unwrap_or_else(|| "not sent".to_string());
        *burst.answers.entry(first).or_default() += 1;
        if burst.surprises.len() < SURPRISES_MAX {
            burst.surprises.extend(click.surprise);
        }
        burst.events.extend(click.events);
    }
    burst
}

// === impl Burst ===

impl Burst {
    pub fn count(&self, end: ClickEnd) -> u64 {
        let n = self.ends.iter().filter(|e| **e == end).count();
        u64::try_from(n).unwrap_or(u64::MAX)
    }
}

// === one click ===

struct Buyer {
    client: reqwest::Client,
    target: Arc<Target>,
    slots: Arc<Semaphore>,
    patience: Patience,
    opened: Instant,
    number: usize,
    click: Click,
}

impl Buyer {
    async fn click(self) -> Clicked {
        let mut rng = StdRng::seed_from_u64(self.click.seed);
        let gives_up = self.opened + self.patience.total;
        let mut clicked = Clicked {
            end: ClickEnd::Busy,
            attempts: 0,
            order: None,
            first: None,
            surprise: None,
            latency: Duration::ZERO,
            service: Vec::new(),
            events: Vec::new(),
        };
        // Once a request may have booked, a later "busy" does not make it certain that none did.
        let mut open = false;
        while clicked.attempts < self.patience.tries_max {
            let Ok(Ok(slot)) =
                tokio::time::timeout_at(gives_up, Arc::clone(&self.slots).acquire_owned()).await
            else {
                break;
            };
            clicked.attempts += 1;
            let attempt = clicked.attempts;
            clicked.events.push(self.event(attempt, What::Invoke));
            let sent = clock::now();
            let answer = self.ask().await;
            drop(slot);
            clicked.service.push(sent.elapsed());
            clicked.events.push(self.event(attempt, told(&answer)));
            clicked.first.get_or_insert_with(|| answer.name());
            let pause = match answer {
                Answer::Booked { order, .. } => {
                    clicked.order = Some(order);
                    clicked.end = ClickEnd::Booked;
                    return self.done(clicked);
                }
                Answer::Unexpected { status, what } => {
                    clicked.surprise = Some(format!("{status} {what}"));
                    clicked.end = ClickEnd::Unexpected;
                    return self.done(clicked);
                }
                Answer::Refused {
                    why, retry_after, ..
                } => match why {
                    Refusal::SoldOut => {
                        clicked.end = ClickEnd::SoldOut;
                        return self.done(clicked);
                    }
                    Refusal::AlreadyPurchased => {
                        clicked.end = ClickEnd::AlreadyPurchased;
                        return self.done(clicked);
                    }
                    Refusal::Limited => {
                        clicked.end = ClickEnd::Limited;
                        return self.done(clicked);
                    }
                    Refusal::Busy => retry_after,
                },
                Answer::Open { retry_after, .. } => {
                    open = true;
                    retry_after
                }
            };
            let pause = pause.map_or(self.patience.pause_max, |p| p.min(self.patience.pause_max));
            let pause = pause.mul_f64(rng.random_range(0.5..=1.0));
            if clock::now() + pause >= gives_up {
                break;
            }
            tokio::time::sleep(pause).await;
        }
        if open {
            clicked.end = ClickEnd::Unknown;
        }
        self.done(clicked)
    }

    fn done(&self, mut clicked: Clicked) -> Clicked {
        clicked.latency = self.opened.elapsed();
        clicked
    }

    async fn ask(&self) -> Answer {
        let instance = &self.target.instances[self.click.instance];
        let url = format!("{instance}/v1/activities/{}/orders", self.target.activity);
        let body = serde_json::json!({
            "user_id": self.click.user,
            "lines": [{"sku": self.target.sku, "quantity": 1}],
        });
        let request = self
            .client
            .post(url)
            .header("Idempotency-Key", &self.click.key)
            .json(&body);
        let open = |error: &reqwest::Error| Answer::Open {
            why: short(error),
            retry_after: None,
        };
        match request.send().await {
            Err(error) => open(&error),
            Ok(answer) => {
                let (status, headers) = (answer.status(), answer.headers().clone());
                match answer.bytes().await {
                    Err(error) => open(&error),
                    Ok(body) => Answer::read(status, &headers, &body),
                }
            }
        }
    }

    fn event(&self, attempt: u32, what: What) -> Event {
        Event {
            ns: u64::try_from(self.opened.elapsed().as_nanos()).unwrap_or(u64::MAX),
            layer: Layer::Buyer,
            click: self.number,
            attempt,
            user: self.click.user.clone(),
            key: self.click.key.clone(),
            instance: self.click.instance,
            what,
        }
    }
}

/// What is certain after an answer.
fn told(answer: &Answer) -> What {
    match answer {
        Answer::Booked {
            order,
            status,
            left,
            replay,
        } => What::Ok {
            order: order.clone(),
            status: *status,
            left: *left,
            replay: *replay,
        },
        Answer::Refused {
            status, problem, ..
        } => What::Fail {
            status: *status,
            problem: problem.clone(),
        },
        Answer::Open { why, .. } => What::Info { why: why.clone() },
        Answer::Unexpected { status, what } => What::Info {
            why: format!("{status} {what}"),
        },
    }
}

fn short(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        "timeout".to_string()
    } else if error.is_connect() {
        "no connection".to_string()
    } else {
        "connection lost".to_string()
    }
}

#[cfg(test)]
mod tests;
