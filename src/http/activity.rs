//! Activities over REST: create, list, read, warm up, open, pause, close.

pub(super) mod advice;
pub(super) mod change;
mod create;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::auth::{Operator, Reader};
use super::body::{Body, Name};
use super::error::{Problem, ProblemDetails};
use super::{Shared, created};
use crate::clock;
use crate::flow::activity::{ActivityView, Moved};
use crate::ledger::Ledger;
use crate::sale::{Activity, ActivityId, Limits, Sku};
use advice::Asked;
use create::CreateActivity;

/// An activity as it stands.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(super) struct ActivityBody {
    id: String,
    state: &'static str,
    strategy: String,
    guard: &'static str,
    batch_max: i64,
    booking: &'static str,
    opens_at: String,
    closes_at: String,
    pay_window_s: i64,
    units_per_user_max: i64,
    lock: LockBody,
    #[schema(value_type = Object)]
    limits: Limits,
    skus: Vec<SkuBody>,
    /// While it is PAUSING or CLOSING: what that waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    draining: Option<DrainingBody>,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
struct DrainingBody {
    /// Reservations that wait for their booking; null while their server does not answer.
    in_flight: Option<i64>,
    /// The others are waited for by an end alone.
    unpaid_orders: i64,
    /// Events that are not delivered yet; dead letters are not counted.
    undelivered_events: i64,
    unresolved_reservations: i64,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
struct LockBody {
    ttl_ms: i64,
    wait_ms: i64,
    watchdog: &'static str,
}

/// Where the units of one SKU are: total = available + held + sold.
#[derive(Debug, Serialize, utoipa::ToSchema)]
struct SkuBody {
    sku: String,
    total: i64,
    /// Absent in the list of activities, as are the next two.
    #[serde(skip_serializing_if = "Option::is_none")]
    available: Option<i64>,
    /// In orders that wait for payment.
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<i64>,
    /// In paid orders.
    #[serde(skip_serializing_if = "Option::is_none")]
    sold: Option<i64>,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(super) struct ActivityList {
    /// The newest first, at most 1,000.
    activities: Vec<ActivityBody>,
}

/// Creates an activity, in state DRAFT.
#[utoipa::path(post, path = "/v1/activities", tag = "activities", request_body = CreateActivity,
    responses((status = 201, body = ActivityBody), (status = 400, body = ProblemDetails)))]
pub(super) async fn create(
    State(flow): Shared,
    _operator: Operator,
    Body(body): Body<CreateActivity>,
) -> Result<Response, Problem> {
    let now_ms = flow
        .app
        .store
        .now_ms()
        .await
        .map_err(crate::flow::FlowError::from)?;
    let activity = body.into_activity(now_ms, flow.app.config.allow_control)?;
    let view = flow.create(&activity).await?;
    let body = ActivityBody::from(view);
    let location = format!("/v1/activities/{}", body.id);
    Ok(created(&location, body))
}

/// Lists activities.
#[utoipa::path(get, path = "/v1/activities", tag = "activities",
    responses((status = 200, body = ActivityList)))]
pub(super) async fn list(
    State(flow): Shared,
    _reader: Reader,
) -> Result<Json<ActivityList>, Problem> {
    let activities = flow.list().await?;
    Ok(Json(ActivityList {
        activities: activities
            .iter()
            .map(|a| ActivityBody::of(a, None))
            .collect(),
    }))
}

/// Reads an activity, with where its units are.
#[utoipa::path(get, path = "/v1/activities/{id}", tag = "activities", params(("id" = String, Path)),
    responses((status = 200, body = ActivityBody), (status = 404, body = ProblemDetails)))]
pub(super) async fn read(
    State(flow): Shared,
    _reader: Reader,
    Name(id): Name<ActivityId>,
) -> Result<Json<ActivityBody>, Problem> {
    Ok(Json(flow.view(&id).await?.into()))
}

/// Puts the stock where the strategy sells from. Safe to repeat.
#[utoipa::path(post, path = "/v1/activities/{id}/warm-up", tag = "activities", params(("id" = String, Path)),
    responses((status = 200, body = ActivityBody), (status = 409, body = ProblemDetails)))]
