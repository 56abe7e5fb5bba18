//! The operator's side of a comparison: create, warm up, open, look.

use std::collections::BTreeMap;

use reqwest::{Client, RequestBuilder};
use serde::Deserialize;
use serde_json::{Value, json};

use super::plan::{LimitsMode, Plan};
use crate::sale::{ActivityId, CAPACITY_MAX, Watchdog};
use crate::strategy::{Kind, Strategy};

/// One service process, as an operator reaches it.
#[derive(Debug, Clone)]
pub struct Operator {
    client: Client,
    url: String,
}

/// Why a step did not happen.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("{step}: no answer: {source}")]
    NoAnswer {
        step: &'static str,
        #[source]
        source: reqwest::Error,
    },
    #[error("{step}: answered {status}: {body}")]
    Refused {
        step: &'static str,
        status: u16,
        body: String,
    },
    #[error("{step}: the answer cannot be read: {why}: {body}")]
    Unreadable {
        step: &'static str,
        why: String,
        body: String,
    },
}

/// An activity that is open.
#[derive(Debug, Clone, Deserialize)]
pub struct Opened {
    pub id: ActivityId,
    /// As the service set it.
    pub guard: String,
}

#[derive(Debug, Deserialize)]
struct StrategyList {
    strategies: Vec<StrategyRow>,
}

#[derive(Debug, Deserialize)]
struct StrategyRow {
    name: String,
    available: bool,
    #[serde(default)]
    unavailable_because: Option<String>,
}

// === impl Operator ===

impl Operator {
    pub fn of(client: &Client, url: &str) -> Self {
        Self {
            client: client.clone(),
            url: url.to_string(),
        }
    }

    /// Creates, warms up and opens a fresh activity of `stock` units.
    pub async fn open_activity(
        &self,
        plan: &Plan,
        strategy: Strategy,
        stock: i64,
    ) -> Result<Opened, ClientError> {
        let body = activity(plan, strategy, stock);
        let create = self.client.post(format!("{}/v1/activities", self.url));
        let created: Opened = read("create the activity", create.json(&body)).await?;
        let id = &created.id;
        let step = |name: &str| {
            self.client
                .post(format!("{}/v1/activities/{id}/{name}", self.url))
        };
        let _state: Value = read("warm up the activity", step("warm-up")).await?;
        let _state: Value = read("open the activity", step("open")).await?;
        Ok(created)
    }

    /// By strategy: why it cannot be used here, `None` when it can.
    pub async fn unavailable(&self) -> Result<BTreeMap<String, Option<String>>, ClientError> {
        let get = self.client.get(format!("{}/v1/strategies", self.url));
        let list: StrategyList = read("list the strategies", get).await?;
        let why = |row: StrategyRow| match row.available {
            true => (row.name, None),
            false => {
                let because = row.unavailable_because;
                (
                    row.name,
                    Some(because.unwrap_or_else(|| "the service does not say why".to_string())),
                )
            }
        };
        Ok(list.strategies.into_iter().map(why).collect())
    }
}

fn activity(plan: &Plan, strategy: Strategy, stock: i64) -> Value {
    let mut body = json!({
        "strategy": strategy.name().as_str(),
        "skus": [{"sku": Plan::sku().as_str(), "stock": stock}],
        "batch_max": plan.batch_max,
        "units_per_user_max": 1,
        "lock": {
            "ttl_ms": u64::try_from(Plan::LOCK_TTL.as_millis()).unwrap_or(u64::MAX),
            "wait_ms": u64::try_from(Plan::LOCK_WAIT.as_millis()).unwrap_or(u64::MAX),
            "watchdog": match Plan::WATCHDOG {
                Watchdog::On => "on",
                Watchdog::Off => "off",
            },
        },
    });
    if strategy.entry().kind == Kind::Lock {
        body["guard"] = plan.guard.as_str().into();
    }
    body["limits"] = match plan.limits {
        LimitsMode::On => limits(stock),
        // Said aloud: an activity that is not told has limits.
        LimitsMode::Off => Value::Null,
    };
    body
}

/// Twice the stock at once and then a trickle, as a shop would let in; three clicks a user.
fn limits(stock: i64) -> Value {
    json!({
        "per_user": {"capacity": 3, "per_s": 1.0},
        "activity": {"capacity": stock.saturating_mul(2).min(i64::from(CAPACITY_MAX)), "per_s": 50.0},
    })
}

async fn read<T: serde::de::DeserializeOwned>(
    step: &'static str,
    request: RequestBuilder,
) -> Result<T, ClientError> {
    let no_answer = |source| ClientError::NoAnswer { step, source };
    let answer = request.send().await.map_err(no_answer)?;
    let status = answer.status();
    let body = answer.text().await.map_err(no_answer)?;
    if !status.is_success() {
        return Err(ClientError::Refused {
            step,
            status: status.as_u16(),
            body,
        });
    }
    serde_json::from_str(&body).map_err(|error| ClientError::Unreadable {
        step,
        why: error.to_string(),
        body,
    })
}
