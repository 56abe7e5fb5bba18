//! What is left of a lease: renewal, deadline, loss and release, as one pure state machine.
//!
//! It does no I/O and reads no clock: the time is passed in, so every course of events can be
//! tested. Whoever holds it (`watchdog.rs`) asks the server and tells it what was answered.

use std::time::Duration;

use crate::clock::Instant;

/// Share of the lease that two clocks may drift apart, as the RedLock page recommends: 1 %.
const DRIFT_DIVISOR: u32 = 100;
/// Added to the drift: Redis expires keys with a precision of one millisecond, and rounds.
const DRIFT_FLOOR: Duration = Duration::from_millis(2);
/// A lease is renewed when this part of it has passed: two further tries fit before it ends.
const RENEW_DIVISOR: u32 = 3;
/// A failed renewal is tried again after this part of the lease: at most six times.
const RETRY_DIVISOR: u32 = 9;

/// How long a lease lasts, and for how long it may be renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// What the server was asked for.
    pub ttl: Duration,
    /// Longest hold, renewals included, counted from the grant.
    pub hold_max: Duration,
}

/// A lease as its holder sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    timing: Timing,
    granted_at: Instant,
    /// What the last confirmed grant or renewal is good for.
    confirmed_until: Instant,
    /// Set while the connection that keeps the lease alive is broken.
    suspect_until: Option<Instant>,
    renew_at: Instant,
    phase: Phase,
}

/// Where a lease stands. `Held` is the only one that is left; the other two are final.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Held,
    Lost(Loss),
    Released,
}

/// Why a lease ended before its holder gave it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// Its local deadline passed.
    Expired,
    /// The server said that it is another's, or nobody's.
    Gone,
}

/// What happened to a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The server confirmed it; the renewal was asked for at `asked_at`.
    Renewed { asked_at: Instant },
    /// A renewal was not answered, or with an error: it may or may not have happened.
    RenewalFailed,
    /// The server said that the lease is not this holder's.
    Gone,
    /// What keeps it alive is out of reach: it is trusted until then at most.
    Suspected { until: Instant },
    /// It is in reach again. A deadline that passed meanwhile stays passed.
    Reassured,
    /// Time went by.
    Passed,
    /// The holder gives it back.
    Released,
}

/// An event that cannot happen to a lease which was given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{event:?} cannot happen to a lease that was given back")]
pub struct IllegalEvent {
    pub event: Event,
}

// === impl Timing ===

impl Timing {
    /// What is taken off a lease because clocks differ.
    pub fn drift(&self) -> Duration {
        self.ttl / DRIFT_DIVISOR + DRIFT_FLOOR
    }
}

// === impl Lease ===

impl Lease {
    /// A lease that was asked for at `asked_at`, a stamp taken *before* the call that granted it.
    pub fn granted(asked_at: Instant, timing: Timing) -> Self {
        Self {
            timing,
            granted_at: asked_at,
            confirmed_until: asked_at + timing.ttl.saturating_sub(timing.drift()),
            suspect_until: None,
            renew_at: asked_at + timing.ttl / RENEW_DIVISOR,
            phase: Phase::Held,
        }
    }