pub(super) async fn warm_up(
    State(flow): Shared,
    _operator: Operator,
    Name(id): Name<ActivityId>,
) -> Result<Response, Problem> {
    moved(flow.warm_up(&id).await?, Asked::WarmUp)
}

/// Lets buyers in, from `opens_at` on. Safe to repeat.
#[utoipa::path(post, path = "/v1/activities/{id}/open", tag = "activities", params(("id" = String, Path)),
    responses((status = 200, body = ActivityBody), (status = 409, body = ProblemDetails)))]
pub(super) async fn open(
    State(flow): Shared,
    _operator: Operator,
    Name(id): Name<ActivityId>,
) -> Result<Response, Problem> {
    moved(flow.open(&id).await?, Asked::Open)
}

/// Lets nobody in for a while; orders may be paid and cancelled. PAUSED once nothing is on its way,
/// PAUSING until then. Safe to repeat.
#[utoipa::path(post, path = "/v1/activities/{id}/pause", tag = "activities", params(("id" = String, Path)),
    responses((status = 200, body = ActivityBody), (status = 409, body = ProblemDetails)))]
pub(super) async fn pause(
    State(flow): Shared,
    _operator: Operator,
    Name(id): Name<ActivityId>,
) -> Result<Response, Problem> {
    moved(flow.pause(&id).await?, Asked::Pause)
}

/// Lets no further buyer in. Safe to repeat.
#[utoipa::path(post, path = "/v1/activities/{id}/close", tag = "activities", params(("id" = String, Path)),
    responses((status = 200, body = ActivityBody), (status = 409, body = ProblemDetails)))]
pub(super) async fn close(
    State(flow): Shared,
    _operator: Operator,
    Name(id): Name<ActivityId>,
) -> Result<Response, Problem> {
    moved(flow.close(&id).await?, Asked::Close)
}

fn moved(moved: Moved, asked: Asked) -> Result<Response, Problem> {
    match moved {
        Moved::Done(view) => Ok(Json(ActivityBody::from(*view)).into_response()),
        Moved::NotAllowed(state) => Err(Problem::state(state, asked)),
    }
}

// === impl ActivityBody ===

impl ActivityBody {
    fn of(activity: &Activity, ledgers: Option<&[Ledger]>) -> Self {
        let ledger = |sku: &Sku| ledgers.and_then(|all| all.iter().find(|l| l.sku == *sku));
        Self {
            id: activity.id.to_string(),
            state: activity.state.as_str(),
            strategy: activity.strategy.to_string(),
            guard: activity.guard.as_str(),
            batch_max: activity.batch_max,
            booking: activity.booking.as_str(),
            opens_at: clock::rfc3339(activity.opens_at_ms),
            closes_at: clock::rfc3339(activity.closes_at_ms),
            pay_window_s: activity.pay_window_s,
            units_per_user_max: activity.units_per_user_max,
            lock: LockBody {
                ttl_ms: activity.lock.ttl_ms,
                wait_ms: activity.lock.wait_ms,
                watchdog: activity.lock.watchdog.as_str(),
            },
            limits: activity.limits,
            draining: None,
            skus: activity
                .skus
                .iter()
                .map(|allocation| SkuBody {
                    sku: allocation.sku.to_string(),
                    total: allocation.total,
                    available: ledger(&allocation.sku).map(|l| l.available),
                    held: ledger(&allocation.sku).map(|l| l.held),
                    sold: ledger(&allocation.sku).map(|l| l.sold),
                })
                .collect(),
        }
    }
}

impl From<ActivityView> for ActivityBody {
    fn from(view: ActivityView) -> Self {
        Self {
            draining: view.draining.map(|d| DrainingBody {
                in_flight: d.in_flight,
                unpaid_orders: d.unsettled.unpaid_orders,
                undelivered_events: d.unsettled.undelivered_events,
                unresolved_reservations: d.unsettled.unresolved_reservations,
            }),
            ..Self::of(&view.activity, Some(&view.ledgers))
        }
    }
}
