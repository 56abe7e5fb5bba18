//! What operators see of differences between the stores: reconcile, and the reservations that are
//! to be resolved.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};

use super::Shared;
use super::auth::Operator;
use super::body::{BodyOrNone, Name};
use super::error::{Problem, ProblemDetails};
use crate::clock;
use crate::ledger::reconciled::{Mode, Reconciled};
use crate::sale::{ActivityId, OrderId};
use crate::store::Compensation;

/// How to reconcile; the body may be left out.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReconcileBody {
    /// Only show what would be repaired; `false` if it is left out.
    #[serde(default)]
    dry_run: bool,
}

/// How the stores stood to each other.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ReconciledBody {
    activity_id: String,
    /// OK, IN_FLIGHT, INCONCLUSIVE, LEAK, OVERSOLD or CORRUPT, before repairs.
    verdict: &'static str,
    dry_run: bool,
    findings: Vec<FindingBody>,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
struct FindingBody {
    /// The reservation; null when it is about the whole activity.
    rid: Option<String>,
    /// Such as HOLD_WITHOUT_ORDER.
    finding: &'static str,
    reason: String,
    repaired: bool,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(super) struct CompensationList {
    /// Those that are not done come first, the newest first; at most 1,000.
    compensations: Vec<CompensationBody>,
}

/// A reservation of which nobody knows whether it was made.
#[derive(Debug, Serialize, utoipa::ToSchema)]
struct CompensationBody {
    order_id: String,
    activity_id: String,
    user_id: String,
    kind: String,
    /// DUE, DONE or GIVEN_UP.
    state: &'static str,
    attempts: i64,
    next_at: String,
    last_error: Option<String>,
    created_at: String,
}

/// Compares the activity's stores and mends what differs, reservation by reservation.
#[utoipa::path(post, path = "/v1/activities/{id}/reconcile", tag = "operations", params(("id" = String, Path)),
    request_body(content = Option<ReconcileBody>),
    responses((status = 200, body = ReconciledBody), (status = 404, body = ProblemDetails)))]
pub(super) async fn reconcile(
    State(flow): Shared,
    _operator: Operator,
    Name(id): Name<ActivityId>,
    BodyOrNone(body): BodyOrNone<ReconcileBody>,
) -> Result<Json<ReconciledBody>, Problem> {
    let mode = match body.unwrap_or_default().dry_run {
        true => Mode::DryRun,
        false => Mode::Repair,
    };
    let reconciled = flow.reconcile(&id, mode).await?;
    Ok(Json(ReconciledBody::of(&id, mode, &reconciled)))
}

/// Lists reservations whose outcome was unknown, and how far they are resolved.
#[utoipa::path(get, path = "/v1/compensations", tag = "operations",
    responses((status = 200, body = CompensationList)))]
pub(super) async fn compensations(
    State(flow): Shared,
    _operator: Operator,
) -> Result<Json<CompensationList>, Problem> {
    let all = flow.compensations().await?;
    Ok(Json(CompensationList {
        compensations: all.into_iter().map(CompensationBody::from).collect(),
    }))
}

// === impl ReconciledBody ===

impl ReconciledBody {
    pub fn of(id: &ActivityId, mode: Mode, reconciled: &Reconciled) -> Self {
        Self {
            activity_id: id.to_string(),
            verdict: reconciled.verdict.as_str(),
            dry_run: mode == Mode::DryRun,
            findings: reconciled
                .findings
                .iter()
                .map(|f| FindingBody {
                    rid: f.rid.map(|rid| rid.to_string()),
                    finding: f.difference.as_str(),
                    reason: f.reason.clone(),
                    repaired: f.repaired,
                })
                .collect(),
        }
    }
}

// === impl CompensationBody ===

impl From<Compensation> for CompensationBody {
    fn from(one: Compensation) -> Self {
        let order = OrderId {
            activity: one.activity,
            rid: one.reservation.rid,
        };
        Self {
            order_id: order.to_string(),
            activity_id: order.activity.to_string(),
            user_id: one.reservation.user.to_string(),
            kind: one.kind,
            state: one.state.as_str(),
            attempts: one.attempts,
            next_at: clock::rfc3339(one.next_at_ms),
            last_error: one.last_error,
            created_at: clock::rfc3339(one.created_at_ms),
        }
    }
}
