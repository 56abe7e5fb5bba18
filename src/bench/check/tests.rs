//! Does the checker see each planted fault, by the property that is meant to see it, and nothing in
//! a good sale?

use proptest::prelude::*;

use super::*;
use crate::order::OrderState;
use crate::sale::Line;
use crate::store::{FinalSku, LedgerRow, OutboxRow};

/// A sale that can be judged, and tampered with.
#[derive(Debug, Clone)]
struct Sale {
    activity: ActivityId,
    database: Reading<FinalState>,
    gate: Reading<GateState>,
    acknowledged: BTreeSet<String>,
    asked: Asked,
}

impl Sale {
    /// `bought` units, one order each, of `total`; `turned_away` more buyers asked.
    fn good(total: i64, bought: &[i64], turned_away: usize) -> Self {
        let activity: ActivityId = "a1".parse().expect("an id");
        let sku: Sku = "S".parse().expect("a sku");
        let mut state = FinalState::default();
        let mut asked = Asked::new();
        let mut acknowledged = BTreeSet::new();
        let mut live = 0;
        for (n, quantity) in bought.iter().copied().enumerate() {
            let (user, key) = (format!("u{n}"), format!("k{n}"));
            let id: UserId = user.parse().expect("a user");
            let rid = Rid::of(&activity, &id, &key.parse().expect("a key"));
            let line = Line {
                sku: sku.clone(),
                quantity,
            };
            state.orders.push(FinalOrder {
                rid,
                user: id,
                state: OrderState::PendingPayment,
                lines: vec![line],
            });
            state.ledger.push(LedgerRow {
                rid,
                sku: sku.clone(),
                taken: quantity,
            });
            state.outbox.push(OutboxRow {
                rid,
                kind: CREATED.to_string(),
            });
            acknowledged.insert(format!("{activity}.{rid}"));
            asked.insert((user, key));
            live += quantity;
        }
        for n in 0..turned_away {
            asked.insert((format!("late{n}"), format!("k{n}")));
        }
        state.skus.push(FinalSku {
            sku: sku.clone(),
            total,
            available: total - live,
        });
        let gate = GateState {
            skus: vec![GateSku {
                sku,
                total: Some(total),
                stock: Some(total - live),
                pending: Some(0),
                committed: Some(live),
            }],
            holds: 0,
        };
        Self {
            activity,
            database: Reading::Read(state),
            gate: Reading::Read(gate),
            acknowledged,
            asked,
        }
    }

    fn database(&mut self) -> &mut FinalState {
        match &mut self.database {
            Reading::Read(state) => state,
            Reading::NotUsed | Reading::Failed(_) => panic!("a good sale was read"),
        }
    }

    fn gate(&mut self) -> &mut GateState {
        match &mut self.gate {
            Reading::Read(state) => state,
            Reading::NotUsed | Reading::Failed(_) => panic!("a good sale was read"),
        }
    }

    /// Moves the gate's counters of the one SKU.
    fn gate_moves(&mut self, total: i64, stock: i64, committed: i64) {
        let add = |count: &mut Option<i64>, n: i64| *count = count.map(|c| c + n);
        let sku = &mut self.gate().skus[0];
        add(&mut sku.total, total);
        add(&mut sku.stock, stock);
        add(&mut sku.committed, committed);
    }

    fn judged(&self) -> Safety {
        judge(&Evidence {
            activity: &self.activity,
            database: &self.database,
            gate: &self.gate,
            acknowledged: &self.acknowledged,
            asked: &self.asked,
        })
    }
}

fn caught(safety: &Safety) -> Vec<&str> {
    safety
        .findings
        .iter()
        .filter(|f| f.verdict == Verdict::Violated)
        .map(|f| f.property.as_str())
        .collect()
}

proptest! {
    #[test]
    fn a_good_sale_holds(
        bought in prop::collection::vec(1i64..4, 0..30),
        left in 0i64..20,
        turned_away in 0usize..20,
    ) {
        let total = bought.iter().sum::<i64>() + left + 1;
        let safety = Sale::good(total, &bought, turned_away).judged();
        prop_assert_eq!(safety.verdict, Verdict::Ok, "{:?}", safety.findings);
        prop_assert_eq!(safety.findings.len(), 5);
    }

    #[test]
    fn any_unit_too_many_is_oversold(total in 1i64..20, extra in 1i64..5) {
        let bought = vec![1; usize::try_from(total + extra).expect("small")];
        let mut sale = Sale::good(total, &bought, 0);
        // The database's own CHECK keeps this at zero while orders go on.
        sale.database().skus[0].available = 0;
        let safety = sale.judged();
        prop_assert_eq!(safety.oversold, extra);
        prop_assert!(caught(&safety).contains(&"S1"));
    }
}

