//! Every answer that is not a success, as RFC 9457 problem details. The only file that knows status
//! codes.

use std::time::Duration;

use axum::Json;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::deduct::DeductError;
use crate::flow::FlowError;
use crate::http::activity::advice::Asked;
use crate::sale::{ActivityState, InvalidId};
use crate::strategy::UnknownStrategy;

/// When to try again after contention: about one critical section later.
pub(super) const RETRY_SOON: Duration = Duration::from_secs(1);
/// When to try again while a sale is paused: an operator is at work.
pub(super) const RETRY_PAUSED: Duration = Duration::from_secs(5);
/// When to try again after a server was away.
const RETRY_AWAY: Duration = Duration::from_secs(2);

/// A problem, by its stable type name. `GET /problems/{name}` explains it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    InvalidRequest,
    IdempotencyKeyRequired,
    IdempotencyKeyReused,
    StrategyNotConfigured,
    Unauthorized,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    BodyTooLarge,
    BodyTooSlow,
    SoldOut,
    AlreadyPurchased,
    ActivityNotOpen,
    ActivityEnded,
    OrderAbandoned,
    NotAllowedInState,
    PaymentUsedElsewhere,
    Limited,
    LockTimeout,
    Busy,
    GateRecovering,
    ActivityPaused,
    OutcomeUnknown,
    StrategyUnavailable,
    Internal,
}

/// An answer that is not a success. Boxed, since every handler's `Result` carries the room for it.
#[derive(Debug, Clone)]
pub(super) struct Problem(Box<Told>);

/// What is told, in the order in which it is written.
#[derive(Debug, Clone)]
struct Told {
    kind: Kind,
    detail: String,
    more: Map<String, Value>,
    retry_after: Option<Duration>,
    headers: Vec<(HeaderName, String)>,
}

/// The shape of every error, for the OpenAPI document (RFC 9457).
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(super) struct ProblemDetails {
    /// A stable reference, such as `/problems/sold-out`.
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) title: String,
    pub(super) status: u16,
    /// What happened here, and what to do.
    pub(super) detail: String,
    /// Whether the same Idempotency-Key may be sent again; with every 503 and `order-abandoned`.
    pub(super) retry_with_same_key: Option<bool>,
}

// === impl Kind ===

impl Kind {
    pub(super) const ALL: [Self; 25] = [
        Self::InvalidRequest,
        Self::IdempotencyKeyRequired,
        Self::IdempotencyKeyReused,
        Self::StrategyNotConfigured,
        Self::Unauthorized,
        Self::Forbidden,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::BodyTooLarge,
        Self::BodyTooSlow,
        Self::SoldOut,
        Self::AlreadyPurchased,
        Self::ActivityNotOpen,
        Self::ActivityEnded,
        Self::OrderAbandoned,
        Self::NotAllowedInState,
        Self::PaymentUsedElsewhere,
        Self::Limited,
        Self::LockTimeout,
        Self::Busy,
        Self::GateRecovering,
        Self::ActivityPaused,
        Self::OutcomeUnknown,
        Self::StrategyUnavailable,
        Self::Internal,
    ];

    /// Name, status, title.
    fn row(self) -> (&'static str, StatusCode, &'static str) {
        match self {
            Self::InvalidRequest => (
                "invalid-request",
                StatusCode::BAD_REQUEST,
                "The request is not valid",
            ),
            Self::IdempotencyKeyRequired => (
                "idempotency-key-required",
                StatusCode::BAD_REQUEST,
                "An Idempotency-Key is required",
            ),
            Self::IdempotencyKeyReused => (
                "idempotency-key-reused",
                StatusCode::UNPROCESSABLE_ENTITY,
                "The Idempotency-Key was used for another purchase",
            ),
            Self::StrategyNotConfigured => (
                "strategy-not-configured",
                StatusCode::UNPROCESSABLE_ENTITY,
                "The service has not been given the servers of that strategy",
            ),
            Self::Unauthorized => (
                "unauthorized",
                StatusCode::UNAUTHORIZED,
                "A bearer token is required",
            ),
            Self::Forbidden => ("forbidden", StatusCode::FORBIDDEN, "Not allowed"),
            Self::NotFound => ("not-found", StatusCode::NOT_FOUND, "There is no such thing"),
            Self::MethodNotAllowed => (
                "method-not-allowed",
                StatusCode::METHOD_NOT_ALLOWED,
                "This resource does not take that method",
            ),
            Self::BodyTooLarge => (
                "body-too-large",
                StatusCode::PAYLOAD_TOO_LARGE,
                "The body is too large",
            ),
            Self::BodyTooSlow => (
                "body-too-slow",
                StatusCode::REQUEST_TIMEOUT,
                "The body did not arrive in time",
            ),
            Self::SoldOut => ("sold-out", StatusCode::CONFLICT, "Too little is left"),
            Self::AlreadyPurchased => (
                "already-purchased",
                StatusCode::CONFLICT,
                "The user has an order in this activity",
            ),
            Self::ActivityNotOpen => (
                "activity-not-open",
                StatusCode::CONFLICT,
                "The sale is not open",
            ),
            Self::ActivityEnded => ("activity-ended", StatusCode::GONE, "The sale has ended"),
            Self::OrderAbandoned => (
                "order-abandoned",
                StatusCode::CONFLICT,
                "The reservation was given up",
            ),
            Self::NotAllowedInState => (
                "not-allowed-in-state",
                StatusCode::CONFLICT,
                "The present state does not allow that",
            ),
            Self::PaymentUsedElsewhere => (
                "payment-used-elsewhere",
                StatusCode::CONFLICT,
                "The provider transaction paid another order",
            ),
            Self::Limited => (
                "limited",
                StatusCode::TOO_MANY_REQUESTS,
                "Too many requests",
            ),
            Self::LockTimeout => (
                "lock-timeout",
                StatusCode::SERVICE_UNAVAILABLE,
                "The lock was not granted in time",
            ),
            Self::Busy => ("busy", StatusCode::SERVICE_UNAVAILABLE, "Busy"),
            Self::GateRecovering => (
                "gate-recovering",
                StatusCode::SERVICE_UNAVAILABLE,
                "The gate is being rebuilt",
            ),
            Self::ActivityPaused => (
                "activity-paused",
                StatusCode::SERVICE_UNAVAILABLE,
                "The sale is paused",
            ),
            Self::OutcomeUnknown => (
                "outcome-unknown",
                StatusCode::SERVICE_UNAVAILABLE,
                "It is not known whether it happened",
            ),
            Self::StrategyUnavailable => (
                "strategy-unavailable",
                StatusCode::SERVICE_UNAVAILABLE,
                "A server that the strategy needs is out of reach",
            ),
            Self::Internal => ("internal", StatusCode::INTERNAL_SERVER_ERROR, "A defect"),
        }
    }

