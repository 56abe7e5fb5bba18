//! S2 across stores: does the gate in Redis agree with the database?

use std::collections::BTreeMap;

use super::Sums;
use crate::sale::Sku;

/// What the gate in Redis says about one SKU; `None` where a counter is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateSku {
    pub sku: Sku,
    pub total: Option<i64>,
    pub stock: Option<i64>,
    pub pending: Option<i64>,
    pub committed: Option<i64>,
}

/// The gate after it has come to rest.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GateState {
    pub skus: Vec<GateSku>,
    /// Holds that are neither committed nor released.
    pub holds: i64,
}

/// Every way in which the gate differs from the database, or from itself.
pub(super) fn breaks(sums: &BTreeMap<Sku, Sums>, gate: &GateState) -> Vec<String> {
    let mut broken = Vec::new();
    for sku in sums.keys() {
        if !gate.skus.iter().any(|g| g.sku == *sku) {
            broken.push(format!("{sku}: the gate does not know it"));
        }
    }
    for g in &gate.skus {
        let sku = &g.sku;
        let Some(sum) = sums.get(sku) else {
            broken.push(format!("{sku}: only the gate knows it"));
            continue;
        };
        let (Some(total), Some(stock), Some(pending), Some(committed)) =
            (g.total, g.stock, g.pending, g.committed)
        else {
            broken.push(format!("{sku}: the gate has lost a counter: {g:?}"));
            continue;
        };
        if total != sum.total {
            broken.push(format!(
                "{sku}: the gate's total is {total}, the database's {}",
                sum.total
            ));
        }
        if stock + pending + committed != total {
            broken.push(format!(
                "{sku}: in the gate {stock} stock + {pending} pending + {committed} committed is not {total}"
            ));
        }
        if stock != sum.available {
            broken.push(format!(
                "{sku}: {stock} in the gate's stock, {} available in the database",
                sum.available
            ));
        }
        if pending != 0 {
            broken.push(format!("{sku}: {pending} units still pending in the gate"));
        }
    }
    if gate.holds != 0 {
        broken.push(format!("{} holds were never settled", gate.holds));
    }
    broken
}
