//! Does a lease keep its word whatever runs between any two steps of those who share it?
//!
//! The state machine of `lock/lease.rs` under the scheduler of `shuttle`: the watchdog, the server, a
//! rival, the clock, a release and those who wait for the loss are threads here. Any two of them that
//! have to do with each other are tried in every order of their steps (`two_in_every_order`): that is
//! exhaustive, and asserted to be. Three and more have too many orders, of which the others try
//! thousands at random.
//!
//! A test program of its own, because shuttle's panic hook adds to what any failing test of the same
//! process says.

use std::sync::Arc;
use std::time::Duration;

use flashlock::clock::Instant;
use flashlock::lock::lease::{Event, Lease, Phase, Timing};
use shuttle::scheduler::DfsScheduler;
use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use shuttle::sync::{Condvar, Mutex};
use shuttle::{Config, Runner, thread};

const TTL_MS: u64 = 900;
const TIMING: Timing = Timing {
    ttl: Duration::from_millis(TTL_MS),
    hold_max: Duration::from_millis(2_500),
};
/// Two of them are more than a renewal's third of the lease, four more than the lease.
const TICK_MS: u64 = 310;
/// Orders tried at random: some seconds on a busy machine.
const RANDOM_ORDERS: usize = 1_000;
/// More orders than any two have; the most have 13,264.
const ORDERS_MAX: usize = 50_000;

/// Everything the threads share: the time, the server's books, and the lease in its holder's memory.
struct Shared {
    begun: Instant,
    now_ms: AtomicU64,
    server: Mutex<Server>,
    lease: Mutex<Lease>,
    changed: Condvar,
    told_lost: AtomicBool,
}

/// What the server knows. It forgets the holder at `until_ms`, and whoever asks then has the lock.
struct Server {
    until_ms: u64,
    taken: bool,
}

// === impl Shared ===

impl Shared {
    fn new() -> Arc<Self> {
        // Only differences count; the scheduler must see the same in every run.
        let begun = flashlock::clock::now();
        Arc::new(Self {
            begun,
            now_ms: AtomicU64::new(0),
            server: Mutex::new(Server {
                until_ms: TTL_MS,
                taken: false,
            }),
            lease: Mutex::new(Lease::granted(begun, TIMING)),
            changed: Condvar::new(),
            told_lost: AtomicBool::new(false),
        })
    }

    fn now(&self) -> Instant {
        self.begun + Duration::from_millis(self.now_ms.load(Ordering::SeqCst))
    }

    fn lease(&self) -> Lease {
        *self.lease.lock().expect("no panic")
    }

    fn apply(&self, event: Event) {
        let mut lease = self.lease.lock().expect("no panic");
        // Under the lock: a loss that was told by a later clock must not be undone by an earlier one.
        let now = self.now();
        if let Ok(next) = lease.next(event, now) {
            *lease = next;
        }
        drop(lease);
        self.changed.notify_all();
    }

    /// The fault: time passes between the look at the clock and the lease.
    fn apply_late(&self, event: Event) {
        let now = self.now();
        let mut lease = self.lease.lock().expect("no panic");
        if let Ok(next) = lease.next(event, now) {
            *lease = next;
        }
        drop(lease);
        self.changed.notify_all();
    }

    /// Time passes, and timers fire.
    fn ticks(&self, times: u32) {
        for _ in 0..times {
            self.passes(TICK_MS);
        }
    }

    fn passes(&self, ms: u64) {
        self.now_ms.fetch_add(ms, Ordering::SeqCst);
        drop(self.lease.lock().expect("no panic"));
        self.changed.notify_all();
    }

    /// Asks the server so often; each step may be late.
    fn renews(&self, times: u32) {
        for _ in 0..times {
            if self.lease().renew_at().is_none() {
                return;
            }
            let asked_at = self.now();
            let mut server = self.server.lock().expect("no panic");
            let now_ms = self.now_ms.load(Ordering::SeqCst);
            let mine = !server.taken && now_ms < server.until_ms;
            if mine {
                server.until_ms = now_ms + TTL_MS;
            }
            drop(server);
            self.apply(match mine {
                true => Event::Renewed { asked_at },
                false => Event::Gone,
            });
        }
    }