    /// The lease after `event`, at `now`. A loss is final: a renewal that is confirmed after the
    /// deadline does not bring it back, because `lost` may already have been told.
    ///
    /// Where several threads share a lease, `now` is read while it is locked, here and in
    /// [`Lease::phase_at`]: by a clock that was read before, an event could undo a loss that another
    /// thread has told meanwhile.
    ///
    /// # Errors
    /// [`IllegalEvent`] for anything but the passing of time after the release.
    pub fn next(mut self, event: Event, now: Instant) -> Result<Self, IllegalEvent> {
        match (self.phase_at(now), event) {
            (Phase::Released, Event::Passed) => {}
            (Phase::Released, event) => return Err(IllegalEvent { event }),
            (phase, Event::Released) => {
                self.phase = match phase {
                    Phase::Held | Phase::Released => Phase::Released,
                    Phase::Lost(loss) => Phase::Lost(loss),
                }
            }
            (lost @ Phase::Lost(_), _) => self.phase = lost,
            (Phase::Held, Event::Gone) => self.phase = Phase::Lost(Loss::Gone),
            (Phase::Held, Event::Renewed { asked_at }) => {
                let until = asked_at + self.timing.ttl.saturating_sub(self.timing.drift());
                self.confirmed_until = self.confirmed_until.max(until.min(self.held_until_max()));
                self.renew_at = asked_at + self.timing.ttl / RENEW_DIVISOR;
            }
            (Phase::Held, Event::RenewalFailed) => {
                self.renew_at = now + self.timing.ttl / RETRY_DIVISOR;
            }
            (Phase::Held, Event::Suspected { until }) => {
                self.suspect_until = Some(self.suspect_until.map_or(until, |was| was.min(until)));
            }
            (Phase::Held, Event::Reassured) => self.suspect_until = None,
            (Phase::Held, Event::Passed) => {}
        }
        Ok(self)
    }

    /// Until when the holder may believe in it.
    pub fn valid_until(&self) -> Instant {
        self.suspect_until
            .map_or(self.confirmed_until, |s| s.min(self.confirmed_until))
    }

    pub fn phase_at(&self, now: Instant) -> Phase {
        match self.phase {
            Phase::Held if now >= self.valid_until() => Phase::Lost(Loss::Expired),
            phase @ (Phase::Held | Phase::Lost(_) | Phase::Released) => phase,
        }
    }

    /// Whether a write may be invoked at `now`.
    pub fn is_held(&self, now: Instant) -> bool {
        self.phase_at(now) == Phase::Held
    }

    /// When the next renewal is due; `None` when it would not extend the lease any more.
    pub fn renew_at(&self) -> Option<Instant> {
        let can_grow = self.confirmed_until < self.held_until_max();
        (self.phase == Phase::Held && can_grow).then_some(self.renew_at)
    }

