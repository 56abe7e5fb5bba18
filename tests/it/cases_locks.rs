//! Failures that were reported of other locks and shops, brought about here. Which case is which test?
//!
//! | case | reported of others | test |
//! |---|---|---|
//! | 1 | the last unit sold twice | `conformance::*::the_last_unit_goes_to_one_of_two` |
//! | 2 | a check under the lock read an old snapshot | `old_snapshot` |
//! | 24 | a lock renewed for ever after its worker died | `panic` |
//! | 32 | a lock lost on failover | `failover` |
//! | 39 | deadlocks of a unique-insert lock surfaced as errors | `deadlocks` |
//! | 40 | released before the new state was visible | `broken_lock::released_early` |
//! | 41 | a crash left the lock row for ever | `outage::inside` (every lock), `store::lock_rows` (every database) |

mod deadlocks;
mod failover;
mod old_snapshot;
mod panic;