    /// Another process asks for the lock. At the instant in which it is granted, the holder must not
    /// believe any more that it may write.
    fn rival(&self, times: u32) {
        for _ in 0..times {
            let mut server = self.server.lock().expect("no panic");
            let now_ms = self.now_ms.load(Ordering::SeqCst);
            if server.taken || now_ms < server.until_ms {
                continue;
            }
            server.taken = true;
            let lease = self.lease();
            let now = self.begun + Duration::from_millis(now_ms);
            assert!(!lease.is_held(now), "two hold it at {now_ms} ms: {lease:?}");
        }
    }

    /// Waits until the lease is over, as `lost()` does; whether it was told a loss.
    fn observes(&self) -> bool {
        let mut lease = self.lease.lock().expect("no panic");
        loop {
            match lease.phase_at(self.now()) {
                Phase::Lost(_) => {
                    self.told_lost.store(true, Ordering::SeqCst);
                    return true;
                }
                Phase::Released => return false,
                Phase::Held => lease = self.changed.wait(lease).expect("no panic"),
            }
        }
    }

    /// The holder, between two writes. What was lost once is never held again.
    fn works(&self, steps: u32) {
        for _ in 0..steps {
            let told = self.told_lost.load(Ordering::SeqCst);
            let held = self.lease().is_held(self.now());
            assert!(!(told && held), "held again after the loss was told");
        }
    }
}

/// Runs each of `parts` in a thread of its own, on what they share, and waits for them.
fn together(parts: Vec<fn(&Shared)>) -> Arc<Shared> {
    let shared = Shared::new();
    let threads: Vec<_> = parts
        .into_iter()
        .map(|part| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || part(&shared))
        })
        .collect();
    for thread in threads {
        thread.join().expect("no panic");
    }
    shared
}

/// Tries the two in all orders, and looks at what they leave.
fn in_every_order(parts: [fn(&Shared); 2], left: fn(&Shared)) {
    let course = move || left(&together(parts.to_vec()));
    let scheduler = DfsScheduler::new(Some(ORDERS_MAX), false);
    let tried = Runner::new(scheduler, Config::default()).run(course);
    assert!(tried < ORDERS_MAX, "there are more than {tried}");
}

/// The whole lease passes at once in these.
const LAPSES: fn(&Shared) = |s| s.passes(TTL_MS);

#[test]
fn two_in_every_order() {
    let released: fn(&Shared) = |s| s.apply(Event::Released);
    // A release ends it, whatever a renewal that crosses it says.
    in_every_order([released, |s| s.renews(1)], |s| {
        let far = s.begun + Duration::from_secs(60);
        assert_eq!(s.lease().phase_at(far), Phase::Released);
    });
    // Whoever waits for the loss is told it by the clock and by a watch, and not by a release.
    in_every_order([LAPSES, |s| assert!(s.observes())], |_| {});
    let gone: fn(&Shared) = |s| s.apply(Event::Gone);
    in_every_order([gone, |s| assert!(s.observes())], |_| {});
    in_every_order([released, |s| assert!(!s.observes())], |_| {});
    // The holder never believes for longer than the server does.
    let no_longer: fn(&Shared) = |s| {
        let until_ms = s.server.lock().expect("no panic").until_ms;
        let until = s.begun + Duration::from_millis(until_ms);
        assert!(s.lease().valid_until() <= until);
    };
    in_every_order([LAPSES, |s| s.renews(1)], no_longer);
    in_every_order([|s| s.passes(TTL_MS / 2), |s| s.renews(1)], no_longer);
    // Nobody is let in meanwhile: the rival looks at the lease at the instant of its grant.
    in_every_order([LAPSES, |s| s.rival(2)], |_| {});
    in_every_order([|s| s.renews(1), |s| s.rival(1)], |s| {
        assert!(!s.server.lock().expect("no panic").taken, "it is held");
    });
    // What was told lost is not held again, and not by good news that come too late.
    let told: fn(&Shared) = |s| {
        assert!(s.observes());
        s.works(1);
    };
    in_every_order([LAPSES, told], |_| {});
    in_every_order([LAPSES, |s| reassures(s, Shared::apply)], |s| {
        assert!(!s.lease().is_held(s.now()));
    });
}

