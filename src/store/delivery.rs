//! Up to when has every published event had its effect? What has had none by then was lost with its broker.

use std::time::Duration;

use sqlx::Row;

use super::{Dialect, Store, StoreError, Tx, answered, query};
use crate::sale::StrategyName;

/// Published rows that one transaction looks at: some milliseconds, and at five a second more than is sold.
const PAGE: usize = 5_000;

/// The published events that one look is about, by when they were published: Unix milliseconds of
/// the database's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// Everything until then has had its effect.
    pub after_ms: i64,
    pub until_ms: i64,
}

/// What a look came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Looked {
    /// Rows that are due again.
    pub lost: u64,
    /// What is still to be looked at.
    pub rest: Option<Look>,
}

impl Store {
    /// Begins a look at what was published at least `age` ago. `None`: the last one, of whichever
    /// process, began less than `every` ago.
    pub async fn begin_look(
        &self,
        consumer: &str,
        every: Duration,
        age: Duration,
    ) -> Result<Option<Look>, StoreError> {
        let ms = |d: Duration| i64::try_from(d.as_millis()).unwrap_or(i64::MAX);
        let mut tx = self.begin().await?;
        let begun = tx.begin_look(consumer, ms(every)).await;
        match begun {
            Ok(None) => {
                tx.rollback().await;
                Ok(None)
            }
            Ok(Some(after_ms)) => {
                tx.commit().await?;
                let until_ms = self.now_ms().await?.saturating_sub(ms(age));
                Ok(Some(Look { after_ms, until_ms }))
            }
            Err(error) => {
                tx.rollback().await;
                Err(error)
            }
        }
    }

    /// Makes those events of a look due again that have had no effect at `consumer`, which is told
    /// of activities with one of these strategies. Looks at one page; at nothing when another
    /// process was faster.
    pub async fn return_lost(
        &self,
        consumer: &str,
        strategies: &[StrategyName],
        look: Look,
    ) -> Result<Looked, StoreError> {
        let mut tx = self.begin().await?;
        match tx.return_lost(consumer, strategies, look).await {
            Ok(looked) => {
                tx.commit().await?;
                Ok(looked)
            }
            Err(error) => {
                tx.rollback().await;
                Err(error)
            }
        }
    }
}

impl Tx {
    /// Until when everything was found to have had its effect; `None`: it is too early.
    async fn begin_look(
        &mut self,
        consumer: &str,
        every_ms: i64,
    ) -> Result<Option<i64>, StoreError> {
        let first = self.dialect.sql(&format!(
            "INSERT INTO delivery (consumer, checked_until, next_at) VALUES (?, 0, 0) {}",
            self.dialect.keep_the_first("consumer")
        ));
        self.execute(query(&first).bind(consumer.to_string()))
            .await?;
        let sql = self
            .dialect
            .sql("UPDATE delivery SET next_at = {now} + ? WHERE consumer = ? AND next_at <= {now}");
        let update = query(&sql).bind(every_ms).bind(consumer.to_string());
        if self.execute(update).await? == 0 {
            return Ok(None);
        }
        let sql = self
            .dialect
            .sql("SELECT checked_until FROM delivery WHERE consumer = ?");
        let select = query(&sql).bind(consumer.to_string());
        let row = answered(select.fetch_one(&mut *self.inner)).await?;
        Ok(Some(row.try_get("checked_until")?))
    }

    async fn return_lost(
        &mut self,
        consumer: &str,
        strategies: &[StrategyName],
        look: Look,
    ) -> Result<Looked, StoreError> {
        let sql = self.dialect.sql(&format!(
            "SELECT COUNT(*) AS n, MAX(page.published) AS last FROM \
             (SELECT published_at AS published FROM outbox WHERE published_at > ? AND published_at <= ? \
              ORDER BY published_at LIMIT {PAGE}) page"
        ));
        let select = query(&sql).bind(look.after_ms).bind(look.until_ms);
        let page = answered(select.fetch_one(&mut *self.inner)).await?;
        let (n, last): (i64, Option<i64>) = (page.try_get("n")?, page.try_get("last")?);
        let is_full = n >= PAGE as i64;
        let until_ms = match last {
            Some(last) if is_full => last,
            Some(_) | None => look.until_ms,
        };
        let sql = self
            .dialect
            .sql("UPDATE delivery SET checked_until = ? WHERE consumer = ? AND checked_until = ?");
        let checked = query(&sql)
            .bind(until_ms)
            .bind(consumer.to_string())
            .bind(look.after_ms);
        if self.execute(checked).await? == 0 && until_ms != look.after_ms {
            let (lost, rest) = (0, None);
            return Ok(Looked { lost, rest });
        }
        let mut lost = 0;
        let found = self.without_effect(consumer, strategies, look.after_ms, until_ms);
        for rows in found.await?.chunks(PAGE) {
            let sql = self.dialect.sql(&format!(
                "UPDATE outbox SET published_at = NULL, next_at = {{now}} \
                 WHERE published_at IS NOT NULL AND id IN ({})",
                Dialect::placeholders(rows.len())
            ));
            let update = rows.iter().fold(query(&sql), |update, id| update.bind(*id));
            lost += self.execute(update).await?;
        }
        let rest = is_full.then_some(Look {
            after_ms: until_ms,
            until_ms: look.until_ms,
        });
        Ok(Looked { lost, rest })
    }

    async fn without_effect(
        &mut self,
        consumer: &str,
        strategies: &[StrategyName],
        after_ms: i64,
        until_ms: i64,
    ) -> Result<Vec<i64>, StoreError> {
        if strategies.is_empty() {
            return Ok(Vec::new());
        }
        let sql = self.dialect.sql(&format!(
            "SELECT o.id AS id FROM outbox o JOIN activity a ON a.id = o.activity_id \
             LEFT JOIN inbox i ON i.consumer = ? AND i.event_id = o.event_id \
             WHERE o.published_at > ? AND o.published_at <= ? AND i.event_id IS NULL \
             AND a.strategy IN ({})",
            Dialect::placeholders(strategies.len())
        ));
        let mut select = query(&sql)
            .bind(consumer.to_string())
            .bind(after_ms)
            .bind(until_ms);
        for strategy in strategies {
            select = select.bind(strategy.to_string());
        }
        let rows = answered(select.fetch_all(&mut *self.inner)).await?;
        rows.iter().map(|row| Ok(row.try_get("id")?)).collect()
    }
}
