//! Is every unit of a crowded sale booked, and every buyer told how it ended?

use std::collections::BTreeMap;

use futures::future::join_all;

use super::{decided, lab_redis, sale, store, until_drained};
use crate::books::Books;
use crate::world::{Service, world};

const BUYERS: usize = 1_000;
const STOCK: i64 = 300;
/// Buyers at once.
const AT_ONCE: usize = 64;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_buyers_for_three_hundred_units_book_three_hundred() {
    for database in ["postgres", "mysql"] {
        let url = world().database(database).await;
        let options = world().everything(&url);
        let services = [
            Service::start(&options).await,
            Service::start(&options).await,
        ];
        let activity = services[0].api.open(sale(STOCK)).await;
        let mut answers: BTreeMap<u16, usize> = BTreeMap::new();
        let mut orders = Vec::new();
        let buyers: Vec<usize> = (0..BUYERS).collect();
        for some in buyers.chunks(AT_ONCE) {
            let bought = some.iter().map(|n| {
                let (api, activity) = (&services[n % 2].api, &activity);
                let user = format!("u{n}");
                async move {
                    api.buy_surely(activity, &user, "key", &[("phone", 1)])
                        .await
                }
            });
            for answer in join_all(bought).await {
                *answers.entry(answer.status).or_default() += 1;
                match answer.status {
                    // 200: it was booked by the time its 503 was tried again.
                    202 | 200 => orders.push(answer.order_id()),
                    409 => assert_eq!(answer.problem(), "sold-out", "{answer:?}"),
                    _ => panic!("{answer:?}"),
                }
            }
        }
        assert_eq!(orders.len() as i64, STOCK, "{database}: {answers:?}");
        let ends = join_all(orders.iter().map(|order| decided(&services[1].api, order))).await;
        for end in ends {
            assert_eq!(end.body["status"], "PENDING_PAYMENT", "{database}: {end:?}");
        }
        until_drained(&lab_redis().await, &activity).await;
        let stock = services[0].api.stock(&activity, "phone").await;
        assert_eq!(stock, (STOCK, 0, STOCK, 0), "{database}");
        // Which of the processes booked is theirs to settle.
        let mut counted = false;
        for service in &services {
            let metrics = service.api.get("/metrics").await.body.to_string();
            counted |= metrics.contains("flashlock_booking_booked_total");
        }
        assert!(counted, "{database}: no process counts what it booked");
        let books = Books::read(&store(&url).await, &activity).await;
        books.assert_balanced(database);
        assert_eq!(books.live().count() as i64, STOCK);
    }
}
