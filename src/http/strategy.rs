//! The strategies over REST: what each guarantees, and whether it is available here.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use serde::Serialize;

use super::Shared;
use super::auth::Reader;
use super::error::Problem;
use crate::app::Opened;
use crate::lock::Guarantees;
use crate::strategy::{Need, Strategy};

/// Longest wait for a strategy's servers to say that they are there.
const ASK: Duration = Duration::from_secs(2);

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(super) struct StrategyList {
    strategies: Vec<StrategyBody>,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
struct StrategyBody {
    name: String,
    /// Its servers are configured and set up safely, and answered now.
    available: bool,
    /// What is missing, and what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    unavailable_because: Option<String>,
    /// What its servers' settings put at risk, and what to do.
    warnings: Vec<String>,
    /// It is there to be seen failing, and refused unless the service was started with --allow-control.
    control: bool,
    /// What must be configured beside the database.
    needs: &'static [Need],
    /// Absent where the strategy's servers are not configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    guarantees: Option<Guarantees>,
}

/// Lists the strategies.
#[utoipa::path(get, path = "/v1/strategies", tag = "strategies",
    responses((status = 200, body = StrategyList)))]
pub(super) async fn list(
    State(flow): Shared,
    _reader: Reader,
) -> Result<Json<StrategyList>, Problem> {
    let asked = Strategy::all().iter().map(async |strategy| {
        let name = strategy.name();
        let (because, guarantees) = match flow.app.strategy(&name) {
            Opened::Missing(why) => (Some(why), None),
            Opened::Here(opened) => {
                let because = match tokio::time::timeout(ASK, opened.ready()).await {
                    Ok(Ok(())) => None,
                    Ok(Err(error)) => Some(error.to_string()),
                    Err(_elapsed) => Some(format!(
                        "its server did not answer within {} s",
                        ASK.as_secs()
                    )),
                };
                (because, Some(opened.guarantees()))
            }
        };
        StrategyBody {
            name: name.to_string(),
            available: because.is_none(),
            unavailable_because: because,
            warnings: flow.app.setup.warnings(*strategy),
            control: strategy.is_control(),
            needs: strategy.entry().needs,
            guarantees,
        }
    });
    let strategies = futures::future::join_all(asked).await;
    Ok(Json(StrategyList { strategies }))
}
