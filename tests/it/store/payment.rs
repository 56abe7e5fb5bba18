//! Pay against close: one of the two, and the money is never lost.

use flashlock::deduct::{Closed, close};
use flashlock::order::{CloseReason, OrderState};
use flashlock::store::{Payment, PaymentOutcome, StoreError};
use sqlx::Row;

use super::Db;
use crate::world::DATABASES;

fn payment(txn: &str) -> Payment {
    Payment {
        provider: "acme".to_string(),
        provider_txn: txn.to_string(),
    }
}

/// (payments, refunds) of the order.
async fn rows(db: &Db, order: &flashlock::order::Order) -> (i64, i64) {
    let pool = db.raw().await;
    let mut counts = Vec::new();
    for table in ["payment", "refund"] {
        let sql = format!(
            "SELECT COUNT(*) FROM {table} WHERE order_id = '{}'",
            order.id.rid
        );
        let row = sqlx::query(sqlx::AssertSqlSafe(sql))
            .fetch_one(&pool)
            .await
            .expect("a count");
        counts.push(row.get(0));
    }
    (counts[0], counts[1])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payment_and_a_close_at_once_have_one_winner() {
    for database in DATABASES {
        let db = Db::new(database).await;
        let other = db.other().await;
        let activity = db.activity(20).await;
        let mut paid_first = 0;
        for n in 0..16 {
            let order = db.booked(&activity, &format!("u-{n}")).await;
            let txn = payment(&format!("t-{n}"));
            let ids = [order.id.clone()];
            // By turns, one of them gets a head start.
            let pay = async {
                if n % 2 == 0 {
                    tokio::task::yield_now().await;
                }
                db.store.pay(&order, &txn).await.expect("an outcome")
            };
            let close = async {
                if n % 2 == 1 {
                    tokio::task::yield_now().await;
                }
                close(&other, &activity, &ids, CloseReason::User)
                    .await
                    .remove(0)
                    .expect("an outcome")
            };
            let (outcome, closed) = tokio::join!(pay, close);
            let stored = db
                .store
                .order(order.id.rid)
                .await
                .expect("an answer")
                .expect("the order");
            match (outcome, closed) {
                (PaymentOutcome::Applied, Closed::NotPending(_)) => {
                    assert_eq!(stored.state, OrderState::Paid, "{database}");
                    assert_eq!(rows(&db, &order).await, (1, 0), "{database}");
                    paid_first += 1;
                }
                (PaymentOutcome::RefundDue, Closed::Closed) => {
                    assert_eq!(stored.state, OrderState::Closed, "{database}");
                    assert_eq!(rows(&db, &order).await, (1, 1), "{database}");
                }
                both => panic!("{database}: {both:?}"),
            }
            let again = db.store.pay(&order, &txn).await.expect("an outcome");
            assert_eq!(again, outcome, "{database}: a repeat answers the same");
        }
        let ledger = db.books(&activity).await.ledger("A");
        assert_eq!(
            (ledger.sold, ledger.held, ledger.available),
            (paid_first, 0, 20 - paid_first),
            "{database}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payment_after_the_pay_window_is_due_back() {
    for database in DATABASES {
        let db = Db::new(database).await;
        let activity = db.activity(5).await;
        let order = db.booked(&activity, "alice").await;
        let sql = "UPDATE orders SET pay_deadline = 1";
        sqlx::query(sql)
            .execute(&db.raw().await)
            .await
            .expect("the window is over");
        let outcome = db
            .store
            .pay(&order, &payment("t"))
            .await
            .expect("an outcome");
        assert_eq!(outcome, PaymentOutcome::RefundDue, "{database}");
        assert_eq!(rows(&db, &order).await, (1, 1), "{database}");
        let due = db.store.due_orders(10).await.expect("an answer");
        assert_eq!(due, std::slice::from_ref(&order.id), "{database}");
        assert_eq!(db.books(&activity).await.ledger("A").held, 1, "{database}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_transaction_pays_one_order() {
    for database in DATABASES {
        let db = Db::new(database).await;
        let activity = db.activity(5).await;
        let first = db.booked(&activity, "alice").await;
        let second = db.booked(&activity, "bob").await;
        db.store.pay(&first, &payment("t")).await.expect("applied");
        let reused = db.store.pay(&second, &payment("t")).await;
        assert!(
            matches!(reused, Err(StoreError::Conflict(_))),
            "{database}: {reused:?}"
        );
        let ledger = db.books(&activity).await.ledger("A");
        assert_eq!((ledger.sold, ledger.held), (1, 1), "{database}");
        let twice = db
            .store
            .pay(&first, &payment("t-2"))
            .await
            .expect("an outcome");
        assert_eq!(
            twice,
            PaymentOutcome::RefundDue,
            "{database}: it is paid already"
        );
    }
}
