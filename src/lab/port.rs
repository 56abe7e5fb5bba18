//! Which loopback ports do the servers listen on?

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// The ports that `lab up` tries first, and that the compose files publish.
pub const REDIS: u16 = 16379;
pub const REDLOCK: [u16; 5] = [16381, 16382, 16383, 16384, 16385];
pub const ZOOKEEPER: [u16; 3] = [12181, 12182, 12183];
pub const POSTGRES: u16 = 15432;
pub const MARIADB: u16 = 13306;

/// Below the range that Linux gives to outgoing connections (32768 and up), so that no client's
/// socket sits on a server's port when the server is started again.
const FREE: Range<u16> = 18_000..32_000;

/// A server that finds its port taken is started again on another this many times.
pub(super) const ATTEMPTS_MAX: u32 = 5;

/// How ports are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ports {
    /// Any free port: tests and comparisons run side by side.
    Free,
    /// The well-known port of each server where it is free.
    Preferred,
    /// The well-known port, or the server fails.
    Fixed,
}

/// Ports this process has handed out. A port is free until its server listens, so two servers of
/// one process could be given the same.
static HANDED_OUT: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

// === impl Ports ===

impl Ports {
    /// The port for the given attempt, from 0; `None` when there is nothing more to try.
    pub(super) fn choose(self, preferred: u16, attempt: u32) -> Option<u16> {
        match self {
            Self::Free => Some(free()),
            Self::Preferred if attempt == 0 && bindable(preferred) => Some(preferred),
            Self::Preferred => Some(free()),
            Self::Fixed => (attempt == 0).then_some(preferred),
        }
    }
}

/// A port that was free a moment ago. Another process may take it before the server does; the
/// server says so when it starts, and is given another.
pub(super) fn free() -> u16 {
    /// More candidates than any machine has servers in the range.
    const CANDIDATES_MAX: usize = 500;
    let mut handed_out = HANDED_OUT.lock().unwrap_or_else(PoisonError::into_inner);
    for _ in 0..CANDIDATES_MAX {
        let port = rand::random_range(FREE);
        if !handed_out.contains(&port) && bindable(port) {
            handed_out.insert(port);
            return port;
        }
    }
    // A long-lived process has used the range up: what is free by now may be handed out again.
    handed_out.clear();
    rand::random_range(FREE)
}

fn bindable(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}