    fn held_until_max(&self) -> Instant {
        self.granted_at + self.timing.hold_max
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TTL: Duration = Duration::from_millis(900);
    const TIMING: Timing = Timing {
        ttl: TTL,
        hold_max: Duration::from_millis(2_000),
    };

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn a_lease_ends_by_itself_before_the_server_forgets_it() {
        let t0 = Instant::now();
        let lease = Lease::granted(t0, TIMING);
        assert_eq!(lease.valid_until(), t0 + ms(900 - 9 - 2));
        assert!(lease.is_held(t0 + ms(888)));
        assert!(!lease.is_held(t0 + ms(889)));
    }

    #[test]
    fn a_renewal_counts_from_when_it_was_asked_for() {
        let t0 = Instant::now();
        let asked_at = t0 + ms(300);
        let lease = Lease::granted(t0, TIMING)
            .next(Event::Renewed { asked_at }, t0 + ms(500))
            .unwrap();
        assert_eq!(lease.valid_until(), asked_at + ms(889));
        assert_eq!(lease.renew_at(), Some(asked_at + ms(300)));
    }

    #[test]
    fn a_renewal_that_is_confirmed_too_late_does_not_bring_it_back() {
        let t0 = Instant::now();
        let asked_at = t0 + ms(880);
        let lease = Lease::granted(t0, TIMING)
            .next(Event::Renewed { asked_at }, t0 + ms(890))
            .unwrap();
        assert_eq!(lease.phase_at(t0 + ms(890)), Phase::Lost(Loss::Expired));
        assert_eq!(lease.renew_at(), None);
    }

    #[test]
    fn a_failed_renewal_leaves_the_deadline_and_is_tried_again_before_it() {
        let t0 = Instant::now();
        let now = t0 + ms(320);
        let lease = Lease::granted(t0, TIMING)
            .next(Event::RenewalFailed, now)
            .unwrap();
        assert_eq!(lease.valid_until(), t0 + ms(889));
        assert_eq!(lease.renew_at(), Some(now + ms(100)));
    }

    #[test]
    fn a_hold_has_a_maximum() {
        let t0 = Instant::now();
        let mut lease = Lease::granted(t0, TIMING);
        let mut renewals = 0;
        while let Some(asked_at) = lease.renew_at() {
            lease = lease.next(Event::Renewed { asked_at }, asked_at).unwrap();
            renewals += 1;
            assert!(renewals < 100, "it is renewed for ever");
        }
        assert_eq!(lease.valid_until(), t0 + TIMING.hold_max);
    }

    #[test]
    fn a_suspect_lease_ends_early_unless_it_is_reassured_in_time() {
        let t0 = Instant::now();
        let until = t0 + ms(100);
        let suspect = Lease::granted(t0, TIMING)
            .next(Event::Suspected { until }, t0)
            .unwrap();
        assert_eq!(suspect.valid_until(), until);
        let again = suspect.next(Event::Reassured, t0 + ms(99)).unwrap();
        assert_eq!(again.valid_until(), t0 + ms(889));
        let late = suspect.next(Event::Reassured, t0 + ms(100)).unwrap();
        assert!(!late.is_held(t0 + ms(101)));
    }

    #[test]
    fn a_released_lease_stays_released() {
        let t0 = Instant::now();
        let lease = Lease::granted(t0, TIMING)
            .next(Event::Released, t0)
            .unwrap();
        assert_eq!(lease.phase_at(t0 + TTL * 2), Phase::Released);
        assert!(!lease.is_held(t0));
        assert!(lease.next(Event::Passed, t0 + TTL * 2).is_ok());
        let asked_at = t0;
        for event in [Event::Renewed { asked_at }, Event::Gone, Event::Released] {
            assert_eq!(lease.next(event, t0), Err(IllegalEvent { event }));
        }
    }

    /// An event and how many milliseconds pass before it.
    fn steps() -> impl Strategy<Value = Vec<(u64, u8, u64)>> {
        prop::collection::vec((0..400u64, 0..7u8, 0..400u64), 0..60)
    }

    proptest! {
        /// Whatever happens in whatever order: once it is not held it is never held again, the
        /// deadline is never further away than what a server confirmed, and never beyond the
        /// longest hold.
        #[test]
        fn nothing_brings_a_lease_back(steps in steps()) {
            let t0 = Instant::now();
            let mut now = t0;
            let mut lease = Lease::granted(t0, TIMING);
            let mut ended = false;
            let mut asked_last = t0;
            for (pause, kind, ago) in steps {
                now += ms(pause);
                ended |= !lease.is_held(now);
                let asked_at = now.checked_sub(ms(ago)).unwrap_or(now).max(t0);
                let event = match kind {
                    0 => Event::Renewed { asked_at },
                    1 => Event::RenewalFailed,
                    2 => Event::Gone,
                    3 => Event::Suspected { until: now + ms(ago) },
                    4 => Event::Reassured,
                    5 => Event::Passed,
                    _ => Event::Released,
                };
                if event == (Event::Renewed { asked_at }) {
                    asked_last = asked_last.max(asked_at);
                }
                let before = lease;
                match lease.next(event, now) {
                    Ok(next) => lease = next,
                    Err(_illegal) => prop_assert_eq!(before.phase_at(now), Phase::Released),
                }
                ended |= matches!(event, Event::Gone | Event::Released);
                prop_assert!(!(ended && lease.is_held(now)));
                prop_assert!(lease.valid_until() <= asked_last + TTL);
                prop_assert!(lease.valid_until() <= t0 + TIMING.hold_max);
                if let Phase::Lost(_) = before.phase_at(now) {
                    prop_assert_eq!(lease.phase_at(now), before.phase_at(now));
                }
            }
        }
    }
}
