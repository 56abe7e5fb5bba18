//! What can be done instead, where the state of an activity does not allow what was asked for?

use crate::sale::ActivityState as Is;

/// What an operator asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::http) enum Asked {
    WarmUp,
    Open,
    Pause,
    SetStrategy,
    Close,
}

/// The state allows it by now, or did when this was asked: another request came between.
const CHANGED: &str = "it was changed meanwhile; look at it and try again";
const ENDED: &str = "it has ended, and what has ended stays so: create another";

// === impl Asked ===

impl Asked {
    /// In a sentence: "… does not allow opening".
    pub(in crate::http) fn as_str(self) -> &'static str {
        match self {
            Self::WarmUp => "a warm-up",
            Self::Open => "opening",
            Self::Pause => "a pause",
            Self::SetStrategy => "a change of strategy",
            Self::Close => "closing",
        }
    }

    pub(in crate::http) fn instead(self, state: Is) -> &'static str {
        match (self, state) {
            (
                Self::WarmUp | Self::Open | Self::Pause | Self::SetStrategy,
                Is::Closing | Is::Sealed,
            ) => ENDED,

            (Self::WarmUp, Is::Open) => "it is open; to warm it up anew, pause it first",
            (Self::WarmUp, Is::Fenced) => "its gate is being rebuilt; wait until it is OPEN",
            (Self::WarmUp | Self::SetStrategy, Is::Pausing) => "wait until it is PAUSED",

            (Self::Open, Is::Draft | Is::Paused) => "warm it up first",
            (Self::Open, Is::Warming) => "warm it up first, to the end: ask for the warm-up again",
            (Self::Open, Is::Pausing) => "wait until it is PAUSED, then warm it up",

            (Self::Pause, Is::Draft | Is::Warming | Is::Ready) => {
                "nothing is sold yet, so there is nothing to pause"
            }
            (Self::Pause, Is::Fenced) => {
                "its gate is being rebuilt, and nothing is sold meanwhile; wait until it is OPEN, or close it"
            }

            (Self::SetStrategy, Is::Warming) => {
                "end its warm-up first: ask for the warm-up again, until it is READY"
            }
            (Self::SetStrategy, Is::Open) => "pause it and wait until it is PAUSED",
            (Self::SetStrategy, Is::Fenced) => {
                "its gate is being rebuilt; wait until it is OPEN, then pause it"
            }

            (Self::WarmUp, Is::Draft | Is::Warming | Is::Ready | Is::Paused)
            | (Self::Open, Is::Ready | Is::Open | Is::Fenced)
            | (Self::Pause, Is::Open | Is::Pausing | Is::Paused)
            | (Self::SetStrategy, Is::Draft | Is::Ready | Is::Paused)
            | (
                Self::Close,
                Is::Draft
                | Is::Warming
                | Is::Ready
                | Is::Open
                | Is::Fenced
                | Is::Pausing
                | Is::Paused
                | Is::Closing
                | Is::Sealed,
            ) => CHANGED,
        }
    }
}
