//! Who may ask: bearer tokens (RFC 6750) with two scopes.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::header;
use axum::http::request::Parts;
use sha2::{Digest, Sha256};

use super::error::{Kind, Problem};
use crate::flow::Flow;

/// May change activities.
pub(super) struct Operator;
/// May buy and pay.
pub(super) struct Caller;
/// May read: either scope.
pub(super) struct Reader;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    Operator,
    Caller,
}

/// The scope of the request's token; every scope when the service has no tokens, which it allows on
/// loopback only.
fn scopes(parts: &Parts, flow: &Flow) -> Result<Vec<Scope>, Problem> {
    let config = &flow.app.config;
    let (Some(operator), Some(caller)) = (&config.operator_token, &config.caller_token) else {
        return Ok(vec![Scope::Operator, Scope::Caller]);
    };
    let given = parts
        .headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, token)| token.trim());
    let unauthorized = |detail: &str| {
        Problem::new(Kind::Unauthorized, detail).header(header::WWW_AUTHENTICATE, "Bearer")
    };
    let Some(given) = given else {
        return Err(unauthorized("send `Authorization: Bearer TOKEN`"));
    };
    // Digests are compared, so that the time taken tells nothing of the token.
    let same = |token: &str| Sha256::digest(token) == Sha256::digest(given);
    if same(operator) {
        Ok(vec![Scope::Operator])
    } else if same(caller) {
        Ok(vec![Scope::Caller])
    } else {
        Err(unauthorized(
            "this token is not known here; send the operator or the caller token of this service",
        ))
    }
}

fn allow(parts: &Parts, flow: &Flow, allowed: &[Scope], needs: &str) -> Result<(), Problem> {
    if scopes(parts, flow)?
        .iter()
        .any(|scope| allowed.contains(scope))
    {
        Ok(())
    } else {
        Err(Problem::new(
            Kind::Forbidden,
            format!("this needs the {needs} token; send that one"),
        ))
    }
}

impl FromRequestParts<Arc<Flow>> for Operator {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, flow: &Arc<Flow>) -> Result<Self, Problem> {
        allow(parts, flow, &[Scope::Operator], "operator").map(|()| Self)
    }
}

impl FromRequestParts<Arc<Flow>> for Caller {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, flow: &Arc<Flow>) -> Result<Self, Problem> {
        allow(parts, flow, &[Scope::Caller], "caller").map(|()| Self)
    }
}

impl FromRequestParts<Arc<Flow>> for Reader {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, flow: &Arc<Flow>) -> Result<Self, Problem> {
        allow(
            parts,
            flow,
            &[Scope::Operator, Scope::Caller],
            "operator or caller",
        )
        .map(|()| Self)
    }
}
