//! Time: the only place that reads a clock, so that a fault can skew it.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

pub use tokio::time::Instant;

/// Added to every wall-clock reading, in milliseconds. Faults set it; nothing else does.
static WALL_SKEW_MS: AtomicI64 = AtomicI64::new(0);

/// Monotonic time of this process. Leases are measured with it.
pub fn now() -> Instant {
    Instant::now()
}

/// Unix time in milliseconds, by this process: for logs, tokens' names and reports. What decides
/// about a sale asks the store's clock instead.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the one place that reads the wall clock"
)]
pub fn wall_ms() -> i64 {
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or(Duration::ZERO);
    let ms = i64::try_from(since.as_millis()).unwrap_or(i64::MAX);
    ms + WALL_SKEW_MS.load(Ordering::Relaxed)
}

/// Makes this process's wall clock wrong by `skew_ms`.
pub fn skew_wall(skew_ms: i64) {
    WALL_SKEW_MS.store(skew_ms, Ordering::Relaxed);
}

/// Unix milliseconds as RFC 3339 with offset, for JSON.
pub fn rfc3339(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms).map_or_else(|_| ms.to_string(), |t| t.to_string())
}

/// RFC 3339 with offset as Unix milliseconds; the error says what is wrong.
pub fn parse_rfc3339(text: &str) -> Result<i64, String> {
    text.parse::<jiff::Timestamp>()
        .map(jiff::Timestamp::as_millisecond)
        .map_err(|e| format!("`{text}` is not an RFC 3339 time with offset, such as 2026-11-11T20:00:00+08:00: {e}"))
}
