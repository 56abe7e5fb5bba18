//! The stock rows: read, claimed with a fencing token, written absolutely or by condition.

use std::collections::{BTreeMap, BTreeSet};

use sqlx::Row;

use super::activity::text;
use super::{Contended, Dialect, Store, StoreError, Tx, answered, query};
use crate::sale::{ActivityId, Sku};

/// Where the fencing token of a grant comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fence {
    /// The lock's own, higher with every grant.
    Token(i64),
    /// The lock has none; the store issues it with the claim (`fence = fence + 1`).
    IssuedByStore,
}

/// The right to write one SKU's stock: the pair that the claim left in the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    pub generation: i64,
    pub fence: i64,
}

/// What a claim is made with.
#[derive(Debug, Clone, Copy)]
struct Bid {
    generation: i64,
    fence: Fence,
    before: Before,
}

/// Whether the same grant has claimed the same SKU before.
#[derive(Debug, Clone, Copy)]
enum Before {
    Not,
    Claimed,
}

/// What a claim found, SKU by SKU, after it had been committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimedSku {
    pub claim: Claim,
    pub available: i64,
}

/// Whether a claim was let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claimed {
    Mine(BTreeMap<Sku, ClaimedSku>),
    /// A younger claim is there: its pair.
    FencedOut(Claim),
    /// The activity has no such SKU.
    UnknownSku(Sku),
}

impl Store {
    /// What is available now: a statement of its own, before any writing transaction.
    pub async fn available(&self, activity: &ActivityId) -> Result<BTreeMap<Sku, i64>, StoreError> {
        let sql = self
            .dialect
            .sql("SELECT sku, available FROM activity_sku WHERE activity_id = ?");
        let rows = self.rows(query(&sql).bind(activity.to_string())).await?;
        rows.iter()
            .map(|row| Ok((text(row, "sku")?, row.try_get("available")?)))
            .collect()
    }

    /// Claims `skus` (ascending) for the holder of `fence` and reads them. The claim is committed
    /// on its own, before the read: an older holder that wakes up finds its pair gone, and a paused
    /// claimer blocks nobody.
    ///
    /// `mine` are the SKUs that this grant has claimed already, and is added to. Only for those may the
    /// token be there: found anywhere else it is another grant's, from a source that lost its last
    /// steps in a failover and issued the same token again.
    ///
    /// Source: M. Kleppmann, "How to do distributed locking" (2016), on fencing tokens.
    pub async fn claim(
        &self,
        activity: &ActivityId,
        skus: &[Sku],
        generation: i64,
        fence: Fence,
        mine: &mut BTreeSet<Sku>,
    ) -> Result<Claimed, StoreError> {
        let mut found = BTreeMap::new();
        for sku in skus {
            let bid = Bid {
                generation,
                fence,
                before: match mine.contains(sku) {
                    true => Before::Claimed,
                    false => Before::Not,
                },
            };
            let claimed = match self.dialect {
                Dialect::Sqlite | Dialect::Postgres => {
                    self.claim_returning(activity, sku, bid).await?
                }
                Dialect::Mysql => self.claim_and_read(activity, sku, bid).await?,
            };
            match claimed {
                Some(claimed) => {
                    mine.insert(sku.clone());
                    found.insert(sku.clone(), claimed);
                }
                None => {
                    return Ok(match self.fence_of(activity, sku).await? {
                        Some(younger) => Claimed::FencedOut(younger),
                        None => Claimed::UnknownSku(sku.clone()),
                    });
                }
            }
        }
        Ok(Claimed::Mine(found))
    }

    async fn claim_returning(
        &self,
        activity: &ActivityId,
        sku: &Sku,
        bid: Bid,
    ) -> Result<Option<ClaimedSku>, StoreError> {
        let sql = self.dialect.sql(&format!(
            "{} RETURNING fence_generation, fence, available",
            claim_sql(bid)
        ));
        let update = bind_claim(&sql, activity, sku, bid);
        let _permit = self.permit(&self.permits).await?;
        let _writer = match self.dialect {
            Dialect::Sqlite => Some(self.permit(&self.writer).await?),
            Dialect::Postgres | Dialect::Mysql => None,
        };
        let row = answered(update.fetch_optional(&self.claims)).await?;
        row.map(|row| claimed_sku(&row)).transpose()
    }

