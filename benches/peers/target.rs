//! Which figures must ours reach, and do they?

use serde_json::json;

use crate::holds::median;
use crate::library::Library;
use crate::rows::Row;
use crate::scenario::Scenario;

/// Ours must be this many times as fast as the peer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Faster {
    pub(crate) ours: Library,
    pub(crate) peer: Library,
    pub(crate) scenario: Scenario,
    target: f64,
}

/// Both are measured in every round, one right after the other.
pub(crate) const FASTER: [Faster; 7] = [
    Faster {
        ours: Library::RedisSetNx,
        peer: Library::RslockOne,
        scenario: Scenario::One,
        target: 0.9,
    },
    Faster {
        ours: Library::RedisSetNx,
        peer: Library::RslockOne,
        scenario: Scenario::ThirtyTwo,
        target: 1.5,
    },
    Faster {
        ours: Library::RedisSetNx,
        peer: Library::RslockOne,
        scenario: Scenario::ThirtyTwoOverFour,
        target: 2.0,
    },
    Faster {
        ours: Library::Redlock,
        peer: Library::RslockFive,
        scenario: Scenario::ThirtyTwo,
        target: 5.0,
    },
    Faster {
        ours: Library::Redlock,
        peer: Library::RslockFive,
        scenario: Scenario::ThirtyTwoOverFour,
        target: 5.0,
    },
    Faster {
        ours: Library::Zookeeper,
        peer: Library::Curator,
        scenario: Scenario::One,
        target: 1.5,
    },
    Faster {
        ours: Library::Zookeeper,
        peer: Library::Curator,
        scenario: Scenario::ThirtyTwoOverFour,
        target: 2.0,
    },
];

/// Whose clients within a process must get the same.
pub(crate) const FAIR: [Library; 3] = [Library::RedisSetNx, Library::Redlock, Library::Zookeeper];
pub(crate) const FAIR_IN: Scenario = Scenario::ThirtyTwo;
const FAIR_TARGET: f64 = 0.95;

/// The names of all rows that this bench may write.
pub(crate) fn names() -> Vec<String> {
    let faster = FASTER.iter().map(Faster::name);
    faster
        .chain(FAIR.iter().map(|library| fair_name(*library)))
        .collect()
}

// === impl Faster ===

impl Faster {
    pub(crate) fn cells(&self) -> [(Library, Scenario); 2] {
        [(self.ours, self.scenario), (self.peer, self.scenario)]
    }

    pub(crate) fn name(&self) -> String {
        let (ours, peer) = (self.ours.name(), self.peer.name());
        format!("{ours} / {peer}, {}, per s", self.scenario.title())
    }

    /// The row of these rounds, each ours and the peer's per second; `None` without a round in which
    /// both were measured.
    pub(crate) fn row(&self, rounds: &[(f64, f64)]) -> Option<Row> {
        let ratios: Vec<f64> = rounds
            .iter()
            // A peer that made no progress is no divisor.
            .filter(|(_, peer)| *peer > 0.0)
            .map(|(ours, peer)| ours / peer)
            .collect();
        let (lowest, highest) = span(&ratios)?;
        Some(Row {
            name: self.name(),
            ours: median(rounds.iter().map(|(ours, _)| *ours).collect())?,
            reference: median(rounds.iter().map(|(_, peer)| *peer).collect())?,
            ratio: median(ratios.clone())?,
            target: self.target,
            more: more(&[
                ("ratio_min", json!(lowest)),
                ("ratio_max", json!(highest)),
                ("rounds", json!(ratios.len())),
            ]),
        })
    }
}

/// The row of Jain's index of each round; 1 is the reference.
pub(crate) fn fairness(library: Library, rounds: &[f64]) -> Option<Row> {
    let (lowest, highest) = span(rounds)?;
    let jain = median(rounds.to_vec())?;
    Some(Row {
        name: fair_name(library),
        ours: jain,
        reference: 1.0,
        ratio: jain,
        target: FAIR_TARGET,
        more: more(&[
            ("ratio_min", json!(lowest)),
            ("ratio_max", json!(highest)),
            ("rounds", json!(rounds.len())),
        ]),
    })
}

fn fair_name(library: Library) -> String {
    format!("{}, fairness (Jain), {}", library.name(), FAIR_IN.title())
}

fn span(values: &[f64]) -> Option<(f64, f64)> {
    let lowest = values.iter().copied().min_by(f64::total_cmp)?;
    let highest = values.iter().copied().max_by(f64::total_cmp)?;
    Some((lowest, highest))
}

fn more(fields: &[(&str, serde_json::Value)]) -> serde_json::Map<String, serde_json::Value> {
    let fields = fields.iter();
    fields
        .map(|(name, value)| ((*name).to_owned(), value.clone()))
        .collect()
}
