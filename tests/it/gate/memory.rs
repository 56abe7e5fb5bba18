//! A database in memory, for the gate's own tests only: what the gate does with its answers.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use flashlock::deduct::{Closed, DeductError};
use flashlock::gate::{Truth, TruthError};
use flashlock::ledger::Ledger;
use flashlock::order::{CloseReason, NewOrder, Order, OrderState};
use flashlock::sale::{Activity, ActivityId, Allocation, OrderId, Rid, Sku};
use flashlock::store::{Rejection, Tombstone};
use flashlock::strategy::redis_lua::{Book, BookOutcome};

#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) activity: Mutex<Activity>,
    pub(crate) orders: Mutex<BTreeMap<Rid, Order>>,
    /// The next booking is carried out and its answer lost.
    pub(crate) lose_answer: AtomicBool,
    /// Closed between the first and the second look of a rebuild.
    pub(crate) close_meanwhile: Mutex<Option<Rid>>,
    /// Reservations whose outcome was unknown.
    pub(crate) noted: Mutex<Vec<Rid>>,
}

impl Memory {
    pub(crate) fn new(activity: Activity) -> Self {
        Self {
            activity: Mutex::new(activity),
            orders: Mutex::default(),
            lose_answer: AtomicBool::new(false),
            close_meanwhile: Mutex::default(),
            noted: Mutex::default(),
        }
    }

    pub(crate) fn now(&self) -> Activity {
        self.activity.lock().expect("a lock").clone()
    }

    pub(crate) fn put(&self, order: Order) {
        let mut orders = self.orders.lock().expect("a lock");
        orders.insert(order.id.rid, order);
    }

    fn book_one(&self, activity: &Activity, new: &NewOrder) -> BookOutcome {
        let mut orders = self.orders.lock().expect("a lock");
        if let Some(there) = orders.get(&new.rid) {
            return BookOutcome::AlreadyThere(there.clone());
        }
        let live: Vec<&Order> = orders.values().filter(|o| o.state.is_live()).collect();
        if let Some(other) = live.iter().find(|o| o.user == new.user) {
            return BookOutcome::AlreadyPurchased(other.id.clone());
        }
        for line in &new.lines {
            let taken: i64 = live
                .iter()
                .flat_map(|o| &o.lines)
                .filter(|l| l.sku == line.sku)
                .map(|l| l.quantity)
                .sum();
            let left = activity.total(&line.sku).unwrap_or(0) - taken;
            if left < line.quantity {
                return BookOutcome::SoldOut {
                    sku: line.sku.clone(),
                    left,
                };
            }
        }
        let order = super::order(activity, new, OrderState::PendingPayment);
        orders.insert(new.rid, order.clone());
        BookOutcome::Booked(order)
    }
}

#[async_trait]
impl Truth for Memory {
    async fn activity(&self, _id: &ActivityId) -> Result<Option<Activity>, TruthError> {
        Ok(Some(self.now()))
    }

    async fn elect(
        &self,
        _id: &ActivityId,
        expect_epoch: i64,
        run_id: &str,
    ) -> Result<bool, TruthError> {
        let mut activity = self.activity.lock().expect("a lock");
        if activity.gate_epoch != expect_epoch {
            return Ok(false);
        }
        activity.gate_epoch += 1;
        activity.gate_run_id = run_id.to_string();
        Ok(true)
    }

    async fn live_orders(
        &self,
        _id: &ActivityId,
        after: Option<Rid>,
        limit: usize,
    ) -> Result<Vec<Order>, TruthError> {
        let mut orders = self.orders.lock().expect("a lock");
        let page = orders
            .values()
            .filter(|o| o.state.is_live() && after.is_none_or(|a| o.id.rid > a))
            .take(limit)
            .cloned()
            .collect();
        if let Some(rid) = self.close_meanwhile.lock().expect("a lock").take() {
            orders.get_mut(&rid).expect("an order").state = OrderState::Closed;
        }
        Ok(page)
    }

