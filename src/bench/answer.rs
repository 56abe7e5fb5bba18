//! What a purchase's answer means to its buyer.

use std::time::Duration;

use reqwest::StatusCode;
use reqwest::header::{HeaderMap, RETRY_AFTER};
use serde::Deserialize;

/// One answer, or that none came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Booked {
        order: String,
        status: u16,
        left: Option<i64>,
        replay: bool,
    },
    /// Certainly nothing was booked by this request.
    Refused {
        status: u16,
        why: Refusal,
        /// The problem's name, such as `sold-out`.
        problem: String,
        retry_after: Option<Duration>,
    },
    /// It may have been booked: the same key finds out.
    Open {
        why: String,
        retry_after: Option<Duration>,
    },
    /// Outside the contract for a valid buyer.
    Unexpected { status: u16, what: String },
}

/// Why a buyer got nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    SoldOut,
    AlreadyPurchased,
    Limited,
    /// 503 that says nothing was sold: the same key may try again.
    Busy,
}

#[derive(Debug, Deserialize)]
struct OrderBody {
    id: String,
    #[serde(default)]
    left: Option<i64>,
    #[serde(default)]
    status: String,
}

#[derive(Debug, Deserialize)]
struct ProblemBody {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    detail: String,
}

// === impl Answer ===

impl Answer {
    /// Reads an answer that arrived whole.
    pub fn read(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Self {
        if status == StatusCode::OK || status == StatusCode::CREATED {
            return Self::booked(status, headers, body);
        }
        if status == StatusCode::ACCEPTED {
            // Held, and not booked yet: the same key finds out what it came to.
            return Self::Open {
                why: "202 accepted".to_string(),
                retry_after: retry_after(headers),
            };
        }
        let problem = serde_json::from_slice::<ProblemBody>(body).ok();
        let name = problem
            .as_ref()
            .and_then(|p| p.kind.strip_prefix("/problems/"))
            .unwrap_or_default();
        let why = match (status.as_u16(), name) {
            (409, "sold-out") => Refusal::SoldOut,
            (409, "already-purchased") => Refusal::AlreadyPurchased,
            (429, "limited") => Refusal::Limited,
            (
                503,
                "lock-timeout"
                | "busy"
                | "gate-recovering"
                | "activity-paused"
                | "strategy-unavailable",
            ) => Refusal::Busy,
            (503, "outcome-unknown") => {
                return Self::Open {
                    why: "503 outcome-unknown".to_string(),
                    retry_after: retry_after(headers),
                };
            }
            (status, name) => {
                let detail = problem.as_ref().map_or("", |p| p.detail.as_str());
                let what = match name {
                    "" => String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned(),
                    name => format!("{name}: {detail}"),
                };
                return Self::Unexpected { status, what };
            }
        };
        Self::Refused {
            status: status.as_u16(),
            why,
            problem: name.to_string(),
            retry_after: retry_after(headers),
        }
    }

    fn booked(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Self {
        match serde_json::from_slice::<OrderBody>(body) {
            // Accepted before, and refused by the database after.
            Ok(order) if order.status == "REJECTED" => Self::Refused {
                status: status.as_u16(),
                why: Refusal::SoldOut,
                problem: "rejected".to_string(),
                retry_after: None,
            },
            Ok(order) => Self::Booked {
                order: order.id,
                status: status.as_u16(),
                left: order.left,
                replay: headers
                    .get("idempotent-replay")
                    .is_some_and(|v| v.as_bytes().eq_ignore_ascii_case(b"true")),
            },
            Err(error) => Self::Unexpected {
                status: status.as_u16(),
                what: format!("an order without an id: {error}"),
            },
        }
    }

    /// The answer's name in a table, such as `503 lock-timeout` or `201`.
    pub fn name(&self) -> String {
        match self {
            Self::Booked {
                status,
                replay: true,
                ..
            } => format!("{status} replay"),
            Self::Booked { status, .. } => status.to_string(),
            Self::Refused {
                status, problem, ..
            } => format!("{status} {problem}"),
            Self::Open { why, .. } => why.clone(),
            Self::Unexpected { status, what } => {
                let short = what.split(':').next().unwrap_or_default();
                format!("{status} {}", short.chars().take(40).collect::<String>())
            }
        }
    }
}

/// `Retry-After` in seconds (RFC 9110, 10.2.3); the date form is not used by the service.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?;
    text.trim().parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(status: u16, body: &str) -> Answer {
        let status = StatusCode::from_u16(status).expect("a status");
        Answer::read(status, &HeaderMap::new(), body.as_bytes())
    }

    #[test]
    fn a_refusal_is_told_by_status_and_type_together() {
        let sold_out = read(409, r#"{"type":"/problems/sold-out"}"#);
        assert!(matches!(
            sold_out,
            Answer::Refused {
                why: Refusal::SoldOut,
                ..
            }
        ));
        // The right name under a wrong status is outside the contract, and so is a bare 409.
        for (status, body) in [
            (500, r#"{"type":"/problems/sold-out"}"#),
            (409, "{}"),
            (409, "Conflict"),
            (503, r#"{"type":"/problems/sold-out"}"#),
            (201, r#"{"status":"PENDING_PAYMENT"}"#),
        ] {
            assert!(
                matches!(read(status, body), Answer::Unexpected { .. }),
                "{status} {body}"
            );
        }
    }

    #[test]
    fn outcome_unknown_and_accepted_stay_open_while_lock_timeout_is_certain() {
        let accepted = read(202, r#"{"id":"a.r","status":"ACCEPTED"}"#);
        assert!(matches!(accepted, Answer::Open { .. }));
        let rejected = read(200, r#"{"id":"a.r","status":"REJECTED"}"#);
        assert!(matches!(rejected, Answer::Refused { .. }));
        let open = read(503, r#"{"type":"/problems/outcome-unknown"}"#);
        assert!(matches!(open, Answer::Open { .. }));
        let busy = read(503, r#"{"type":"/problems/lock-timeout"}"#);
        assert!(matches!(
            busy,
            Answer::Refused {
                why: Refusal::Busy,
                ..
            }
        ));
    }
}