/// What is planted, who must see it, and how.
type Planted = (&'static str, &'static [&'static str], fn(&mut Sale));

const PLANTED: &[Planted] = &[
    (
        "a lost update: one order more than available says",
        &["S2"],
        |s| {
            s.database().skus[0].available += 1;
            s.gate_moves(0, 1, -1);
        },
    ),
    ("a ledger row is missing", &["S2"], |s| {
        s.database().ledger.pop();
    }),
    ("a doubled restock", &["S2"], |s| {
        let mut row = s.database().ledger[0].clone();
        row.taken = -row.taken;
        s.database().ledger.push(row);
    }),
    (
        "a unit left in the gate that the database has sold",
        &["S2"],
        |s| {
            s.gate_moves(0, 1, -1);
        },
    ),
    ("the gate's own sum is off", &["S2"], |s| {
        s.gate_moves(0, 0, 1)
    }),
    ("a hold that nobody settled", &["S2"], |s| {
        s.gate().holds = 1
    }),
    ("a counter that the gate lost", &["S2"], |s| {
        s.gate().skus[0].stock = None
    }),
    ("a SKU that the gate lost", &["S2"], |s| {
        s.gate().skus.clear()
    }),
    ("a second live order of one user", &["S3", "S5"], |s| {
        s.database().orders[1].user = s.database().orders[0].user.clone();
    }),
    (
        "an acknowledged order that is gone",
        &["S2", "S4", "S5"],
        |s| {
            s.database().orders.pop();
        },
    ),
    (
        "an acknowledged order that was abandoned",
        &["S2", "S4"],
        |s| {
            s.database().orders[0].state = OrderState::Abandoned;
        },
    ),
    ("an acknowledged order of another activity", &["S4"], |s| {
        let id = s.acknowledged.pop_first().expect("an order");
        s.acknowledged.insert(id.replace("a1.", "a2."));
    }),
    ("an order that nobody asked for", &["S5"], |s| {
        s.asked.retain(|(user, _)| user != "u0");
    }),
    ("an outbox row is missing", &["S5"], |s| {
        s.database().outbox.pop();
    }),
    ("an outbox row twice", &["S5"], |s| {
        let row = s.database().outbox[0].clone();
        s.database().outbox.push(row);
    }),
    ("the same oversell in every count", &["S1"], |s| {
        let n = s.database().skus[0].available + 1;
        s.database().skus[0].total -= n;
        s.database().skus[0].available = -1;
        s.gate_moves(-n, -n, 0);
    }),
];

#[test]
fn every_planted_fault_is_caught_by_the_property_that_is_meant_to() {
    for (what, by, plant) in PLANTED {
        let mut sale = Sale::good(10, &[1, 2, 1], 3);
        plant(&mut sale);
        let safety = sale.judged();
        assert_eq!(caught(&safety), *by, "{what}: {:?}", safety.findings);
        assert_eq!(safety.verdict, Verdict::Violated, "{what}");
    }
}

#[test]
fn a_store_that_was_not_read_is_unknown_and_never_ok() {
    let mut sale = Sale::good(10, &[1, 1], 0);
    sale.gate = Reading::Failed("connection refused".to_string());
    let safety = sale.judged();
    assert_eq!(safety.verdict, Verdict::Unknown);
    assert!(safety.findings[1].says.contains("connection refused"));

    sale.database = Reading::Failed("gone".to_string());
    let safety = sale.judged();
    assert!(
        safety
            .findings
            .iter()
            .all(|f| f.verdict == Verdict::Unknown)
    );
}

#[test]
fn an_empty_database_proves_nothing() {
    let mut sale = Sale::good(10, &[], 3);
    *sale.database() = FinalState::default();
    sale.gate = Reading::NotUsed;
    assert_eq!(sale.judged().verdict, Verdict::Unknown);
}

#[test]
fn a_breach_in_the_database_outweighs_a_gate_that_cannot_be_read() {
    let mut sale = Sale::good(10, &[1, 1], 0);
    sale.database().skus[0].available -= 1;
    sale.gate = Reading::Failed("gone".to_string());
    assert_eq!(sale.judged().verdict, Verdict::Violated);
}

#[test]
fn a_peak_in_the_ledger_is_not_proof_once_units_were_given_back() {
    let mut sale = Sale::good(2, &[1, 1], 0);
    let state = sale.database();
    let (mut took, mut gave) = (state.ledger[0].clone(), state.ledger[0].clone());
    (took.taken, gave.taken) = (1, -1);
    state.ledger.extend([took, gave]);
    assert_eq!(sale.judged().findings[0].verdict, Verdict::Unknown);
}
