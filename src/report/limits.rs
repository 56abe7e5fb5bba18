//! Orders per second as a share of what the raw servers do in the same run.

use serde::Serialize;

use super::rows::{self, Kind, NO_FIGURE};
use crate::run::{Cell, Limit, Run};

/// Goodput of each strategy by limit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Shares {
    /// The limits, in the run's order.
    pub(super) columns: Vec<Column>,
    pub(super) rows: Vec<ShareRow>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) per_s: String,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct ShareRow {
    pub(super) strategy: String,
    /// One per column: a share such as `23 %`, or a dash where the strategy does not go through
    /// what the limit measures.
    pub(super) shares: Vec<String>,
}

/// The shares of all strategies that ran; the control too, since it pays for everything but the lock.
pub(super) fn shares(run: &Run) -> Shares {
    let ran = rows::sorted(run)
        .into_iter()
        .filter(|c| match rows::kind(c) {
            Kind::Judged | Kind::Control => true,
            Kind::Skipped => false,
        });
    Shares {
        columns: run
            .limits
            .iter()
            .map(|limit| Column {
                name: limit.name.clone(),
                per_s: rows::figure(limit.per_s),
            })
            .collect(),
        rows: ran
            .map(|cell| ShareRow {
                strategy: rows::name(run, cell),
                shares: run.limits.iter().map(|l| share(cell, l)).collect(),
            })
            .collect(),
    }
}

fn share(cell: &Cell, limit: &Limit) -> String {
    match cell.goodput_per_s {
        Some(goodput) if limit.per_s > 0.0 && bounds(limit, cell) => {
            format!("{} %", rows::figure(100.0 * goodput / limit.per_s))
        }
        Some(_) | None => NO_FIGURE.to_string(),
    }
}

/// Whether an order of this strategy goes through what the limit measures. Limits are named after
/// their server; every order goes through HTTP and the database.
fn bounds(limit: &Limit, cell: &Cell) -> bool {
    let name = limit.name.as_str();
    if name.starts_with("redis") {
        cell.strategy.starts_with("redis") || cell.strategy == "redlock"
    } else if name.starts_with("zookeeper") {
        cell.strategy == "zookeeper"
    } else if name.starts_with("fsync") {
        // Without a flush before the answer, the disk's flushes are not what bounds it.
        cell.durability == "fsync"
    } else {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn a_share_stands_only_where_the_strategy_uses_the_server() {
        let shares = shares(&sample::run());
        let of = |name: &str| {
            let row = shares.rows.iter().find(|r| r.strategy == name);
            row.expect("a row").shares.join(" | ")
        };
        // fsync, http-noop, redis-evalsha, zookeeper-create-delete, database-hot-row
        assert_eq!(of("redis-set-nx"), "9.13 % | 0.781 % | 1.18 % | – | 23.0 %");
        assert_eq!(of("zookeeper"), "5.24 % | 0.448 % | – | 11.9 % | 13.2 %");
        assert_eq!(of("redis-lua"), "– | 6.09 % | 9.23 % | – | 179 %");
        assert!(
            !shares.rows.iter().any(|r| r.strategy == "redlock"),
            "it was skipped"
        );
    }

    #[test]
    fn a_limit_of_zero_gives_no_share() {
        let mut run = sample::run();
        run.limits[0].per_s = 0.0;
        assert_eq!(shares(&run).rows[0].shares[0], NO_FIGURE);
    }
}
