//! Orders over REST: read, pay, cancel.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};

use super::auth::{Caller, Reader};
use super::body::{Body, Name};
use super::error::{Kind, Problem, ProblemDetails};
use super::{Shared, accepted};
use crate::clock;
use crate::flow::Flow;
use crate::flow::close::Cancelled;
use crate::flow::payment::{Paid, Told};
use crate::order::{CloseReason, Order, OrderState};
use crate::sale::{InvalidId, NAME_BYTES_MAX, OrderId};
use crate::store::Payment;

/// Longest provider transaction, in bytes; the column is this wide.
const TXN_BYTES_MAX: usize = 128;

/// An order as it stands.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(super) struct OrderBody {
    /// `<activity>.<reservation>`.
    id: String,
    activity_id: String,
    user_id: String,
    /// PENDING_PAYMENT, PAID, CLOSED, REJECTED or ABANDONED.
    status: &'static str,
    /// Why it was closed: `timeout`, `user` or `admin`.
    #[serde(skip_serializing_if = "Option::is_none")]
    close_reason: Option<&'static str>,
    lines: Vec<OrderLine>,
    created_at: String,
    /// Until when it may be paid.
    pay_deadline: String,
    /// Units of the first line's SKU that were left after this order; at booking only.
    #[serde(skip_serializing_if = "Option::is_none")]
    left: Option<i64>,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
struct OrderLine {
    sku: String,
    quantity: i64,
}

/// A reservation whose id was handed out and that has no order: not yet, or not any more.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(super) struct UnbookedBody {
    id: String,
    activity_id: String,
    /// ACCEPTED: it is being booked. ABANDONED: it ended without an order.
    status: &'static str,
}

/// A payment, as the payment provider tells it.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PaymentBody {
    #[schema(example = "acme-pay")]
    provider: String,
    /// The provider's name of the transaction; the same one is applied once.
    provider_txn: String,
}

/// What a payment came to.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(super) struct PaidBody {
    /// APPLIED: the order is paid by it. REFUND_DUE: the order could not take it, the money goes back.
    outcome: &'static str,
    order: OrderBody,
}

/// Reads an order.
#[utoipa::path(get, path = "/v1/orders/{id}", tag = "orders", params(("id" = String, Path)),
    responses((status = 200, body = OrderBody), (status = 202, body = UnbookedBody), (status = 404, body = ProblemDetails)))]
pub(super) async fn read(
    State(flow): Shared,
    _reader: Reader,
    Name(id): Name<OrderId>,
) -> Result<Response, Problem> {
    match flow.resolve_id(&id).await? {
        Told::Order(order) => Ok(Json(OrderBody::of(&order)).into_response()),
        // What it was to be is gone with its reservation.
        Told::Abandoned => {
            let status = OrderState::Abandoned.as_str();
            Ok(Json(UnbookedBody::of(&id, status)).into_response())
        }
        Told::OnItsWay => Ok(accepted(
            &format!("/v1/orders/{id}"),
            UnbookedBody::accepted(&id),
        )),
        Told::NoSuchOrder => Err(no_such_order(&id)),
    }
}

/// Pays an order. The same provider transaction answers the same.
#[utoipa::path(post, path = "/v1/orders/{id}/payments", tag = "orders", params(("id" = String, Path)),
    request_body = PaymentBody,
    responses((status = 200, body = PaidBody), (status = 404, body = ProblemDetails), (status = 409, body = ProblemDetails)))]
pub(super) async fn pay(
    State(flow): Shared,
    _caller: Caller,
    Name(id): Name<OrderId>,
    Body(body): Body<PaymentBody>,
) -> Result<Response, Problem> {
    let payment = body.into_payment()?;
    let (outcome, order) = match flow.pay(&id, &payment).await? {
        Paid::Applied(order) => ("APPLIED", order),
        Paid::RefundDue(order) => ("REFUND_DUE", order),
        Paid::UsedElsewhere => {
            return Err(Problem::new(
                Kind::PaymentUsedElsewhere,
                format!(
                    "transaction {} of {} paid another order",
                    payment.provider_txn, payment.provider
                ),
            ));
        }
        Paid::NoSuchOrder => return Err(no_order(&flow, &id).await),
    };
    Ok(Json(PaidBody {
        outcome,
        order: OrderBody::of(&order),
    })
    .into_response())
}

