//! Who of a batch is served from what there is?

use std::collections::BTreeMap;

use super::Ending;
use crate::order::NewOrder;
use crate::sale::{Activity, Line, Sku};

/// The SKUs of `lines`, ascending, each once: the order in which every process touches the rows.
pub fn skus_of<'a>(lines: impl Iterator<Item = &'a Line>) -> Vec<Sku> {
    let mut skus: Vec<Sku> = lines.map(|line| line.sku.clone()).collect();
    skus.sort();
    skus.dedup();
    skus
}

/// The lines of all orders of a batch.
pub fn lines_of<'a>(batch: &'a [&'a NewOrder]) -> impl Iterator<Item = &'a Line> {
    batch.iter().flat_map(|order| &order.lines)
}

/// Gives each order of the batch what it wants while it lasts, in the order in which they came, and
/// moves `available` to what is left. One ending per order, and those that were served.
pub fn allot<'a>(
    activity: &Activity,
    batch: &[&'a NewOrder],
    available: &mut BTreeMap<Sku, i64>,
) -> (Vec<Ending>, Vec<&'a NewOrder>) {
    let mut endings = Vec::with_capacity(batch.len());
    let mut sold = Vec::with_capacity(batch.len());
    for order in batch {
        let short = order
            .lines
            .iter()
            .find_map(|line| match available.get(&line.sku) {
                None => Some(Ending::UnknownSku(line.sku.clone())),
                Some(left) if *left < line.quantity => Some(Ending::SoldOut {
                    sku: line.sku.clone(),
                    left: *left,
                }),
                Some(_) => None,
            });
        if let Some(short) = short {
            endings.push(short);
            continue;
        }
        for line in &order.lines {
            if let Some(left) = available.get_mut(&line.sku) {
                *left -= line.quantity;
            }
        }
        let first = order.lines.first();
        let left = first.and_then(|line| available.get(&line.sku));
        endings.push(Ending::Booked {
            order: Box::new(order.booked(activity)),
            left: left.copied().unwrap_or(0),
        });
        sold.push(*order);
    }
    (endings, sold)
}
