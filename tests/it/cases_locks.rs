//! Failures that were reported of other locks and shops, brought about here. Which case is which test?
//!
//! | case | reported of others | test |
//! |---|---|---|
//! | 1 | the last unit sold twice | `conformance::*::the_last_unit_goes_to_one_of_two` |
//! | 2 | a check under the lock read an old snapshot | `old_snapshot` |
//! | 24 | a lock renewed for ever after its worker died | `panic` |
//! | 25 | one failed renewal ended all of them | `locks::{faults, majority, zookeeper_faults, db_faults}` |
//! | 26, 42 | a cancelled acquire was renewed, or left the lock held | `locks::*::keeps_the_contract`, `locks::faults`, `locks::db_faults` |
//! | 27 | a renewal made a deleted key again | `locks::{redis_set_nx, redlock, zookeeper, db_unique_insert}` |
//! | 28, 29 | a lock that had expired; a quorum of those that answered | `locks::majority`, `locks::redlock` |
//! | 30 | a SET that timed out was carried out | `locks::{faults, late_calls, redis_set_nx}` |
//! | 31 | a release failed and said nothing | `locks::{faults, majority, zookeeper_faults, db_faults}` |
//! | 32 | a lock lost on failover | `failover` |
//! | 33, 34 | a script was forgotten; a release was not heard | `locks::{redis_set_nx, majority}`, `locks::waiting` |
//! | 35, 36, 37, 38 | nodes and sessions of ZooKeeper | `locks::{zookeeper, zookeeper_faults}` |
//! | 39 | deadlocks of a unique-insert lock surfaced as errors | `deadlocks` |
//! | 40 | released before the new state was visible | `broken_lock::released_early` |
//! | 41 | a crash left the lock row for ever | `outage::inside` (every lock), `store::lock_rows` (every database) |
//!
//! The lock of `db-unique-insert` is subject to none of 28 to 30 and 32 to 38 by its nature: it has
//! one server, no scripts, no subscription and no session. The rest are shown on PostgreSQL and
//! MariaDB with connections that are cut or killed, and on SQLite, which has none, with statements
//! that fail. The wire of a dropped acquire (26, 42) is held on the first two alone.

mod deadlocks;
mod failover;
mod old_snapshot;
mod panic;
