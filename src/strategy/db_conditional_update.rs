//! Strategy `db-conditional-update`: `UPDATE … SET available = available - n WHERE available >= n`.

use super::{Entry, Kind, Missing, Servers};
use crate::deduct::{Conditional, Deduct};
use crate::lock::Guarantees;

pub(super) const ENTRY: Entry = Entry {
    kind: Kind::Transaction,
    needs: &[],
    open,
};

const GUARANTEES: Guarantees = Guarantees {
    protects_by: "one UPDATE that takes the units only where that many are left",
    stock_lives_in: "database",
    fair: false,
    fenced: true,
    survives_failover: true,
    frees_after_crash: "transaction",
    note: "no lease that could end too early: the row lock lives and dies with the transaction; \
           survives a failover as far as the database's commits do",
};

fn open(servers: &Servers) -> Result<Box<dyn Deduct>, Missing> {
    Ok(servers.transacted(Conditional, GUARANTEES))
}
