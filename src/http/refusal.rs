//! What a buyer is told who gets no order.

use std::time::Duration;

use axum::http::HeaderName;

use super::error::{Kind, Problem, RETRY_PAUSED, RETRY_SOON, whole_seconds};
use crate::clock;
use crate::deduct::{Contention, Ending};
use crate::flow::Answer;
use crate::limit::Refusal;

/// Too many requests, with when to come again: `Retry-After`, and the fields of
/// draft-ietf-httpapi-ratelimit-headers-10. Its quota `q` is the bucket's capacity, its window `w`
/// the time the bucket takes to fill, and `t` says the same as `Retry-After`.
fn limited(refusal: &Refusal) -> Problem {
    let (bucket, scope) = (refusal.bucket, refusal.scope.as_str());
    let detail = format!(
        "the {scope} bucket is empty: it holds {} and gains {} a second; send the same Idempotency-Key again after Retry-After",
        bucket.capacity, bucket.per_s
    );
    let wait_s = whole_seconds(refusal.retry_after);
    let fill_s = whole_seconds(Duration::from_secs_f64(bucket.fill_s()));
    Problem::new(Kind::Limited, detail)
        .with("bucket", scope)
        .same_key_after(refusal.retry_after)
        .header(
            HeaderName::from_static("ratelimit-policy"),
            format!("\"{scope}\";q={};w={fill_s}", bucket.capacity),
        )
        .header(
            HeaderName::from_static("ratelimit"),
            format!("\"{scope}\";r=0;t={wait_s}"),
        )
}

/// Every answer to a purchase that is not an order.
pub(super) fn refusal(answer: Answer) -> Result<Answer, Problem> {
    let ending = match answer {
        Answer::Limited(refusal) => return Err(limited(&refusal)),
        Answer::Ended(ending) => ending,
    };
    Err(match ending {
        Ending::Booked { .. } | Ending::Accepted(_) | Ending::Replayed(_) => {
            return Ok(Answer::Ended(ending));
        }
        Ending::SoldOut { sku, left } => Problem::new(
            Kind::SoldOut,
            format!("{left} of {sku} are left; nothing was sold"),
        )
        .with("sku", sku.as_str())
        .with("left", left),
        Ending::AlreadyPurchased(id) => Problem::new(
            Kind::AlreadyPurchased,
            format!("order {id} is this user's in this activity; pay or cancel that one"),
        )
        .with("order_id", id.to_string())
        .with("order", format!("/v1/orders/{id}")),
        Ending::KeyReused => Problem::new(
            Kind::IdempotencyKeyReused,
            "this Idempotency-Key came before with another body; use a new key for a new purchase",
        )
        .with("retry_with_same_key", false),
        Ending::Abandoned => Problem::new(
            Kind::OrderAbandoned,
            "nothing was sold under this Idempotency-Key; use a new one",
        )
        .with("retry_with_same_key", false),
        Ending::NotOpen { opens_at_ms } => {
            let opens_at = clock::rfc3339(opens_at_ms);
            Problem::new(
                Kind::ActivityNotOpen,
                format!("buyers are let in once an operator has opened it, from {opens_at} on"),
            )
            .with("opens_at", opens_at)
        }
        Ending::Ended { closed_at_ms } => {
            let closes_at = clock::rfc3339(closed_at_ms);
            Problem::new(
                Kind::ActivityEnded,
                format!("it was closed, or its time was over at {closes_at}; no more is sold"),
            )
            .with("closes_at", closes_at)
        }
        Ending::UnknownSku(sku) => Problem::invalid(format!(
            "the activity does not sell {sku}; read the activity for what it sells"
        )),
        Ending::Paused => Problem::new(
            Kind::ActivityPaused,
            "the sale is paused and goes on soon; nothing was sold, try again",
        )
        .same_key_after(RETRY_PAUSED),
        Ending::Busy(Contention::LockTimeout) => Problem::new(
            Kind::LockTimeout,
            "others hold the lock; nothing was sold, try again",
        )
        .same_key_after(RETRY_SOON),
        Ending::Busy(
            why @ (Contention::LeaseLost
            | Contention::FencedOut
            | Contention::OtherPurchase
            | Contention::Database),
        ) => {
            let detail = match why {
                Contention::LeaseLost => {
                    "the lease ended before the first write; nothing was sold, try again"
                }
                Contention::FencedOut => {
                    "a later holder has claimed the stock; nothing was sold, try again"
                }
                Contention::OtherPurchase => {
                    "another purchase of this user's is under way or has just ended; nothing was sold, try again"
                }
                Contention::Database | Contention::LockTimeout => {
                    "too many at once; nothing was sold, try again"
                }
            };
            Problem::new(Kind::Busy, detail).same_key_after(RETRY_SOON)
        }
        Ending::Recovering => Problem::new(
            Kind::GateRecovering,
            "the gate is being rebuilt from the database; nothing was sold, try again",
        )
        .same_key_after(RETRY_SOON),
    })
}
