//! What a request carries, parsed once at the edge, with an error that says what to do.

use std::time::Duration;

use axum::RequestExt;
use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

use super::error::{Kind, Problem};
use crate::sale::IdempotencyKey;

/// Longest wait for a whole body: long for the largest one over a bad line, short for a client that
/// means to keep a connection busy.
const BODY_WAIT: Duration = Duration::from_secs(10);
/// As much of what was asked for as an answer repeats, in characters.
const ECHO_MAX: usize = 100;

/// A JSON body.
pub(super) struct Body<T>(pub(super) T);

/// A JSON body that may be left out.
pub(super) struct BodyOrNone<T>(pub(super) Option<T>);

/// The one name in the path.
pub(super) struct Name<T>(pub(super) T);

/// The `Idempotency-Key` header, as text or as the quoted string of the IETF draft.
pub(super) struct Key(pub(super) IdempotencyKey);

// === impl Body ===

impl<S, T> FromRequest<S> for Body<T>
where
    S: Send + Sync,
    T: DeserializeOwned,
{
    type Rejection = Problem;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Problem> {
        let bytes = bytes(request).await?;
        if bytes.is_empty() {
            return Err(Problem::invalid("the body is empty; send a JSON object"));
        }
        json(&bytes).map(Self)
    }
}

// === impl BodyOrNone ===

impl<S, T> FromRequest<S> for BodyOrNone<T>
where
    S: Send + Sync,
    T: DeserializeOwned,
{
    type Rejection = Problem;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Problem> {
        let bytes = bytes(request).await?;
        // `null` is how some clients say nothing.
        if bytes.trim_ascii().is_empty() || bytes.trim_ascii() == b"null" {
            return Ok(Self(None));
        }
        json(&bytes).map(|body| Self(Some(body)))
    }
}

/// The whole body, in time.
async fn bytes(request: Request) -> Result<Bytes, Problem> {
    let read = tokio::time::timeout(BODY_WAIT, request.extract());
    let Ok(read) = read.await else {
        return Err(Problem::new(
            Kind::BodyTooSlow,
            format!(
                "the body was not there after {} s; send the request again",
                BODY_WAIT.as_secs()
            ),
        ));
    };
    read.map_err(|rejected: axum::extract::rejection::BytesRejection| {
        if rejected.status().as_u16() == Kind::BodyTooLarge.status() {
            Problem::new(
                Kind::BodyTooLarge,
                "the body is longer than body_bytes_max allows; send less",
            )
        } else {
            Problem::invalid(format!("the body could not be read: {rejected}"))
        }
    })
}

fn json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(bytes)
        .map_err(|error| Problem::invalid(format!("the body is not what is expected: {error}")))
}

// === impl Name ===

impl<S, T> FromRequestParts<S> for Name<T>
where
    S: Send + Sync,
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Path(text) = Path::<String>::from_request_parts(parts, state)
            .await
            .map_err(|rejected| Problem::invalid(rejected.to_string()))?;
        // What is not an id names nothing.
        text.parse().map(Self).map_err(|error| {
            let text = short(&text);
            Problem::new(Kind::NotFound, format!("there is no `{text}`: {error}"))
        })
    }
}

/// The beginning of `text`, as much as an answer repeats.
pub(super) fn short(text: &str) -> String {
    match text.char_indices().nth(ECHO_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_string(),
    }
}

// === impl Key ===

impl<S: Send + Sync> FromRequestParts<S> for Key {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        let mut values = parts.headers.get_all("idempotency-key").iter();
        let required = |detail: &str| Problem::new(Kind::IdempotencyKeyRequired, detail);
        let Some(value) = values.next() else {
            return Err(required(
                "send an Idempotency-Key header: one key per intent to buy, such as a UUID, and the same again to retry",
            ));
        };
        if values.next().is_some() {
            return Err(Problem::invalid("send one Idempotency-Key, not several"));
        }
        let text = value.to_str().map_err(|_not_ascii| {
            Problem::invalid("Idempotency-Key must be printable ASCII without spaces")
        })?;
        let text = text
            .strip_prefix('"')
            .and_then(|rest| rest.strip_suffix('"'))
            .unwrap_or(text);
        if text.is_empty() {
            return Err(required(
                "the Idempotency-Key is empty; send one key per intent to buy, such as a UUID",
            ));
        }
        Ok(Self(text.parse()?))
    }
}