    /// MySQL has no `UPDATE … RETURNING`: two statements, each committed on its own when the token
    /// is the lock's; in one transaction when the store issues it, since the read must find the
    /// token that this very update made.
    async fn claim_and_read(
        &self,
        activity: &ActivityId,
        sku: &Sku,
        bid: Bid,
    ) -> Result<Option<ClaimedSku>, StoreError> {
        let update_sql = self.dialect.sql(claim_sql(bid));
        let read_sql = self.dialect.sql(
            "SELECT fence_generation, fence, available FROM activity_sku WHERE activity_id = ? AND sku = ?",
        );
        let update = bind_claim(&update_sql, activity, sku, bid);
        let read = query(&read_sql)
            .bind(activity.to_string())
            .bind(sku.to_string());
        match bid.fence {
            Fence::Token(token) => {
                let _permit = self.permit(&self.permits).await?;
                let mut connection = answered(self.claims.acquire()).await?;
                if answered(update.execute(&mut *connection))
                    .await?
                    .rows_affected()
                    == 0
                {
                    return Ok(None);
                }
                let row = answered(read.fetch_one(&mut *connection)).await?;
                let found = claimed_sku(&row)?;
                let mine = Claim {
                    generation: bid.generation,
                    fence: token,
                };
                Ok((found.claim == mine).then_some(found))
            }
            Fence::IssuedByStore => {
                let mut tx = self.begin().await?;
                if tx.execute(update).await? == 0 {
                    tx.rollback().await;
                    return Ok(None);
                }
                let row = answered(read.fetch_one(&mut *tx.inner)).await?;
                let found = claimed_sku(&row)?;
                tx.commit().await?;
                Ok(Some(found))
            }
        }
    }

    /// The youngest claim of a SKU.
    pub async fn fence_of(
        &self,
        activity: &ActivityId,
        sku: &Sku,
    ) -> Result<Option<Claim>, StoreError> {
        let sql = self.dialect.sql(
            "SELECT fence_generation, fence FROM activity_sku WHERE activity_id = ? AND sku = ?",
        );
        let select = query(&sql).bind(activity.to_string()).bind(sku.to_string());
        let rows = self.rows(select).await?;
        rows.first()
            .map(|row| {
                Ok(Claim {
                    generation: row.try_get("fence_generation")?,
                    fence: row.try_get("fence")?,
                })
            })
            .transpose()
    }
}

impl Tx {
    /// Writes what the holder has computed, whatever is there: the lock is what protects this.
    /// With a claim, only while the claim is the youngest. Answers whether the row was written.
    ///
    /// # Errors
    /// `Retry(Superseded)`: the strategy that sells in this transaction has been taken out of
    /// service, so that it cannot be counted on any lock to keep others out; `take` and `give_back`
    /// alike.
    pub async fn write_available(
        &mut self,
        activity: &ActivityId,
        sku: &Sku,
        available: i64,
        claim: Option<Claim>,
    ) -> Result<bool, StoreError> {
        let rows = match claim {
            None => {
                let sql = self.dialect.sql(
                    "UPDATE activity_sku SET available = ?, version = version + 1 \
                     WHERE activity_id = ? AND sku = ? AND fence_generation <= ?",
                );
                let update = query(&sql)
                    .bind(available)
                    .bind(activity.to_string())
                    .bind(sku.to_string())
                    .bind(self.generation_max());
                let rows = self.execute(update).await?;
                self.written(activity, sku, rows).await?;
                rows
            }
            Some(claim) => {
                let sql = self.dialect.sql(
                    "UPDATE activity_sku SET available = ?, version = version + 1 \
                     WHERE activity_id = ? AND sku = ? AND fence_generation = ? AND fence = ?",
                );
                let update = query(&sql)
                    .bind(available)
                    .bind(activity.to_string())
                    .bind(sku.to_string())
                    .bind(claim.generation)
                    .bind(claim.fence);
                self.execute(update).await?
            }
        };
        Ok(rows == 1)
    }

    /// What is available of one SKU, whose row nobody else writes until this transaction ends:
    /// `SELECT … FOR UPDATE`. SQLite has no such clause and needs none: a transaction that writes
    /// was begun with `BEGIN IMMEDIATE`, and is the only one.
    ///
    /// # Errors
    /// `Retry` when another transaction has the row for longer than a lock is waited for (3 s).
    pub async fn available_for_update(
        &mut self,
        activity: &ActivityId,
        sku: &Sku,
    ) -> Result<Option<i64>, StoreError> {
        let lock = match self.dialect {
            Dialect::Sqlite => "",
            Dialect::Postgres | Dialect::Mysql => " FOR UPDATE",
        };
        self.read_available(activity, sku, lock).await
    }

    /// Takes `quantity` if that many are left, in one atomic statement. What is left after it;
    /// `None` when it was too little, and nothing was taken.
    pub async fn take(
        &mut self,
        activity: &ActivityId,
        sku: &Sku,
        quantity: i64,
    ) -> Result<Option<i64>, StoreError> {
        const TAKE: &str = "UPDATE activity_sku SET available = available - ?, version = version + 1 \
             WHERE activity_id = ? AND sku = ? AND available >= ? AND fence_generation <= ?";
        let sql = match self.dialect {
            Dialect::Sqlite | Dialect::Postgres => {
                self.dialect.sql(&format!("{TAKE} RETURNING available"))
            }
            Dialect::Mysql => self.dialect.sql(TAKE),
        };
        let update = query(&sql)
            .bind(quantity)
            .bind(activity.to_string())
            .bind(sku.to_string())
            .bind(quantity)
            .bind(self.generation_max());
        let left = match self.dialect {
            Dialect::Sqlite | Dialect::Postgres => {
                let row = answered(update.fetch_optional(&mut *self.inner)).await?;
                row.map(|row| row.try_get("available")).transpose()?
            }
            Dialect::Mysql => match self.execute(update).await? {
                1 => self.available(activity, sku).await?,
                _none => None,
            },
        };
        let rows = u64::from(left.is_some());
        self.written(activity, sku, rows).await?;
        Ok(left)
    }

