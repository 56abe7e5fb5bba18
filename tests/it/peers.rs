//! What the bench of locks concludes from stamps, and what it leaves in the file that benches share.

#[path = "../../benches/peers/holds.rs"]
mod holds;
#[path = "../../benches/rows.rs"]
mod rows;

use holds::{HandOffs, Hold, hand_offs, in_order, jain, median, overlaps, quantile};
use rows::Row;

fn hold(client: usize, acquired_ns: i64, released_ns: i64) -> Hold {
    Hold {
        client,
        acquired_ns,
        released_ns,
    }
}

#[test]
fn two_holders_at_once_are_seen_also_when_others_lie_between() {
    let apart = [hold(0, 0, 10), hold(1, 10, 20), hold(0, 25, 30)];
    assert_eq!(overlaps(&apart), []);
    let long = in_order(vec![hold(2, 50, 60), hold(0, 0, 55), hold(1, 70, 80)]);
    let seen = overlaps(&long);
    assert_eq!(seen.len(), 1);
    assert_eq!((seen[0].first, seen[0].second), (long[0], long[1]));
    let nested = [hold(0, 0, 100), hold(1, 10, 20), hold(2, 30, 40)];
    assert_eq!(overlaps(&nested).len(), 2);
}

#[test]
fn a_hand_off_is_from_the_release_of_one_client_to_the_grant_of_another() {
    let holds = [
        hold(0, 0, 10),
        hold(1, 17, 20),
        hold(1, 21, 30),
        hold(0, 33, 40),
        hold(1, 90, 95),
    ];
    let found = HandOffs {
        gaps_ns: vec![3, 7],
        to_itself: 1,
    };
    assert_eq!(hand_offs(&holds, 10, 90), found);
    let later = hand_offs(&holds, 30, 100);
    assert_eq!((later.gaps_ns, later.to_itself), (vec![3, 50], 0));
}

#[test]
fn fairness_is_one_for_equal_shares_and_one_nth_for_a_single_winner() {
    assert_eq!(jain(&[7, 7, 7, 7]), Some(1.0));
    assert_eq!(jain(&[9, 0, 0, 0]), Some(0.25));
    assert_eq!(jain(&[0, 0]), None);
    assert_eq!(jain(&[]), None);
}

#[test]
fn a_quantile_without_100_samples_beyond_it_is_not_told() {
    let thousand: Vec<i64> = (0..1000).collect();
    assert_eq!(quantile(&thousand, 0.5), Some(500));
    assert_eq!(quantile(&thousand, 0.9), Some(900));
    assert_eq!(quantile(&thousand, 0.99), None);
    assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
    assert_eq!(median(vec![4.0, 1.0]), Some(2.5));
    assert_eq!(median(Vec::new()), None);
}

#[test]
fn a_bench_replaces_its_own_rows_and_keeps_the_others() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("bench.json");
    let row = |name: &str, ratio: f64| Row {
        name: name.to_owned(),
        ours: ratio,
        reference: 1.0,
        ratio,
        target: 2.0,
        more: serde_json::Map::new(),
    };
    rows::merge(&file, &[row("a", 1.0), row("b", 1.0)]).expect("a new file");
    rows::merge(&file, &[row("c", 3.0), row("a", 2.0)]).expect("the same file");
    let text = std::fs::read(&file).expect("it is there");
    let all: Vec<Row> = serde_json::from_slice(&text).expect("rows");
    assert_eq!(all, [row("a", 2.0), row("b", 1.0), row("c", 3.0)]);
    std::fs::write(&file, "{}").expect("it can be written");
    assert!(rows::merge(&file, &[row("a", 1.0)]).is_err());
    assert!(rows::file().ends_with("target/bench.json"));
}
