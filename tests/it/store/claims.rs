//! Who may write the stock? The youngest claim alone.

use std::collections::BTreeSet;

use flashlock::lock::Fence;
use flashlock::sale::{Activity, Sku};
use flashlock::store::{Claim, Claimed, Store};
use tokio::task::JoinSet;

use super::{Db, sku};
use crate::world::DATABASES;

async fn claim(
    store: &Store,
    activity: &Activity,
    skus: &[Sku],
    generation: i64,
    fence: Fence,
) -> Claimed {
    store
        .claim(&activity.id, skus, generation, fence, &mut BTreeSet::new())
        .await
        .expect("the database answers")
}

/// Claims A alone; the pair that is there afterwards, and whether it is this call's.
async fn claim_a(
    store: &Store,
    activity: &Activity,
    generation: i64,
    fence: Fence,
) -> Result<Claim, Claim> {
    match claim(store, activity, &[sku("A")], generation, fence).await {
        Claimed::Mine(mine) => Ok(mine[&sku("A")].claim),
        Claimed::FencedOut(younger) => Err(younger),
        Claimed::UnknownSku(sku) => panic!("there is a {sku}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_not_above_the_last_is_fenced_out() {
    for database in DATABASES {
        let db = Db::new(database).await;
        let activity = db.activity(5).await;
        let pair = |generation, fence| Claim { generation, fence };
        let courses = [
            ((0, 7), Ok(pair(0, 7))),
            // Of another grant: its source has lost the last token, and issued it again.
            ((0, 7), Err(pair(0, 7))),
            ((0, 6), Err(pair(0, 7))),
            ((0, 9), Ok(pair(0, 9))),
            // A change of strategy: its tokens start anew, and the earlier ones are stale.
            ((1, 2), Ok(pair(1, 2))),
            ((0, 100), Err(pair(1, 2))),
            ((1, 1), Err(pair(1, 2))),
            ((1, 3), Ok(pair(1, 3))),
        ];
        for ((generation, token), expected) in courses {
            let claimed = claim_a(&db.store, &activity, generation, Fence::Token(token)).await;
            assert_eq!(claimed, expected, "{database}: ({generation}, {token})");
        }
        let unknown = claim(&db.store, &activity, &[sku("C")], 1, Fence::Token(9)).await;
        assert_eq!(unknown, Claimed::UnknownSku(sku("C")), "{database}");
    }
}

/// A grant that tries its critical section again finds its own token.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_may_claim_again_what_it_has_claimed() {
    for database in DATABASES {
        let db = Db::new(database).await;
        let activity = db.activity(5).await;
        let mut mine = BTreeSet::new();
        for skus in [vec![sku("A")], vec![sku("A"), sku("B")]] {
            let claimed = db
                .store
                .claim(&activity.id, &skus, 0, Fence::Token(7), &mut mine)
                .await;
            let claimed = claimed.expect("the database answers");
            assert!(
                matches!(claimed, Claimed::Mine(_)),
                "{database}: {claimed:?}"
            );
        }
        assert_eq!(mine, BTreeSet::from([sku("A"), sku("B")]), "{database}");
        // Another grant with the same token has claimed nothing of it.
        let other = claim_a(&db.store, &activity, 0, Fence::Token(7)).await;
        assert!(other.is_err(), "{database}: {other:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_reads_the_stock_of_every_sku() {
    for database in DATABASES {
        let db = Db::new(database).await;
        let activity = db.activity(5).await;
        db.booked(&activity, "alice").await;
        for fence in [Fence::Token(1), Fence::IssuedByStore] {
            let Claimed::Mine(mine) =
                claim(&db.store, &activity, &[sku("A"), sku("B")], 0, fence).await
            else {
                panic!("{database}: nobody else claims");
            };
            let seen = [sku("A"), sku("B")].map(|sku| mine[&sku].available);
            assert_eq!(seen, [4, 5], "{database}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_store_issues_each_token_once() {
    for database in DATABASES {
        let db = Db::new(database).await;
        let activity = db.activity(5).await;
        let mut claims = JoinSet::new();
        for _ in 0..24 {
            let (store, activity) = (db.store.clone(), activity.clone());
            claims.spawn(async move { claim_a(&store, &activity, 0, Fence::IssuedByStore).await });
        }
        let issued = claims.join_all().await.into_iter();
        let issued: BTreeSet<i64> = issued
            .map(|c| c.expect("no older generation").fence)
            .collect();
        assert_eq!(issued, (1..=24).collect(), "{database}");
        let renewed = claim_a(&db.store, &activity, 1, Fence::IssuedByStore).await;
        assert_eq!(
            renewed,
            Ok(Claim {
                generation: 1,
                fence: 1
            }),
            "{database}"
        );
        let stale = claim_a(&db.store, &activity, 0, Fence::IssuedByStore).await;
        assert_eq!(
            stale,
            Err(Claim {
                generation: 1,
                fence: 1
            }),
            "{database}"
        );
    }
}

/// The older holder wakes up between the younger one's claim and its write.
#[tokio::test(flavor = "multi_thread")]
async fn a_stale_claim_writes_nothing() {
    for database in DATABASES {
        let db = Db::new(database).await;
        let activity = db.activity(5).await;
        let old = claim_a(&db.store, &activity, 0, Fence::Token(1))
            .await
            .expect("the first");
        let young = claim_a(&db.store, &activity, 0, Fence::Token(2))
            .await
            .expect("the second");
        for (claim, written) in [(old, false), (young, true), (old, false)] {
            let mut tx = db.store.begin().await.expect("a transaction");
            let done = tx
                .write_available(&activity.id, &sku("A"), 3, Some(claim))
                .await;
            assert_eq!(done.expect("an answer"), written, "{database}: {claim:?}");
            tx.rollback().await;
        }
    }
}
