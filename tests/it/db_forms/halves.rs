//! Is a batch still booked by few transactions when one of its orders spoils it?

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use flashlock::deduct::{Conditional, Deduct, Ending, Form, Sold, Transacted};
use flashlock::lock::Lock;
use flashlock::order::{CloseReason, Fingerprint, NewOrder, Order};
use flashlock::sale::{Activity, ActivityId, GuardMode};
use flashlock::store::{Store, StoreError};
use flashlock::strategy::no_lock::NoLock;

use super::shop;
use crate::embedded::purchase;
use crate::world::DATABASES;

const BATCH: usize = 64;
/// Both halves of each part that holds the spoilt order, down to that order alone, and the whole.
const TRANSACTIONS_MAX: usize = 2 * 6 + 1;

/// Books as the service does, and counts the transactions.
#[derive(Debug, Clone, Default)]
struct Counted(Arc<AtomicUsize>);

#[async_trait]
impl Form for Counted {
    async fn sell(
        &self,
        store: &Store,
        activity: &Activity,
        batch: &[&NewOrder],
    ) -> Result<Sold, StoreError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Conditional.sell(store, activity, batch).await
    }

    async fn give_back(
        &self,
        store: &Store,
        activity: &Activity,
        orders: &[Order],
        why: CloseReason,
    ) -> Result<Vec<bool>, StoreError> {
        Conditional.give_back(store, activity, orders, why).await
    }
}

fn order(sale: &ActivityId, user: &str, admitted_at_ms: i64) -> NewOrder {
    let bought = purchase(sale, user);
    NewOrder {
        rid: bought.rid(),
        user: bought.user.clone(),
        fingerprint: Fingerprint::of(&bought),
        lines: bought.lines().to_vec(),
        admitted_at_ms,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_that_is_there_already_costs_its_batch_few_transactions() {
    for database in DATABASES {
        let shop = shop(database, Conditional).await;
        let sale = shop.sale(GuardMode::None, 100).await;
        let store = &shop.flows[0].app.store;
        let activity = store.activity(&sale).await.expect("read").expect("there");
        let now_ms = store.now_ms().await.expect("the database answers");
        let form = Counted::default();
        let strategy = Transacted::new(form.clone(), NoLock.guarantees(), store.clone());
        let batch: Vec<NewOrder> = (0..BATCH)
            .map(|n| order(&sale, &format!("u-{n}"), now_ms))
            .collect();
        let spoilt = BATCH / 3;
        let before = strategy.deduct(&activity, &batch[spoilt..=spoilt]).await;
        assert!(matches!(before[0], Ok(Ending::Booked { .. })), "{before:?}");
        form.0.store(0, Ordering::SeqCst);
        let endings = strategy.deduct(&activity, &batch).await;
        assert_eq!(endings.len(), BATCH, "{database}");
        for (n, (ending, order)) in endings.iter().zip(&batch).enumerate() {
            match ending {
                Ok(Ending::Booked { order: booked, .. }) if n != spoilt => {
                    assert_eq!(booked.id.rid, order.rid, "{database}: {n}");
                }
                Ok(Ending::Replayed(there)) if n == spoilt => {
                    assert_eq!(there.id.rid, order.rid, "{database}: {n}");
                }
                other => panic!("{database}: {n}: {other:?}"),
            }
        }
        let transactions = form.0.load(Ordering::SeqCst);
        assert!(
            transactions <= TRANSACTIONS_MAX,
            "{database}: {transactions}"
        );
        shop.books(&sale).await.assert_balanced(database);
    }
}
