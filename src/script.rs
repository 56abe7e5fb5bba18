//! Every Lua file, one typed function each: the only place that knows the order of KEYS and ARGV.

/// The scripts of the gate.
pub mod calibrate;
pub mod gate;

/// The script of the rate limits.
pub mod bucket;

/// The scripts of a lock in Redis, and of one node of several that vote on it.
pub mod lock;
pub mod vote;

/// One Redis server that scripts run on.
pub mod node;
