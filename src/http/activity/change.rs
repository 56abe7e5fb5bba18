//! A request to sell an activity in another way.

use axum::Json;
use axum::extract::State;
use serde::Deserialize;

use super::ActivityBody;
use super::advice::Asked;
use super::create::{batch_max, booking, guard, long_enough};
use crate::flow::life::{Changed, Selling};
use crate::http::Shared;
use crate::http::auth::Operator;
use crate::http::body::{Body, Name};
use crate::http::error::{Kind, Problem, ProblemDetails};
use crate::sale::ActivityId;
use crate::strategy::Strategy;

/// How an activity is to be sold; what is left out is as it would be for a new activity.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct SetStrategy {
    /// A name of `GET /v1/strategies`.
    #[schema(example = "redis-lua")]
    strategy: String,
    /// `none`, `lease` or `fence` (the default); for lock strategies only.
    guard: Option<String>,
    /// `sync` (the default) or `async`, the latter for `redis-lua` only.
    booking: Option<String>,
    /// Purchases that may share one critical section: 1 (the default) to 256.
    batch_max: Option<i64>,
}

/// Sells a DRAFT, READY or PAUSED activity in another way; it is a DRAFT again, to be warmed up and
/// opened. Orders stand. Safe to repeat.
#[utoipa::path(put, path = "/v1/activities/{id}/strategy", tag = "activities", params(("id" = String, Path)),
    request_body = SetStrategy,
    responses((status = 200, body = ActivityBody), (status = 400, body = ProblemDetails),
        (status = 409, body = ProblemDetails), (status = 422, body = ProblemDetails)))]
pub(in crate::http) async fn set_strategy(
    State(flow): Shared,
    _operator: Operator,
    Name(id): Name<ActivityId>,
    Body(body): Body<SetStrategy>,
) -> Result<Json<ActivityBody>, Problem> {
    let strategy = Strategy::parse(&body.strategy)?;
    let selling = body.into_selling(strategy, flow.app.config.allow_control)?;
    long_enough(strategy, &flow.view(&id).await?.activity.lock)?;
    match flow.set_strategy(&id, &selling).await? {
        Changed::Done(view) => Ok(Json(ActivityBody::from(*view))),
        Changed::NotAllowed(state) => Err(Problem::state(state, Asked::SetStrategy)),
        Changed::NotHere(why) => Err(Problem::new(
            Kind::StrategyNotConfigured,
            format!(
                "{} is not available here: {why}; nothing was changed",
                selling.strategy
            ),
        )
        .with("strategy", selling.strategy.as_str())),
    }
}

// === impl SetStrategy ===

impl SetStrategy {
    fn into_selling(self, strategy: Strategy, allow_control: bool) -> Result<Selling, Problem> {
        Ok(Selling {
            strategy: strategy.name(),
            guard: guard(strategy, self.guard.as_deref(), allow_control)?,
            booking: booking(strategy, self.booking.as_deref())?,
            batch_max: batch_max(self.batch_max)?,
        })
    }
}
