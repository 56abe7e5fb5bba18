//! The law of stock: total = available + held + sold, for every SKU, in every store.

pub mod reconciled;

use crate::sale::Sku;

/// Where the units of one SKU are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ledger {
    pub sku: Sku,
    pub total: i64,
    /// Can still be sold.
    pub available: i64,
    /// In orders that wait for payment.
    pub held: i64,
    /// In paid orders.
    pub sold: i64,
}

/// How a ledger breaks the law.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Imbalance {
    /// More units are in live orders than the sale was given.
    Oversold { units: i64 },
    /// Units that are neither available nor in a live order (negative: counted twice).
    Lost { units: i64 },
    /// `available` is below zero or above `total`.
    OutOfRange { available: i64 },
}

// === impl Ledger ===

impl Ledger {
    pub fn live(&self) -> i64 {
        self.held + self.sold
    }

    pub fn oversold(&self) -> i64 {
        (self.live() - self.total).max(0)
    }

    /// `Ok` when the law holds; else the first breach, the gravest first.
    pub fn balance(&self) -> Result<(), Imbalance> {
        if self.oversold() > 0 {
            return Err(Imbalance::Oversold {
                units: self.oversold(),
            });
        }
        if self.available < 0 || self.available > self.total {
            return Err(Imbalance::OutOfRange {
                available: self.available,
            });
        }
        match self.total - self.available - self.live() {
            0 => Ok(()),
            units => Err(Imbalance::Lost { units }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(total: i64, available: i64, held: i64, sold: i64) -> Ledger {
        let sku = "S".parse().expect("a valid sku");
        Ledger {
            sku,
            total,
            available,
            held,
            sold,
        }
    }

    #[test]
    fn the_law_names_the_gravest_breach() {
        assert_eq!(ledger(10, 4, 5, 1).balance(), Ok(()));
        assert_eq!(
            ledger(10, 0, 11, 1).balance(),
            Err(Imbalance::Oversold { units: 2 })
        );
        assert_eq!(
            ledger(10, 3, 5, 1).balance(),
            Err(Imbalance::Lost { units: 1 })
        );
        assert_eq!(
            ledger(10, 5, 5, 1).balance(),
            Err(Imbalance::Lost { units: -1 })
        );
        assert_eq!(
            ledger(10, -1, 5, 1).balance(),
            Err(Imbalance::OutOfRange { available: -1 })
        );
    }
}
