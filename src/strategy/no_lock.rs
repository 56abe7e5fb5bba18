//! Strategy `no-lock`: the control. It takes no lock at all, and is there to be seen overselling.

use std::future::{Future, pending};

use super::{Entry, Kind, Missing, Servers};
use crate::clock::{self, Instant};
use crate::deduct::Deduct;
use crate::keys::LockKey;
use crate::lock::{AcquireError, Fence, Guarantees, Guard, Lock, Released, Terms};

/// A lock that everyone is granted at once.
#[derive(Debug, Default)]
pub struct NoLock;

/// Its guard: it keeps nobody out, and never ends.
#[derive(Debug)]
pub struct NoGuard;

pub(super) const ENTRY: Entry = Entry {
    kind: Kind::Control,
    needs: &[],
    open,
};

fn open(servers: &Servers) -> Result<Box<dyn Deduct>, Missing> {
    Ok(servers.locked(NoLock))
}

impl Lock for NoLock {
    type Guard = NoGuard;

    fn guarantees(&self) -> Guarantees {
        Guarantees {
            protects_by: "nothing: the control that must oversell",
            stock_lives_in: "database",
            fair: false,
            fenced: false,
            survives_failover: false,
            frees_after_crash: "none",
            note: "never for a sale; refused over REST unless the service was started with --allow-control",
        }
    }

    async fn ready(&self) -> Result<(), AcquireError> {
        Ok(())
    }

    async fn acquire(&self, _key: &LockKey, _terms: &Terms) -> Result<NoGuard, AcquireError> {
        Ok(NoGuard)
    }
}

impl Guard for NoGuard {
    fn fence(&self) -> Fence {
        Fence::IssuedByStore
    }

    fn valid_until(&self) -> Instant {
        clock::now()
    }

    fn lost(&self) -> impl Future<Output = ()> + Send {
        pending()
    }

    fn is_held(&self) -> bool {
        true
    }

    async fn release(self) -> Released {
        Released::Released
    }
}