/// A renewal whose request or answer is late must not make the holder believe for longer than the
/// server does.
#[test]
fn nobody_is_let_in_while_the_holder_believes() {
    let course = || {
        together(vec![|s| s.ticks(4), |s| s.renews(1), |s| s.rival(2)]);
    };
    shuttle::check_random(course, RANDOM_ORDERS * 5);
}

/// A renewal that is confirmed after the deadline meets those who wait for the loss.
#[test]
fn what_was_told_lost_is_never_held_again() {
    let course = || {
        let parts: Vec<fn(&Shared)> = vec![
            |s| s.ticks(3),
            |s| s.renews(1),
            |s| assert!(s.observes(), "nobody gave it back"),
            |s| s.works(1),
        ];
        // Whoever waits is woken when the last lease is over, however often it was renewed.
        let end: fn(&Shared) = |s| s.ticks(4);
        together([parts, vec![end]].concat());
    };
    shuttle::check_random(course, RANDOM_ORDERS);
}

/// A release ends it once and for all: no renewal that crosses it, and no deadline that passes after
/// it, makes it held or lost.
#[test]
fn what_was_given_back_is_neither_held_nor_lost() {
    let course = || {
        let shared = together(vec![
            |s| {
                s.apply(Event::Released);
                let given_back = s.lease();
                let far = s.begun + Duration::from_secs(60);
                if given_back.phase_at(far) == Phase::Released {
                    s.works(1);
                    assert_eq!(s.lease().phase_at(far), Phase::Released);
                }
            },
            |s| s.renews(1),
            |s| s.ticks(2),
        ]);
        assert!(!shared.lease().is_held(shared.now()));
    };
    shuttle::check_random(course, RANDOM_ORDERS * 3);
}

/// Two who wait for the loss, told by a watch or by the clock, hear the same.
#[test]
fn all_who_wait_hear_of_the_same_end() {
    let course = || {
        let shared = together(vec![
            |s| {
                s.observes();
            },
            |s| {
                s.observes();
            },
            |s| s.apply(Event::Gone),
            |s| s.apply(Event::Released),
        ]);
        let phase = shared.lease().phase_at(shared.now());
        let lost = matches!(phase, Phase::Lost(_));
        assert_eq!(shared.told_lost.load(Ordering::SeqCst), lost, "{phase:?}");
    };
    shuttle::check_random(course, RANDOM_ORDERS * 3);
}

/// All of it at once: suspicion and reassurance by the connection's state besides.
fn whole_life(reassures: fn(&Shared)) {
    let shared = together(vec![
        |s| s.ticks(8),
        |s| s.renews(3),
        |s| s.rival(4),
        reassures,
        |s| {
            s.observes();
        },
        |s| s.works(3),
        |s| {
            s.works(1);
            s.apply(Event::Released);
        },
    ]);
    assert!(!shared.lease().is_held(shared.now()));
}

fn reassures(shared: &Shared, apply: fn(&Shared, Event)) {
    let until = shared.now() + Duration::from_millis(TTL_MS / 2);
    apply(shared, Event::Suspected { until });
    apply(shared, Event::Reassured);
}

#[test]
fn a_whole_life_in_many_orders() {
    let course = || whole_life(|s| reassures(s, Shared::apply));
    shuttle::check_random(course, RANDOM_ORDERS);
    shuttle::check_pct(course, RANDOM_ORDERS, 3);
}

/// A known fault, which must be seen: an event that is applied by a clock read before the lease was
/// locked brings a lease back whose loss has been told meanwhile.
#[test]
#[should_panic(expected = "held again after the loss was told")]
fn a_clock_that_was_read_before_the_lock_brings_a_lease_back() {
    let course = || whole_life(|s| reassures(s, Shared::apply_late));
    shuttle::check_random(course, RANDOM_ORDERS * 20);
}
