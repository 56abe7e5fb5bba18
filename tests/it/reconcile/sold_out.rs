//! Does a process that remembers a sold-out sell at once what one of its roles gives back? The
//! memory lasts for 200 ms, so its clock stands still here: nothing is forgotten with time.

use std::sync::mpsc::{Sender, channel};

use super::*;

/// Tries of a look, 5 ms apart: far above what a busy machine needs.
const LOOKS_MAX: u32 = 4_000;

/// The process's clock stands still until this is dropped.
struct StandsStill {
    _until: Sender<()>,
}

impl StandsStill {
    fn from_now_on() -> Self {
        let (until, over) = channel::<()>();
        tokio::time::pause();
        // A paused clock runs on to the next timer whenever nothing is to do, unless a thread is busy.
        drop(tokio::task::spawn_blocking(move || over.recv()));
        Self { _until: until }
    }
}

/// Asks until the gate has this many for sale.
async fn until_available(sale: &Sale, available: i64) {
    for _ in 0..LOOKS_MAX {
        if sale.gate_counts().await.0 == available {
            return;
        }
        let pause = || std::thread::sleep(Duration::from_millis(5));
        tokio::task::spawn_blocking(pause).await.expect("no panic");
    }
    panic!("it was never given back");
}

/// One phone, held by a purchase that is never booked; another buyer has been told that it is sold
/// out, and remembers.
async fn sold_out() -> (Sale, NewOrder, StandsStill) {
    let sale = Sale::open("sqlite", 1).await;
    let held = sale.held("alice").await;
    let still = StandsStill::from_now_on();
    assert_sold_out(&sale, "bob").await;
    (sale, held, still)
}

async fn assert_sold_out(sale: &Sale, user: &str) {
    let ending = sale.buy(user).await;
    assert!(
        matches!(ending, Ending::SoldOut { left: 0, .. }),
        "{ending:?}"
    );
}

async fn assert_sold(sale: &Sale, user: &str) {
    let ending = sale.buy(user).await;
    assert!(
        matches!(ending, Ending::Booked { left: 0, .. }),
        "{ending:?}"
    );
}

/// Runs the sweeper, which also resolves, until the gate has the unit again.
async fn swept(sale: &Sale) {
    let stop = CancellationToken::new();
    let sweeper = tokio::spawn(Arc::clone(&sale.flow).sweeper(stop.clone()));
    until_available(sale, 1).await;
    // Its pass is at an end when it stops.
    stop.cancel();
    sweeper.await.expect("it stops");
}

/// What the other tests rest on: as long as the clock stands still, the memory answers.
#[tokio::test]
async fn what_no_role_of_this_process_gave_back_stays_sold_out_while_it_is_remembered() {
    let (sale, held, _still) = sold_out().await;
    let released = sale.gate.release(&sale.id, &[held.rid], "a-test").await;
    released.expect("released");
    until_available(&sale, 1).await;
    assert_sold_out(&sale, "carol").await;
}

#[tokio::test]
async fn what_the_sweeper_gave_back_is_sold_at_once() {
    let (sale, held, _still) = sold_out().await;
    sale.grow_old(&held).await;
    swept(&sale).await;
    assert_sold(&sale, "carol").await;
}

#[tokio::test]
async fn what_the_resolver_gave_back_is_sold_at_once() {
    let (sale, held, _still) = sold_out().await;
    let store = sale.store();
    // Too young for the sweeper, and noted as unknown.
    let unknown = [tombstone(&held)];
    store
        .insert_compensations(&sale.id, &unknown)
        .await
        .expect("noted");
    store
        .postpone_compensation(held.rid, Some(Duration::ZERO), "it is due now")
        .await
        .expect("due");
    swept(&sale).await;
    let noted = sale.flow.compensations().await.expect("read");
    assert_eq!(noted[0].state, CompensationState::Done, "{noted:?}");
    assert_sold(&sale, "carol").await;
}

#[tokio::test]
async fn what_a_reconciliation_gave_back_is_sold_at_once() {
    let (sale, held, _still) = sold_out().await;
    sale.grow_old(&held).await;
    // A dry run gives nothing back, and nothing is forgotten.
    let seen = sale.flow.reconcile(&sale.id, Mode::DryRun).await;
    assert_eq!(seen.expect("compared").findings.len(), 1);
    assert_sold_out(&sale, "bob").await;
    let mended = sale.flow.reconcile(&sale.id, Mode::Repair).await;
    let mended = mended.expect("mended");
    assert!(mended.findings.iter().all(|f| f.repaired), "{mended:?}");
    until_available(&sale, 1).await;
    assert_sold(&sale, "carol").await;
}