    /// Gives `quantity` back, in one atomic statement; the row's CHECK refuses more than the total.
    pub async fn give_back(
        &mut self,
        activity: &ActivityId,
        sku: &Sku,
        quantity: i64,
    ) -> Result<bool, StoreError> {
        let sql = self.dialect.sql(
            "UPDATE activity_sku SET available = available + ?, version = version + 1 \
             WHERE activity_id = ? AND sku = ? AND fence_generation <= ?",
        );
        let update = query(&sql)
            .bind(quantity)
            .bind(activity.to_string())
            .bind(sku.to_string())
            .bind(self.generation_max());
        let rows = self.execute(update).await?;
        self.written(activity, sku, rows).await?;
        Ok(rows == 1)
    }

    /// The youngest generation whose stock rows this transaction may write.
    pub(super) fn generation_max(&self) -> i64 {
        self.under.unwrap_or(i64::MAX)
    }

    /// Tells a stock row that was not written because of a younger generation from one that had too
    /// little. The row's own generation decides, not the activity's: raising it waits for whoever
    /// is writing the row, so nothing slips in between.
    pub(super) async fn written(
        &mut self,
        activity: &ActivityId,
        sku: &Sku,
        rows: u64,
    ) -> Result<(), StoreError> {
        let Some(under) = self.under.filter(|_| rows == 0) else {
            return Ok(());
        };
        let sql = self
            .dialect
            .sql("SELECT fence_generation FROM activity_sku WHERE activity_id = ? AND sku = ?");
        let select = query(&sql).bind(activity.to_string()).bind(sku.to_string());
        let row = answered(select.fetch_optional(&mut *self.inner)).await?;
        let there: Option<i64> = row.map(|row| row.try_get(0)).transpose()?;
        match there {
            Some(there) if there > under => Err(StoreError::Retry(Contended::Superseded)),
            Some(_) | None => Ok(()),
        }
    }

    /// What is available of one SKU, as this transaction sees it. No row is locked.
    pub async fn available(
        &mut self,
        activity: &ActivityId,
        sku: &Sku,
    ) -> Result<Option<i64>, StoreError> {
        self.read_available(activity, sku, "").await
    }

    async fn read_available(
        &mut self,
        activity: &ActivityId,
        sku: &Sku,
        lock: &str,
    ) -> Result<Option<i64>, StoreError> {
        let sql = self.dialect.sql(&format!(
            "SELECT available FROM activity_sku WHERE activity_id = ? AND sku = ?{lock}"
        ));
        let select = query(&sql).bind(activity.to_string()).bind(sku.to_string());
        let row = answered(select.fetch_optional(&mut *self.inner)).await?;
        Ok(row.map(|row| row.try_get("available")).transpose()?)
    }
}

fn claim_sql(bid: Bid) -> &'static str {
    match (bid.fence, bid.before) {
        (Fence::Token(_), Before::Not) => {
            "UPDATE activity_sku SET fence_generation = ?, fence = ? \
             WHERE activity_id = ? AND sku = ? AND (fence_generation, fence) < (?, ?)"
        }
        (Fence::Token(_), Before::Claimed) => {
            "UPDATE activity_sku SET fence_generation = ?, fence = ? \
             WHERE activity_id = ? AND sku = ? AND (fence_generation, fence) <= (?, ?)"
        }
        // `fence` first: MySQL evaluates assignments from left to right.
        (Fence::IssuedByStore, Before::Not | Before::Claimed) => {
            "UPDATE activity_sku SET fence = CASE WHEN fence_generation = ? THEN fence + 1 ELSE 1 END, \
             fence_generation = ? WHERE activity_id = ? AND sku = ? AND fence_generation <= ?"
        }
    }
}

fn bind_claim<'q>(
    sql: &'q str,
    activity: &ActivityId,
    sku: &Sku,
    bid: Bid,
) -> sqlx::query::Query<'q, sqlx::Any, sqlx::any::AnyArguments> {
    let generation = bid.generation;
    match bid.fence {
        Fence::Token(token) => query(sql)
            .bind(generation)
            .bind(token)
            .bind(activity.to_string())
            .bind(sku.to_string())
            .bind(generation)
            .bind(token),
        Fence::IssuedByStore => query(sql)
            .bind(generation)
            .bind(generation)
            .bind(activity.to_string())
            .bind(sku.to_string())
            .bind(generation),
    }
}

fn claimed_sku(row: &sqlx::any::AnyRow) -> Result<ClaimedSku, StoreError> {
    Ok(ClaimedSku {
        claim: Claim {
            generation: row.try_get("fence_generation")?,
            fence: row.try_get("fence")?,
        },
        available: row.try_get("available")?,
    })
}
