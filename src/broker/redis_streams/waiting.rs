//! What waits in the stream for one consumer group, and since when?

use std::time::Duration;

use redis::aio::ConnectionManager;
use redis::streams::{StreamInfoGroupsReply, StreamPendingReply, StreamRangeReply};
use redis::{AsyncCommands, RedisResult};

use super::Waiting;

/// The last entry that the group was handed is read first: what is handed out meanwhile is then seen
/// behind it, and what was handed out before is among the pending.
pub(super) async fn waiting(
    con: &ConnectionManager,
    stream: &str,
    group: &str,
) -> RedisResult<Waiting> {
    let mut con = con.clone();
    let groups: StreamInfoGroupsReply = match con.xinfo_groups(stream).await {
        // There is no stream.
        Err(e) if e.to_string().contains("no such key") => return Ok(Waiting::Nothing),
        groups => groups?,
    };
    let group = groups.groups.into_iter().find(|known| known.name == group);
    let behind = match &group {
        Some(group) => format!("({}", group.last_delivered_id),
        None => "-".to_string(),
    };
    let mut first = redis::pipe();
    first.xrange_count(stream, behind, "+", 1).cmd("TIME");
    let (next, (seconds, microseconds)): (StreamRangeReply, (u64, u64)) =
        first.query_async(&mut con).await?;
    let mut ids: Vec<String> = next.ids.into_iter().map(|entry| entry.id).collect();
    if let Some(group) = &group
        && let StreamPendingReply::Data(pending) = con.xpending(stream, &group.name).await?
    {
        ids.push(pending.start_id);
    }
    let now_ms = seconds * 1000 + microseconds / 1000;
    // An id begins with the time at which it was added.
    let added_ms = |id: &String| id.split('-').next()?.parse::<u64>().ok();
    Ok(match ids.iter().filter_map(added_ms).min() {
        Some(added_ms) => Waiting::Since(Duration::from_millis(now_ms.saturating_sub(added_ms))),
        None => Waiting::Nothing,
    })
}