/// Cancels an order that waits for payment, and gives its units back. Safe to repeat.
#[utoipa::path(post, path = "/v1/orders/{id}/cancel", tag = "orders", params(("id" = String, Path)),
    responses((status = 200, body = OrderBody), (status = 404, body = ProblemDetails), (status = 409, body = ProblemDetails)))]
pub(super) async fn cancel(
    State(flow): Shared,
    _caller: Caller,
    Name(id): Name<OrderId>,
) -> Result<Json<OrderBody>, Problem> {
    match flow.cancel(&id).await? {
        Cancelled::Closed(order) => Ok(Json(OrderBody::of(&order))),
        Cancelled::NotPending(order) => Err(Problem::new(
            Kind::NotAllowedInState,
            format!(
                "the order is {}, which does not allow a cancellation",
                order.state
            ),
        )
        .with("state", order.state.as_str())),
        Cancelled::NoSuchOrder => Err(no_order(&flow, &id).await),
    }
}

/// Why there is no order to pay or to cancel: not yet, not any more, or never.
async fn no_order(flow: &Flow, id: &OrderId) -> Problem {
    match flow.resolve_id(id).await {
        // Booked just now, or soon.
        Ok(Told::Order(_) | Told::OnItsWay) => Problem::on_its_way(),
        Ok(Told::Abandoned) => {
            let state = OrderState::Abandoned;
            Problem::new(
                Kind::NotAllowedInState,
                format!("the reservation is {state}: it ended without an order"),
            )
            .with("state", state.as_str())
        }
        Ok(Told::NoSuchOrder) => no_such_order(id),
        Err(error) => error.into(),
    }
}

fn no_such_order(id: &OrderId) -> Problem {
    Problem::new(Kind::NotFound, format!("there is no order {id}"))
}

// === impl OrderBody ===

impl OrderBody {
    pub(super) fn of(order: &Order) -> Self {
        Self {
            id: order.id.to_string(),
            activity_id: order.id.activity.to_string(),
            user_id: order.user.to_string(),
            status: order.state.as_str(),
            close_reason: order.close_reason.map(CloseReason::as_str),
            lines: order
                .lines
                .iter()
                .map(|line| OrderLine {
                    sku: line.sku.to_string(),
                    quantity: line.quantity,
                })
                .collect(),
            created_at: clock::rfc3339(order.created_at_ms),
            pay_deadline: clock::rfc3339(order.pay_deadline_ms),
            left: None,
        }
    }

    pub(super) fn with_left(mut self, left: i64) -> Self {
        self.left = Some(left);
        self
    }
}

// === impl UnbookedBody ===

impl UnbookedBody {
    fn of(id: &OrderId, status: &'static str) -> Self {
        Self {
            id: id.to_string(),
            activity_id: id.activity.to_string(),
            status,
        }
    }

    pub(super) fn accepted(id: &OrderId) -> Self {
        Self::of(id, "ACCEPTED")
    }
}

// === impl PaymentBody ===

impl PaymentBody {
    fn into_payment(self) -> Result<Payment, Problem> {
        let checked = |what: &'static str, text: String, bytes_max: usize| {
            if text.is_empty() || text.len() > bytes_max || text.chars().any(char::is_control) {
                let problem = format!("must be 1 to {bytes_max} bytes without control characters");
                Err(Problem::from(InvalidId { what, problem }))
            } else {
                Ok(text)
            }
        };
        Ok(Payment {
            provider: checked("provider", self.provider, NAME_BYTES_MAX)?,
            provider_txn: checked("provider_txn", self.provider_txn, TXN_BYTES_MAX)?,
        })
    }
}
