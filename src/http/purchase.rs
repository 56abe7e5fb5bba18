//! Buying over REST.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::auth::Caller;
use super::body::{Body, Key, Name};
use super::error::{Problem, ProblemDetails};
use super::order::{OrderBody, UnbookedBody};
use super::refusal::refusal;
use super::{Shared, accepted, created, replayed};
use crate::deduct::Ending;
use crate::flow::Answer;
use crate::sale::{ActivityId, LINES_MAX, Line, Purchase, STOCK_MAX, Sku, UserId};

/// What is bought, and for whom.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Buy {
    #[schema(example = "alice")]
    user_id: String,
    /// 1 to 20 lines; lines of one SKU are summed.
    lines: Vec<BuyLine>,
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct BuyLine {
    sku: String,
    /// A whole number, at least 1.
    quantity: i64,
}

/// Buys. The same key is the same purchase, however often it is sent.
#[utoipa::path(post, path = "/v1/activities/{id}/orders", tag = "orders", request_body = Buy,
    params(("id" = String, Path), ("Idempotency-Key" = String, Header, description = "One key per intent to buy, at most 128 bytes")),
    responses(
        (status = 201, body = OrderBody, description = "Booked"),
        (status = 202, body = UnbookedBody, description = "Accepted: Location tells how it ends, which may be REJECTED (booking async)"),
        (status = 200, body = OrderBody, description = "Booked before by the same key (Idempotent-Replay: true)"),
        (status = 400, body = ProblemDetails, description = "invalid-request, idempotency-key-required"),
        (status = 409, body = ProblemDetails, description = "sold-out, already-purchased, activity-not-open, order-abandoned"),
        (status = 410, body = ProblemDetails, description = "activity-ended"),
        (status = 422, body = ProblemDetails, description = "idempotency-key-reused"),
        (status = 429, body = ProblemDetails, description = "limited"),
        (status = 503, body = ProblemDetails, description = "lock-timeout, busy, gate-recovering, outcome-unknown, strategy-unavailable: retry with the same key"),
    ))]
pub(super) async fn buy(
    State(flow): Shared,
    _caller: Caller,
    Name(activity): Name<ActivityId>,
    Key(key): Key,
    Body(body): Body<Buy>,
) -> Result<Response, Problem> {
    let user: UserId = body.user_id.parse()?;
    let lines = lines(body.lines)?;
    let purchase = Purchase::new(activity, user, key, lines)
        .ok_or_else(|| Problem::invalid("the quantities of one SKU add up to too many"))?;
    match refusal(flow.purchase(purchase).await?)? {
        Answer::Ended(Ending::Booked { order, left }) => {
            let location = format!("/v1/orders/{}", order.id);
            Ok(created(&location, OrderBody::of(&order).with_left(left)))
        }
        Answer::Ended(Ending::Replayed(order)) => Ok(replayed(OrderBody::of(&order))),
        Answer::Ended(Ending::Accepted(id)) => Ok(accepted(
            &format!("/v1/orders/{id}"),
            UnbookedBody::accepted(&id),
        )),
        // `refusal` has turned every other ending into a problem.
        Answer::Ended(_) | Answer::Limited(_) => {
            Ok(Problem::invalid("the purchase has no ending").into_response())
        }
    }
}

fn lines(given: Vec<BuyLine>) -> Result<Vec<Line>, Problem> {
    if given.is_empty() || given.len() > LINES_MAX {
        return Err(Problem::invalid(format!(
            "lines must have 1 to {LINES_MAX} entries; it has {}",
            given.len()
        )));
    }
    let mut lines = Vec::with_capacity(given.len());
    for BuyLine { sku, quantity } in given {
        let sku: Sku = sku.parse()?;
        if !(1..=STOCK_MAX).contains(&quantity) {
            return Err(Problem::invalid(format!(
                "quantity of {sku} is {quantity}; it must be a whole number from 1 to {STOCK_MAX}"
            )));
        }
        lines.push(Line { sku, quantity });
    }
    Ok(lines)
}
