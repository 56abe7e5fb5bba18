//! Dead letters over REST: listed and replayed, for operators.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::auth::Operator;
use super::body::Name;
use super::error::{Kind, Problem, ProblemDetails};
use super::{Shared, replayed};
use crate::clock;
use crate::store::{DeadEvent, Replayed};

/// Dead letters of one page, unless asked for fewer.
const PAGE_MAX: i64 = 100;

/// Which page.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Page {
    /// `next` of the page before; the first page if it is left out.
    after: Option<i64>,
    /// Dead letters of this page: 1 to 100, 100 if it is left out.
    limit: Option<i64>,
}

/// An event that could not be delivered.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(super) struct DeadLetter {
    id: String,
    /// `order.created`, `order.paid`, `order.closed`, `order.rejected` or `order.abandoned`.
    kind: String,
    /// `<activity>.<reservation>`.
    order_id: String,
    /// As it is published.
    payload: String,
    attempts: i64,
    last_error: String,
    created_at: String,
    dead_at: String,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(super) struct DeadLetters {
    /// In the order in which they were written.
    dead: Vec<DeadLetter>,
    /// Where the next page begins; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<i64>,
}

/// What a replay came to.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(super) struct ReplayBody {
    id: String,
    /// `due`: it is delivered again. `not-dead`: it was replayed before, or never was a dead letter.
    state: &'static str,
}

/// Lists events that were given up after their attempts.
#[utoipa::path(get, path = "/v1/outbox/dead", tag = "outbox", params(Page),
    responses((status = 200, body = DeadLetters), (status = 400, body = ProblemDetails)))]
pub(super) async fn list(
    State(flow): Shared,
    _operator: Operator,
    page: Result<Query<Page>, QueryRejection>,
) -> Result<Json<DeadLetters>, Problem> {
    let Query(page) =
        page.map_err(|rejected| Problem::invalid(format!("the query is not good: {rejected}")))?;
    let limit = page.limit.unwrap_or(PAGE_MAX);
    if !(1..=PAGE_MAX).contains(&limit) {
        return Err(Problem::invalid(format!(
            "limit is {limit}; it must be 1 to {PAGE_MAX}"
        )));
    }
    // One more than asked for tells whether there is another page.
    let mut found = flow.dead_events(page.after.unwrap_or(0), limit + 1).await?;
    let more = found.len() as i64 > limit;
    if more {
        found.pop();
    }
    let next = found.last().filter(|_| more).map(|last| last.row);
    Ok(Json(DeadLetters {
        dead: found.into_iter().map(DeadLetter::from).collect(),
        next,
    }))
}

/// Lets a dead letter be delivered again. Safe to repeat.
#[utoipa::path(post, path = "/v1/outbox/dead/{id}/replay", tag = "outbox", params(("id" = String, Path)),
    responses((status = 200, body = ReplayBody), (status = 404, body = ProblemDetails)))]
pub(super) async fn replay(
    State(flow): Shared,
    _operator: Operator,
    Name(id): Name<Uuid>,
) -> Result<Response, Problem> {
    let id = id.to_string();
    match flow.replay_event(&id).await? {
        Replayed::Due => Ok(Json(ReplayBody { id, state: "due" }).into_response()),
        Replayed::NotDead => Ok(replayed(ReplayBody {
            id,
            state: "not-dead",
        })),
        Replayed::NoSuchEvent => Err(Problem::new(
            Kind::NotFound,
            format!("there is no event {id}; see /v1/outbox/dead"),
        )),
    }
}

// === impl DeadLetter ===

impl From<DeadEvent> for DeadLetter {
    fn from(event: DeadEvent) -> Self {
        Self {
            id: event.event_id,
            kind: event.kind,
            order_id: format!("{}.{}", event.activity, event.rid),
            payload: event.payload,
            attempts: event.attempts,
            last_error: event.last_error,
            created_at: clock::rfc3339(event.created_at_ms),
            dead_at: clock::rfc3339(event.dead_at_ms),
        }
    }
}