    async fn states(
        &self,
        _id: &ActivityId,
        rids: &[Rid],
    ) -> Result<Vec<(Rid, OrderState)>, TruthError> {
        let orders = self.orders.lock().expect("a lock");
        let state = |rid: &Rid| orders.get(rid).map(|o| (*rid, o.state));
        Ok(rids.iter().filter_map(state).collect())
    }

    async fn abandon(&self, id: &ActivityId, dead: &[Tombstone]) -> Result<(), TruthError> {
        let mut orders = self.orders.lock().expect("a lock");
        for tombstone in dead {
            orders.entry(tombstone.rid).or_insert_with(|| Order {
                id: OrderId {
                    activity: id.clone(),
                    rid: tombstone.rid,
                },
                user: tombstone.user.clone(),
                state: OrderState::Abandoned,
                close_reason: None,
                fingerprint: tombstone.fingerprint.clone(),
                lines: Vec::new(),
                created_at_ms: 0,
                pay_deadline_ms: 0,
            });
        }
        Ok(())
    }

    async fn compensate(&self, _id: &ActivityId, unknown: &[Tombstone]) -> Result<(), TruthError> {
        let mut noted = self.noted.lock().expect("a lock");
        noted.extend(unknown.iter().map(|t| t.rid));
        Ok(())
    }

    async fn ledgers(&self, _id: &ActivityId) -> Result<Vec<Ledger>, TruthError> {
        let orders = self.orders.lock().expect("a lock");
        let units = |sku: &Sku, state: OrderState| -> i64 {
            let of = orders.values().filter(|o| o.state == state);
            let lines = of.flat_map(|o| &o.lines).filter(|l| l.sku == *sku);
            lines.map(|l| l.quantity).sum()
        };
        let of = |a: &Allocation| {
            let held = units(&a.sku, OrderState::PendingPayment);
            let sold = units(&a.sku, OrderState::Paid);
            Ledger {
                sku: a.sku.clone(),
                total: a.total,
                available: a.total - held - sold,
                held,
                sold,
            }
        };
        Ok(self.now().skus.iter().map(of).collect())
    }
}

#[async_trait]
impl Book for Memory {
    async fn ready(&self) -> Result<(), DeductError> {
        Ok(())
    }

    async fn book(
        &self,
        activity: &Activity,
        orders: &[NewOrder],
    ) -> Vec<Result<BookOutcome, DeductError>> {
        let lose = self.lose_answer.swap(false, Ordering::SeqCst);
        let book = |new| match self.book_one(activity, new) {
            _ if lose => Err(DeductError::Unknown {
                server: "database",
                reason: "the answer to COMMIT was lost".to_string(),
            }),
            outcome => Ok(outcome),
        };
        orders.iter().map(book).collect()
    }

    async fn reject(
        &self,
        activity: &Activity,
        rejected: &[Rejection<'_>],
    ) -> Result<Vec<Order>, DeductError> {
        let mut orders = self.orders.lock().expect("a lock");
        let row = |r: &Rejection<'_>| {
            let new = || super::order(activity, r.order, OrderState::Rejected);
            orders.entry(r.order.rid).or_insert_with(new).clone()
        };
        Ok(rejected.iter().map(row).collect())
    }

    async fn now_ms(&self) -> Result<i64, DeductError> {
        Ok(0)
    }

    async fn find(&self, _id: &ActivityId, rids: &[Rid]) -> Result<Vec<Order>, DeductError> {
        let orders = self.orders.lock().expect("a lock");
        Ok(rids.iter().filter_map(|r| orders.get(r).cloned()).collect())
    }

    async fn close(
        &self,
        _activity: &Activity,
        ids: &[OrderId],
        why: CloseReason,
    ) -> Vec<Result<Closed, DeductError>> {
        let mut orders = self.orders.lock().expect("a lock");
        ids.iter()
            .map(|id| match orders.get_mut(&id.rid) {
                None => Ok(Closed::NotFound),
                Some(o) if o.state == OrderState::PendingPayment => {
                    o.state = OrderState::Closed;
                    o.close_reason = Some(why);
                    Ok(Closed::Closed)
                }
                Some(o) => Ok(Closed::NotPending(o.clone())),
            })
            .collect()
    }
}
