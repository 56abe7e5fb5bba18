//! Does every event arrive, take effect once, and keep no other waiting? On every database.

mod crash;
mod gate;
mod lost;
mod poison;
mod proxy;
mod shared;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use flashlock::broker::{Broker, Consumer, Failure, InProcess, Waiting};
use flashlock::clock;
use flashlock::flow::Flow;
use flashlock::flow::outbox::{ATTEMPTS_MAX, LEASE};
use flashlock::sale::GuardMode;
use flashlock::store::{Before, Event, EventKind, NextTry, Payment, Replayed, Store, Undelivered};
use flashlock::strategy::db_unique_insert::DbUniqueInsertLock;
use serde_json::Value;
use sqlx::{AnyPool, AssertSqlSafe, Row};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::embedded::Shop;
use crate::world::{DATABASES, Service, world};

/// Longest wait for something that takes some hundred milliseconds on an idle machine.
const SOON: Duration = Duration::from_secs(20);

/// Waits until `is_so` answers something.
async fn until<T, F: Future<Output = Option<T>>>(what: &str, is_so: impl Fn() -> F) -> T {
    let begun = clock::now();
    loop {
        if let Some(found) = is_so().await {
            return found;
        }
        assert!(begun.elapsed() < SOON, "{what}: not within {SOON:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Notes each effect under the inbox, as any consumer of the database's would.
#[derive(Debug)]
struct Notes {
    store: Store,
    effects: Arc<Mutex<HashMap<Uuid, u32>>>,
    /// Deliveries, effects or not.
    taken: AtomicU32,
    /// What it cannot stand.
    refuses: Option<EventKind>,
}

impl Notes {
    fn new(store: &Store, effects: &Arc<Mutex<HashMap<Uuid, u32>>>) -> Self {
        Self {
            store: store.clone(),
            effects: Arc::clone(effects),
            taken: AtomicU32::new(0),
            refuses: None,
        }
    }
}

#[async_trait]
impl Consumer for Notes {
    fn name(&self) -> &'static str {
        "notes"
    }

    async fn take(&self, events: &[Event]) -> Vec<Result<(), Failure>> {
        let mut outcomes = Vec::new();
        for event in events {
            self.taken.fetch_add(1, Ordering::SeqCst);
            if self.refuses == Some(event.kind) {
                outcomes.push(Err(Failure::Refused("it cannot be".to_string())));
                continue;
            }
            let first = self.store.inbox_insert(self.name(), &[event.id]).await;
            if first.expect("the database answers") == 1 {
                let mut effects = self.effects.lock().unwrap_or_else(PoisonError::into_inner);
                *effects.entry(event.id).or_default() += 1;
            }
            outcomes.push(Ok(()));
        }
        outcomes
    }

    async fn give_back(&self, _event: &Event, why: &Failure) -> Result<(), Failure> {
        Err(why.clone())
    }
}

async fn shop(database: &str, processes: usize) -> Shop {
    let lock = |store: &Store, _: &str| DbUniqueInsertLock::new(store.lock_rows().clone());
    Shop::open(database, processes, lock).await
}

/// Connections that know nothing of the store.
async fn raw(flow: &Flow) -> AnyPool {
    let url = &flow.app.config.database_url;
    AnyPool::connect(url).await.expect("the database answers")
}

/// The only value that `sql` selects.
async fn number(raw: &AnyPool, sql: &str) -> i64 {
    let row = sqlx::query(AssertSqlSafe(sql.to_string())).fetch_one(raw);
    row.await.expect("a row").try_get(0).expect("a number")
}

async fn run(raw: &AnyPool, sql: &str) -> u64 {
    let done = sqlx::query(AssertSqlSafe(sql.to_string())).execute(raw);
    done.await.expect("it runs").rows_affected()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_transition_is_one_event_and_takes_effect_once_under_two_relays() {
    for database in DATABASES {
        let shop = shop(database, 2).await;
        let sale = shop.sale(GuardMode::Fence, 20).await;
        let effects = Arc::default();
        let stop = CancellationToken::new();
        let mut relays = tokio::task::JoinSet::new();
        for flow in &shop.flows {
            let notes: Arc<dyn Consumer> = Arc::new(Notes::new(&flow.app.store, &effects));
            let broker: Arc<dyn Broker> = Arc::new(InProcess::new(vec![notes]));
            relays.spawn(Arc::clone(flow).relay_through(broker, stop.clone()));
        }
        shop.crowd(&sale, 20).await;
        let flow = &shop.flows[0];
        let orders = flow.app.store.live_orders(&sale, None, 100).await;
        let orders = orders.expect("the database answers");
        for (n, order) in orders.iter().enumerate() {
            if n % 3 == 0 {
                let payment = Payment {
                    provider: "p".to_string(),
                    provider_txn: order.id.to_string(),
                };
                flow.pay(&order.id, &payment).await.expect("paid");
            } else if n % 3 == 1 {
                flow.cancel(&order.id).await.expect("cancelled");
            }
        }
        let raw = raw(flow).await;
        let unpublished = "SELECT COUNT(*) FROM outbox WHERE published_at IS NULL";
        until("all is published", || async {
            (number(&raw, unpublished).await == 0).then_some(())
        })
        .await;
        stop.cancel();
        relays.join_all().await;
        shop.books(&sale).await.assert_balanced(database);
        let written = number(&raw, "SELECT COUNT(*) FROM outbox").await;
        let created_and_ended = 20 + 7 + 7;
        assert_eq!(written, created_and_ended, "{database}");
        let effects = effects.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(effects.len() as i64, written, "{database}");
        assert!(effects.values().all(|n| *n == 1), "{database}: {effects:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_is_one_relays_alone_and_a_stale_one_settles_nothing() {
    for database in DATABASES {
        let shop = shop(database, 2).await;
        let sale = shop.sale(GuardMode::Fence, 10).await;
        shop.crowd(&sale, 10).await;
        let (one, other) = (&shop.flows[0].app.store, &shop.flows[1].app.store);
        let (a, b) = tokio::join!(one.claim_events(6, LEASE), other.claim_events(100, LEASE));
        let (a, b) = (a.expect("claimed"), b.expect("claimed"));
        let rows = |claimed: &flashlock::store::ClaimedEvents| -> Vec<i64> {
            claimed.rows.iter().map(|row| row.row).collect()
        };
        // Whoever came second may have skipped what was locked: it claims the rest now.
        let c = other.claim_events(100, LEASE).await.expect("claimed");
        let mut all = [rows(&a), rows(&b), rows(&c)].concat();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), a.rows.len() + b.rows.len() + c.rows.len());
        assert_eq!(all.len(), 10, "{database}");

        let raw = raw(&shop.flows[0]).await;
        run(&raw, "UPDATE outbox SET lease_until = 0").await;
        // One by one: any of them may be what ended the relay before.
        let mut later = Vec::new();
        for _ in 0..10 {
            let claimed = other.claim_events(100, LEASE).await.expect("claimed");
            assert_eq!(claimed.rows.len(), 1, "{database}");
            assert_eq!(claimed.rows[0].before, Before::Lapsed, "{database}");
            later.push(claimed);
        }
        let stale = one.settle_published(a.token, &rows(&a)).await;
        assert_eq!(stale.expect("an answer"), 0, "{database}");
        let failed: Vec<(i64, Undelivered)> = rows(&a)
            .into_iter()
            .map(|row| {
                let undelivered = Undelivered {
                    why: "late".to_string(),
                    next: NextTry::Never,
                };
                (row, undelivered)
            })
            .collect();
        let stale = one.settle_undelivered(a.token, &failed).await;
        assert_eq!(stale.expect("an answer"), 0, "{database}");
        for claimed in later {
            let settled = other.settle_published(claimed.token, &rows(&claimed)).await;
            assert_eq!(settled.expect("an answer"), 1, "{database}");
        }
        let again = one.claim_events(100, LEASE).await.expect("an answer");
        assert!(again.rows.is_empty(), "{database}: {again:?}");
    }
}

/// A payload that no relay can read, and a kind that its consumer refuses, before others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poison_event_dies_after_its_attempts_and_keeps_no_other_waiting() {
    for database in DATABASES {
        let shop = shop(database, 1).await;
        let flow = &shop.flows[0];
        let sale = shop.sale(GuardMode::Fence, 5).await;
        shop.crowd(&sale, 5).await;
        let order = flow.app.store.live_orders(&sale, None, 1).await;
        let order = order.expect("the database answers").remove(0);
        flow.cancel(&order.id).await.expect("cancelled");
        let raw = raw(flow).await;
        let first = number(&raw, "SELECT MIN(id) FROM outbox").await;
        let spoil = format!("UPDATE outbox SET payload = 'no json' WHERE id = {first}");
        assert_eq!(run(&raw, &spoil).await, 1);
        let effects = Arc::default();
        let mut notes = Notes::new(&flow.app.store, &effects);
        notes.refuses = Some(EventKind::Closed);
        let broker = InProcess::new(vec![Arc::new(notes)]);

        let batch = flow.relay_once(&broker).await.expect("relayed");
        let batch = batch.expect("some were due");
        assert_eq!((batch.published, batch.retried), (4, 2), "{database}");
        let mut pause = 0;
        for attempt in 2..=ATTEMPTS_MAX {
            let sql = format!("SELECT next_at - attempts FROM outbox WHERE id = {first}");
            let waits = number(&raw, &sql).await - clock::wall_ms();
            if attempt < 6 {
                assert!(waits > pause, "{database}: {waits} ms after {pause} ms");
                pause = waits;
            }
            assert_eq!(flow.relay_once(&broker).await.expect("an answer"), None);
            // The pause is over sooner than it would be.
            run(
                &raw,
                "UPDATE outbox SET next_at = 0 WHERE published_at IS NULL",
            )
            .await;
            let batch = flow.relay_once(&broker).await.expect("relayed");
            let batch = batch.expect("they were due");
            let dead = if attempt == ATTEMPTS_MAX { 2 } else { 0 };
            assert_eq!((batch.retried, batch.dead), (2 - dead, dead), "{database}");
        }
        let dead = flow.dead_events(0, 10).await.expect("listed");
        assert_eq!(dead.len(), 2, "{database}: {dead:?}");
        assert!(dead[0].last_error.contains("JSON"), "{dead:?}");
        assert!(dead[1].last_error.contains("it cannot be"), "{dead:?}");
        let page = flow.dead_events(dead[0].row, 1).await.expect("listed");
        assert_eq!(page, dead[1..], "{database}");

        let replay = async || {
            flow.replay_event(&dead[1].event_id)
                .await
                .expect("an answer")
        };
        assert_eq!(replay().await, Replayed::Due, "{database}");
        assert_eq!(replay().await, Replayed::NotDead, "{database}");
        let gone = flow.replay_event("no-such-event").await;
        assert_eq!(gone.expect("an answer"), Replayed::NoSuchEvent);
        let mended = InProcess::new(vec![Arc::new(Notes::new(&flow.app.store, &effects))]);
        let batch = flow.relay_once(&mended).await.expect("relayed");
        assert_eq!(batch.expect("it was due").published, 1, "{database}");
        let counts = flow.app.store.count_outbox().await.expect("counted");
        assert_eq!((counts.due, counts.dead), (0, 1), "{database}");
    }
}

/// A broker whose server is away.
#[derive(Debug)]
struct Away;

#[async_trait]
impl Broker for Away {
    async fn publish(&self, events: &[Event]) -> Vec<Result<(), Failure>> {
        vec![Err(Failure::Away("not there".to_string())); events.len()]
    }

    fn keeps_events(&self) -> bool {
        true
    }

    async fn waiting(&self, _consumer: &str) -> Result<Waiting, Failure> {
        Err(Failure::Away("not there".to_string()))
    }

    async fn deliver(&self, stop: CancellationToken) {
        stop.cancelled().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_makes_no_dead_letter() {
    let shop = shop("sqlite", 1).await;
    let flow = &shop.flows[0];
    let sale = shop.sale(GuardMode::Fence, 1).await;
    shop.crowd(&sale, 1).await;
    let raw = raw(flow).await;
    for _ in 0..ATTEMPTS_MAX * 2 {
        let batch = flow.relay_once(&Away).await.expect("relayed");
        let batch = batch.expect("it was due");
        assert_eq!((batch.waiting, batch.retried), (1, 0));
        run(&raw, "UPDATE outbox SET next_at = 0").await;
    }
    assert!(flow.dead_events(0, 10).await.expect("listed").is_empty());
    assert_eq!(number(&raw, "SELECT attempts FROM outbox").await, 0);
}

/// Over REST, with the service's own relay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_is_listed_and_replayed_over_rest() {
    let url = world().database("sqlite").await;
    let env = vec![("FLASHLOCK_DATABASE_URL".to_string(), url.clone())];
    let service = Service::start(&env).await;
    let api = &service.api;
    let sale = api
        .open(serde_json::json!({"strategy": "db-conditional-update", "skus": [{"sku": "phone", "stock": 5}]}))
        .await;
    let raw = AnyPool::connect(&url).await.expect("the database answers");
    assert_eq!(api.buy(&sale, "u", "k", &[("phone", 1)]).await.status, 201);
    let unpublished = "SELECT COUNT(*) FROM outbox WHERE published_at IS NULL";
    until("it is published", || async {
        (number(&raw, unpublished).await == 0).then_some(())
    })
    .await;
    // As if it had been given up at its last attempt.
    let spoil = format!(
        "UPDATE outbox SET payload = '', attempts = {}, published_at = NULL",
        ATTEMPTS_MAX - 1
    );
    assert_eq!(run(&raw, &spoil).await, 1);
    let dead = until("it is a dead letter", || async {
        let answer = api.get("/v1/outbox/dead").await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.body["dead"].as_array()?.first().cloned()
    })
    .await;
    assert_eq!(dead["kind"], "order.created", "{dead}");
    assert_eq!(dead["attempts"], ATTEMPTS_MAX, "{dead}");
    assert!(
        dead["last_error"]
            .as_str()
            .is_some_and(|e| e.contains("JSON"))
    );
    // Others go on.
    assert_eq!(api.buy(&sale, "v", "k", &[("phone", 1)]).await.status, 201);
    until("the other is published", || async {
        (number(&raw, unpublished).await == 1).then_some(())
    })
    .await;
    run(&raw, "UPDATE outbox SET payload = '{}' WHERE payload = ''").await;
    let path = format!(
        "/v1/outbox/dead/{}/replay",
        dead["id"].as_str().expect("an id")
    );
    let replayed = api.post(&path, Value::Null).await;
    assert_eq!(
        (replayed.status, &replayed.body["state"]),
        (200, &"due".into())
    );
    let again = api.post(&path, Value::Null).await;
    assert_eq!(
        (again.status, &again.body["state"]),
        (200, &"not-dead".into())
    );
    assert_eq!(again.headers["idempotent-replay"], "true");
    until("it is published", || async {
        (number(&raw, unpublished).await == 0).then_some(())
    })
    .await;
    let metrics = api.get("/metrics").await.body.to_string();
    for name in ["outbox_due", "outbox_dead ", "outbox_published_total"] {
        assert!(metrics.contains(&format!("flashlock_{name}")), "{metrics}");
    }
    let nothing = format!("/v1/outbox/dead/{}/replay", Uuid::nil());
    api.post(&nothing, Value::Null)
        .await
        .assert_problem(404, "not-found", "no event");
    api.get("/v1/outbox/dead?limit=0")
        .await
        .assert_problem(400, "invalid-request", "1 to 100");
    assert!(
        service.stop(Duration::from_secs(10)).await,
        "{}",
        service.log()
    );
}