    pub(super) fn name(self) -> &'static str {
        self.row().0
    }

    pub(super) fn title(self) -> &'static str {
        self.row().2
    }

    pub(super) fn status(self) -> u16 {
        self.row().1.as_u16()
    }
}

// === impl Problem ===

impl Problem {
    pub(super) fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Self(Box::new(Told {
            kind,
            detail: detail.into(),
            more: Map::new(),
            retry_after: None,
            headers: Vec::new(),
        }))
    }

    pub(super) fn invalid(detail: impl Into<String>) -> Self {
        Self::new(Kind::InvalidRequest, detail)
    }

    /// A member beside the standard ones.
    pub(super) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.0.more.insert(name.to_string(), value.into());
        self
    }

    pub(super) fn header(mut self, name: HeaderName, value: impl Into<String>) -> Self {
        self.0.headers.push((name, value.into()));
        self
    }

    /// The same key may be sent again, after this long.
    pub(super) fn same_key_after(mut self, wait: Duration) -> Self {
        self.0.retry_after = Some(wait);
        self.with("retry_with_same_key", true)
    }

    /// Held, and not booked yet.
    pub(super) fn on_its_way() -> Self {
        let detail = "the order is being booked; look again after Retry-After";
        Self::new(Kind::Busy, detail).same_key_after(RETRY_SOON)
    }

    pub(super) fn state(state: ActivityState, asked: Asked) -> Self {
        let (what, instead) = (asked.as_str(), asked.instead(state));
        let detail = format!("the activity is {state}, which does not allow {what}; {instead}");
        Self::new(Kind::NotAllowedInState, detail).with("state", state.as_str())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let Told {
            kind,
            detail,
            more,
            retry_after,
            headers: more_headers,
        } = *self.0;
        let (name, status, title) = kind.row();
        let mut body = Map::new();
        body.insert("type".into(), json!(format!("/problems/{name}")));
        body.insert("title".into(), json!(title));
        body.insert("status".into(), json!(status.as_u16()));
        body.insert("detail".into(), json!(detail));
        body.extend(more);
        let mut response = (status, Json(Value::Object(body))).into_response();
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        if let Some(wait) = retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(whole_seconds(wait)));
        }
        for (name, value) in more_headers {
            if let Ok(value) = HeaderValue::from_str(&value) {
                headers.insert(name, value);
            }
        }
        response
    }
}

/// Rounded up: a client that comes a moment too early has come for nothing.
pub(super) fn whole_seconds(wait: Duration) -> u64 {
    (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1)
}

impl From<InvalidId> for Problem {
    fn from(error: InvalidId) -> Self {
        Self::invalid(error.to_string())
    }
}

impl From<UnknownStrategy> for Problem {
    fn from(error: UnknownStrategy) -> Self {
        Self::invalid(error.to_string())
    }
}

impl From<FlowError> for Problem {
    fn from(error: FlowError) -> Self {
        let detail = error.to_string();
        match error {
            FlowError::NoSuchActivity(_) => Self::new(Kind::NotFound, detail),
            FlowError::UnknownSku { .. } | FlowError::TooMany { .. } => Self::invalid(detail),
            FlowError::StrategyMissing { strategy, .. } => {
                Self::new(Kind::StrategyUnavailable, detail)
                    .with("strategy", strategy.as_str())
                    .same_key_after(RETRY_AWAY)
            }
            FlowError::Busy(_) => Self::new(Kind::Busy, detail).same_key_after(RETRY_SOON),
            FlowError::Deduct(error) => error.into(),
        }
    }
}

impl From<DeductError> for Problem {
    fn from(error: DeductError) -> Self {
        let detail = error.to_string();
        match error {
            DeductError::Unavailable { server, .. } => Self::new(
                Kind::StrategyUnavailable,
                format!("{detail}; nothing was done, try again after Retry-After"),
            )
            .with("server", server)
            .same_key_after(RETRY_AWAY),
            DeductError::Unknown { server, .. } => Self::new(
                Kind::OutcomeUnknown,
                format!("{detail}; send the same Idempotency-Key again to find out"),
            )
            .with("server", server)
            .same_key_after(RETRY_AWAY),
            DeductError::Corrupt { .. } => {
                tracing::error!(%detail, "a store holds what it must not");
                Self::new(
                    Kind::Internal,
                    "a store holds what it must not; see the service's log",
                )
            }
        }
    }
}
