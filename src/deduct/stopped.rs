//! Why the critical section ended without an ending, and what its caller is told.

use super::replay::store_ending;
use super::{Contention, DeductError, Ending};
use crate::store::StoreError;

/// Why the critical section ended without an ending.
#[derive(Debug)]
pub(super) enum Stopped {
    Contention(Contention),
    /// A younger claim is in the store; its token.
    FencedOut(i64),
    Store(StoreError),
}

// === impl Stopped ===

impl Stopped {
    pub(super) fn into_ending(self) -> Result<Ending, DeductError> {
        match self {
            Self::Contention(why) => Ok(Ending::Busy(why)),
            Self::FencedOut(_) => Ok(Ending::Busy(Contention::FencedOut)),
            Self::Store(error) => store_ending(error),
        }
    }

    pub(super) fn into_error(self) -> DeductError {
        match self.into_ending() {
            Ok(ending) => DeductError::Unavailable {
                server: "lock",
                reason: format!("nothing was closed: {ending:?}"),
            },
            Err(error) => error,
        }
    }
}

impl From<StoreError> for Stopped {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}
