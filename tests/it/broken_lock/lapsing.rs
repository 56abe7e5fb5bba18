//! Broken: the lease ends by itself, at any point of the work. Honoured, nothing is written after
//! that; trusted, the work goes on.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use flashlock::clock::{self, Instant};
use flashlock::deduct::{Contention, Ending};
use flashlock::flow::close::Cancelled;
use flashlock::flow::{Answer, FlowError};
use flashlock::keys::LockKey;
use flashlock::lock::{AcquireError, Fence, Guarantees, Guard, Lock, Released, Terms};
use flashlock::sale::{ActivityId, GuardMode, OrderId};
use flashlock::strategy::no_lock::NoLock;

use crate::embedded::{Shop, purchase};
use crate::world::DATABASES;

/// Far more looks at its lease than a holder takes.
const LOOKS_MAX: i64 = 50;

/// A lease that ends after its holder has looked at it so many times.
#[derive(Debug, Clone, Default)]
struct Lapsing {
    looks_left: Arc<AtomicI64>,
    token: Arc<AtomicI64>,
}

#[derive(Debug)]
struct LapsingGuard {
    looks_left: Arc<AtomicI64>,
    token: i64,
}

impl Lock for Lapsing {
    type Guard = LapsingGuard;

    fn guarantees(&self) -> Guarantees {
        NoLock.guarantees()
    }

    async fn ready(&self) -> Result<(), AcquireError> {
        Ok(())
    }

    async fn acquire(&self, _key: &LockKey, _terms: &Terms) -> Result<LapsingGuard, AcquireError> {
        let token = self.token.fetch_add(1, Ordering::SeqCst) + 1;
        Ok(LapsingGuard {
            looks_left: Arc::clone(&self.looks_left),
            token,
        })
    }
}

impl Guard for LapsingGuard {
    fn fence(&self) -> Fence {
        Fence::Token(self.token)
    }

    fn valid_until(&self) -> Instant {
        clock::now()
    }

    async fn lost(&self) {
        if self.looks_left.load(Ordering::SeqCst) > 0 {
            pending().await
        }
    }

    fn is_held(&self) -> bool {
        self.looks_left.fetch_sub(1, Ordering::SeqCst) > 0
    }

    async fn release(self) -> Released {
        Released::NotOwner
    }
}

struct Lapse {
    shop: Shop,
    lock: Lapsing,
    sale: ActivityId,
    name: String,
}

impl Lapse {
    async fn new(database: &str, guard: GuardMode) -> Self {
        let lock = Lapsing::default();
        let shop = Shop::open(database, 1, |_, _| lock.clone()).await;
        let sale = shop.sale(guard, 3).await;
        Self {
            shop,
            lock,
            sale,
            name: format!("guard {guard} on {database}"),
        }
    }

    async fn buy(&self, looks: i64) -> Ending {
        self.lock.looks_left.store(looks, Ordering::SeqCst);
        match self.shop.flows[0]
            .purchase(purchase(&self.sale, "alice"))
            .await
        {
            Ok(Answer::Ended(ending)) => ending,
            other => panic!("{}: {other:?}", self.name),
        }
    }

    async fn cancel(&self, order: &OrderId, looks: i64) -> Result<Cancelled, FlowError> {
        self.lock.looks_left.store(looks, Ordering::SeqCst);
        self.shop.flows[0].cancel(order).await
    }

    /// Available units and orders, once the books balance.
    async fn state(&self) -> (i64, usize) {
        let books = self.shop.books(&self.sale).await;
        books.assert_balanced(&self.name);
        (books.ledger("phone").available, books.0.orders.len())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_written_after_a_lease_that_is_honoured() {
    for database in DATABASES {
        for guard in [GuardMode::Lease, GuardMode::Fence] {
            let lapse = Lapse::new(database, guard).await;
            let mut looks = 0;
            let order = loop {
                match lapse.buy(looks).await {
                    Ending::Busy(Contention::LeaseLost) => {}
                    Ending::Booked { order, .. } => break *order,
                    other => panic!("{}: {other:?}", lapse.name),
                }
                assert_eq!(
                    lapse.state().await,
                    (3, 0),
                    "{} after {looks} looks",
                    lapse.name
                );
                looks += 1;
                assert!(looks < LOOKS_MAX, "{}: never booked", lapse.name);
            };
            // Before the first write, before the stock row, before the commit.
            assert!(looks >= 3, "{}: looked only {looks} times", lapse.name);
            assert_eq!(lapse.state().await, (2, 1), "{}", lapse.name);

            let mut looks = 0;
            while lapse.cancel(&order.id, looks).await.is_err() {
                assert_eq!(
                    lapse.state().await,
                    (2, 1),
                    "{} after {looks} looks",
                    lapse.name
                );
                looks += 1;
                assert!(looks < LOOKS_MAX, "{}: never closed", lapse.name);
            }
            assert!(looks >= 3, "{}: looked only {looks} times", lapse.name);
            assert_eq!(lapse.state().await, (3, 1), "{}", lapse.name);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_is_trusted_writes_all_the_same() {
    for database in DATABASES {
        let lapse = Lapse::new(database, GuardMode::None).await;
        let ending = lapse.buy(0).await;
        assert!(
            matches!(ending, Ending::Booked { .. }),
            "{}: {ending:?}",
            lapse.name
        );
        assert_eq!(lapse.state().await, (2, 1), "{}", lapse.name);
    }
}
