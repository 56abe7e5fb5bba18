//! What time is it, for all processes of this machine alike?

/// CLOCK_MONOTONIC in nanoseconds: Python's `time.monotonic_ns`, Node's `process.hrtime` and Java's
/// `System.nanoTime` read the same on Linux, so stamps of different processes compare.
pub(crate) fn monotonic_ns() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// Sleeps until then, on tokio's timer: up to a millisecond late.
pub(crate) async fn sleep_until(at_ns: i64) {
    let left = u64::try_from(at_ns - monotonic_ns()).unwrap_or(0);
    tokio::time::sleep(std::time::Duration::from_nanos(left)).await;
}
