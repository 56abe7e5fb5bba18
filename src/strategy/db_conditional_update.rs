//! Strategy `db-conditional-update`: `UPDATE … SET available = available - n WHERE available >= n`.

use async_trait::async_trait;

use super::{Entry, Kind, Missing, Servers};
use crate::deduct::{self, Closed, Deduct, DeductError, Ending};
use crate::lock::Guarantees;
use crate::order::{CloseReason, NewOrder};
use crate::sale::{Activity, OrderId};
use crate::store::Store;

/// The database's own row lock is all there is.
#[derive(Debug)]
pub struct DbConditionalUpdate {
    store: Store,
}

pub(super) const ENTRY: Entry = Entry {
    kind: Kind::Atomic,
    needs: &[],
    open,
};

fn open(servers: &Servers) -> Result<Box<dyn Deduct>, Missing> {
    Ok(Box::new(DbConditionalUpdate {
        store: servers.store.clone(),
    }))
}

#[async_trait]
impl Deduct for DbConditionalUpdate {
    fn guarantees(&self) -> Guarantees {
        Guarantees {
            protects_by: "one UPDATE that takes the units only where that many are left",
            stock_lives_in: "database",
            fair: false,
            fenced: true,
            survives_failover: true,
            frees_after_crash: "transaction",
            note: "no lease that could end too early: the row lock lives and dies with the transaction; \
                   survives a failover as far as the database's commits do",
        }
    }

    async fn ready(&self) -> Result<(), DeductError> {
        self.store.now_ms().await?;
        Ok(())
    }

    async fn deduct(
        &self,
        activity: &Activity,
        batch: &[NewOrder],
    ) -> Vec<Result<Ending, DeductError>> {
        deduct::book(&self.store, activity, batch).await
    }

    async fn close(
        &self,
        activity: &Activity,
        orders: &[OrderId],
        why: CloseReason,
    ) -> Vec<Result<Closed, DeductError>> {
        deduct::close(&self.store, activity, orders, why).await
    }
}
