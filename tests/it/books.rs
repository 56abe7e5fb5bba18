//! Do the books of an activity balance? Read from the database alone, once it has come to rest.

use std::collections::{BTreeMap, BTreeSet};

use flashlock::ledger::Ledger;
use flashlock::order::OrderState;
use flashlock::sale::{ActivityId, Rid, Sku};
use flashlock::store::{FinalOrder, FinalState, Store};

/// The rows of one activity, and what they add up to.
#[derive(Debug)]
pub(crate) struct Books(pub(crate) FinalState);

impl Books {
    pub(crate) async fn read(store: &Store, activity: &str) -> Self {
        let id: ActivityId = activity.parse().expect("an activity id");
        Self(store.final_state(&id).await.expect("the database answers"))
    }

    /// Where the units of `sku` are.
    pub(crate) fn ledger(&self, sku: &str) -> Ledger {
        let sku: Sku = sku.parse().expect("a SKU");
        let row = self.0.skus.iter().find(|s| s.sku == sku);
        let row = row.unwrap_or_else(|| panic!("no {sku} in {self:?}"));
        let units = |state| {
            let of_state = self.0.orders.iter().filter(|o| o.state == state);
            of_state.map(|order| quantity(order, &sku)).sum()
        };
        Ledger {
            total: row.total,
            available: row.available,
            held: units(OrderState::PendingPayment),
            sold: units(OrderState::Paid),
            sku,
        }
    }

    /// Units sold beyond what there was, over all SKUs.
    pub(crate) fn oversold(&self) -> i64 {
        self.ledgers().map(|ledger| ledger.oversold()).sum()
    }

    /// The orders that hold stock.
    pub(crate) fn live(&self) -> impl Iterator<Item = &FinalOrder> {
        self.0.orders.iter().filter(|order| order.state.is_live())
    }

    /// Asserts everything that holds for every activity at rest, whatever was bought.
    #[track_caller]
    pub(crate) fn assert_balanced(&self, cell: &str) {
        let breaches = self.breaches();
        assert!(breaches.is_empty(), "{cell}: {breaches:#?}");
    }

    /// What breaks the law: stock against orders, ledger against orders, events against orders, and
    /// one live order per user.
    pub(crate) fn breaches(&self) -> Vec<String> {
        let mut breaches = Vec::new();
        for ledger in self.ledgers() {
            if let Err(breach) = ledger.balance() {
                breaches.push(format!("{ledger:?}: {breach:?}"));
            }
            let taken: i64 = self
                .0
                .ledger
                .iter()
                .filter(|row| row.sku == ledger.sku)
                .map(|row| row.taken)
                .sum();
            if taken != ledger.live() {
                breaches.push(format!("the stock ledger says {taken}: {ledger:?}"));
            }
        }
        let mut users = BTreeSet::new();
        for order in self.live() {
            if !users.insert(order.user.clone()) {
                breaches.push(format!("{} has two live orders", order.user));
            }
        }
        let mut events: BTreeMap<Rid, Vec<&str>> = BTreeMap::new();
        for row in &self.0.outbox {
            events.entry(row.rid).or_default().push(&row.kind);
        }
        for order in &self.0.orders {
            let announced = events.remove(&order.rid).unwrap_or_default();
            let expected: &[&str] = match order.state {
                OrderState::PendingPayment => &["order.created"],
                OrderState::Paid => &["order.created", "order.paid"],
                OrderState::Closed => &["order.created", "order.closed"],
                OrderState::Rejected => &["order.rejected"],
                OrderState::Abandoned => &["order.abandoned"],
            };
            if announced != expected {
                breaches.push(format!("{order:?} is announced by {announced:?}"));
            }
            let mut rows: Vec<(&Sku, i64)> = self
                .0
                .ledger
                .iter()
                .filter(|row| row.rid == order.rid)
                .map(|row| (&row.sku, row.taken))
                .collect();
            let lines = order.lines.iter().map(|line| (&line.sku, line.quantity));
            let mut expected: Vec<(&Sku, i64)> = match order.state {
                OrderState::PendingPayment | OrderState::Paid => lines.collect(),
                OrderState::Closed => lines.flat_map(|(sku, n)| [(sku, n), (sku, -n)]).collect(),
                OrderState::Rejected | OrderState::Abandoned => Vec::new(),
            };
            rows.sort();
            expected.sort();
            if rows != expected {
                breaches.push(format!("{order:?} has the ledger rows {rows:?}"));
            }
        }
        if !events.is_empty() {
            breaches.push(format!("events of no order: {events:?}"));
        }
        breaches
    }

    fn ledgers(&self) -> impl Iterator<Item = Ledger> {
        self.0.skus.iter().map(|row| self.ledger(row.sku.as_str()))
    }
}

/// Units of `sku` in the order.
pub(crate) fn quantity(order: &FinalOrder, sku: &Sku) -> i64 {
    order
        .lines
        .iter()
        .filter(|line| line.sku == *sku)
        .map(|line| line.quantity)
        .sum()
}
