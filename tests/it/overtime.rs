//! A purchase that takes longer than a buyer is kept: the buyer is answered, and it goes on to its end.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use flashlock::app::{App, Opened};
use flashlock::clock;
use flashlock::config::Config;
use flashlock::deduct::{Closed, Deduct, DeductError, Ending};
use flashlock::flow::{Answer, DEDUCT_MAX, Flow, FlowError};
use flashlock::lock::Guarantees;
use flashlock::order::{CloseReason, NewOrder};
use flashlock::sale::{Activity, GuardMode, OrderId, StrategyName};
use tokio::sync::Semaphore;

use crate::embedded::{activity, purchase};
use crate::world::world;

/// Longer than anything here takes on a loaded machine, beyond the bound.
const SOON: Duration = Duration::from_secs(30);

/// A way to sell that stands still until it is let go on.
#[derive(Debug)]
struct Standing {
    inner: Arc<dyn Deduct>,
    go_on: Arc<Semaphore>,
}

#[async_trait]
impl Deduct for Standing {
    fn guarantees(&self) -> Guarantees {
        self.inner.guarantees()
    }

    async fn ready(&self) -> Result<(), DeductError> {
        self.inner.ready().await
    }

    async fn deduct(
        &self,
        activity: &Activity,
        batch: &[NewOrder],
    ) -> Vec<Result<Ending, DeductError>> {
        let let_go = self.go_on.acquire().await.expect("it is not closed");
        let_go.forget();
        self.inner.deduct(activity, batch).await
    }

    async fn close(
        &self,
        activity: &Activity,
        orders: &[OrderId],
        why: CloseReason,
    ) -> Vec<Result<Closed, DeductError>> {
        self.inner.close(activity, orders, why).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_buyer_is_answered_in_time_and_the_purchase_goes_on_to_its_end() {
    let config = Config {
        database_url: world().database("sqlite").await,
        ..Config::default()
    };
    let app = App::open(config).await.expect("the database answers");
    let name = StrategyName::new("db-conditional-update");
    let Opened::Here(inner) = app.strategy(&name) else {
        panic!("it needs nothing");
    };
    let go_on = Arc::new(Semaphore::new(0));
    let standing = Standing {
        inner,
        go_on: Arc::clone(&go_on),
    };
    let flow = Flow::new(app.with_strategy(name.clone(), Arc::new(standing)));
    let mut sale = activity(GuardMode::None, 5);
    sale.strategy = name;
    sale.lock.wait_ms = 1;
    flow.create(&sale).await.expect("a new activity");
    flow.warm_up(&sale.id).await.expect("warmed up");
    flow.open(&sale.id).await.expect("opened");

    let begun = clock::now();
    let alice = purchase(&sale.id, "alice");
    let answer = tokio::time::timeout(DEDUCT_MAX + SOON, flow.purchase(alice.clone())).await;
    let answer = answer.expect("the buyer is answered");
    assert!(begun.elapsed() >= DEDUCT_MAX, "{:?}", begun.elapsed());
    let Err(FlowError::Deduct(DeductError::Unknown { server, reason })) = answer else {
        panic!("it is not known whether it will be sold: {answer:?}");
    };
    assert_eq!(server, "service");
    assert!(reason.contains("longer than 10 s"), "{reason}");

    go_on.add_permits(1);
    let deadline = clock::now() + SOON;
    let order = loop {
        let found = flow.app.store.order(alice.rid()).await;
        if let Some(order) = found.expect("the database answers") {
            break order;
        }
        assert!(clock::now() < deadline, "it did not go on to its end");
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    // The same key finds out.
    let again = flow.purchase(alice).await.expect("an answer");
    let Answer::Ended(Ending::Replayed(replayed)) = again else {
        panic!("{again:?}");
    };
    assert_eq!(replayed.id, order.id);
}
