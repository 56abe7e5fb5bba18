//! Does a batch close each order once, and tell of every other how it stands?

use flashlock::deduct::{self, Closed};
use flashlock::order::{CloseReason, NewOrder, OrderState};
use flashlock::sale::OrderId;

use super::{Db, new_order};
use crate::world::DATABASES;

/// Below the orders of one batch of the closer, above one of the combiner.
const BACKLOG: usize = 300;

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_closes_what_still_waits_and_tells_how_the_rest_stands() {
    for database in DATABASES {
        let db = Db::new(database).await;
        let activity = db.activity(9).await;
        let mut ids = Vec::new();
        for user in ["alice", "bob", "carol"] {
            ids.push(db.booked(&activity, user).await.id);
        }
        let cancelled = deduct::close(&db.store, &activity, &ids[1..2], CloseReason::User).await;
        assert!(
            matches!(cancelled[..], [Ok(Closed::Closed)]),
            "{database}: {cancelled:?}"
        );
        // Never booked.
        ids.push(new_order(&activity, "dave").id(&activity.id));

        let endings = deduct::close(&db.store, &activity, &ids, CloseReason::Timeout).await;
        match &endings[..] {
            [
                Ok(Closed::Closed),
                Ok(Closed::NotPending(bobs)),
                Ok(Closed::Closed),
                Ok(Closed::NotFound),
            ] => {
                assert_eq!(bobs.id, ids[1], "{database}");
                assert_eq!(bobs.state, OrderState::Closed, "{database}");
                assert_eq!(bobs.close_reason, Some(CloseReason::User), "{database}");
            }
            other => panic!("{database}: {other:?}"),
        }
        let ledger = db.books(&activity).await.ledger("A");
        assert_eq!((ledger.available, ledger.held), (9, 0), "{database}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_closers_of_one_backlog_give_each_unit_back_once() {
    for database in DATABASES {
        let db = Db::new(database).await;
        let stock = i64::try_from(BACKLOG).expect("a number");
        let activity = db.activity(stock).await;
        let orders: Vec<NewOrder> = (0..BACKLOG)
            .map(|i| new_order(&activity, &format!("u{i}")))
            .collect();
        for batch in orders.chunks(100) {
            let booked = deduct::book(&db.store, &activity, batch).await;
            assert!(booked.iter().all(Result::is_ok), "{database}: {booked:?}");
        }
        let ids: Vec<OrderId> = orders.iter().map(|o| o.id(&activity.id)).collect();
        let backwards: Vec<OrderId> = ids.iter().rev().cloned().collect();
        let other = db.other().await;
        let (one, two) = tokio::join!(
            deduct::close(&db.store, &activity, &ids, CloseReason::Timeout),
            deduct::close(&other, &activity, &backwards, CloseReason::Timeout),
        );
        let closed = one
            .iter()
            .chain(&two)
            .filter(|e| matches!(e, Ok(Closed::Closed)));
        assert_eq!(closed.count(), BACKLOG, "{database}");
        let ledger = db.books(&activity).await.ledger("A");
        assert_eq!((ledger.available, ledger.held), (stock, 0), "{database}");
    }
}
