//! Who clicks, when, and with which key: the same seeded stream for every strategy.

use std::collections::BTreeSet;

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use super::plan::LoadPlan;

/// One press of the button. A buyer who presses twice makes two clicks, one right after the other,
/// at two instances.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Click {
    pub user: String,
    pub key: String,
    pub instance: usize,
    /// For the pauses between its tries.
    pub seed: u64,
}

/// What the buyers asked for: the pairs of user and key that an order may come from.
pub type Asked = BTreeSet<(String, String)>;

/// The clicks of one burst. The same seed gives the same clicks.
pub fn clicks(load: &LoadPlan, seed: u64, instances: usize) -> Vec<Click> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut users: Vec<u32> = (1..=load.users).collect();
    users.shuffle(&mut rng);
    let mut clicks = Vec::with_capacity(users.len());
    for (turn, user) in users.into_iter().enumerate() {
        let dice: f64 = rng.random();
        let click = |key: u8, instance: usize, rng: &mut StdRng| Click {
            user: format!("u{user}"),
            key: format!("{seed:x}-u{user}-{key}"),
            instance: instance % instances,
            seed: rng.random(),
        };
        clicks.push(click(1, turn, &mut rng));
        if dice < load.same_key_share {
            clicks.push(click(1, turn + 1, &mut rng));
        } else if dice < load.same_key_share + load.other_key_share {
            clicks.push(click(2, turn + 1, &mut rng));
        }
    }
    clicks
}

pub fn asked(clicks: &[Click]) -> Asked {
    clicks
        .iter()
        .map(|click| (click.user.clone(), click.key.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::plan::tests::plan;

    #[test]
    fn the_same_seed_gives_the_same_clicks_and_another_seed_others() {
        let load = plan().load;
        assert_eq!(clicks(&load, 7, 2), clicks(&load, 7, 2));
        assert_ne!(clicks(&load, 7, 2), clicks(&load, 8, 2));
    }

    #[test]
    fn doubled_clicks_go_to_another_instance_in_their_shares() {
        let mut load = plan().load;
        load.users = 10_000;
        let clicks = clicks(&load, 7, 2);
        let mut same = 0;
        let mut other = 0;
        for pair in clicks.windows(2).filter(|p| p[0].user == p[1].user) {
            assert_ne!(pair[0].instance, pair[1].instance);
            match pair[0].key == pair[1].key {
                true => same += 1,
                false => other += 1,
            }
        }
        assert_eq!(clicks.len(), 10_000 + same + other);
        assert!(
            (800..1200).contains(&same),
            "{same} of 10000 with the same key"
        );
        assert!(
            (800..1200).contains(&other),
            "{other} of 10000 with another key"
        );
    }
}
