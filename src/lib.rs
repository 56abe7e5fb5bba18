//! flashlock runs a flash sale behind a lock strategy chosen per activity, and compares the
//! strategies on real servers.
//!
//! # Layout
//! Modules in reading order; what stands higher knows nothing of what stands lower.

/// What is sold, and to whom.
pub mod sale;

/// An order, and the states it may pass through.
pub mod order;

/// The law: total = available + held + sold.
pub mod ledger;

/// Every Redis key, znode path and lock row.
pub mod keys;

/// Time.
pub mod clock;

/// Every Lua file, one typed function each.
pub mod script;

/// The database: the only SQL is below it.
pub mod store;

/// A carrier of the outbox's events.
pub mod broker;

/// Token buckets per user and per activity.
pub mod limit;

/// A mutual exclusion with a lease.
pub mod lock;

/// A way to sell; the critical section all locks share.
pub mod deduct;

/// The Redis gate: warmed, sealed, fenced, rebuilt, audited.
pub mod gate;

/// The strategies by name.
pub mod strategy;

/// The options of the service.
pub mod config;

/// Whether the servers are set up safely.
pub mod setup;

/// Opened servers and strategies.
pub mod app;

/// The way of a purchase.
pub mod flow;

/// The REST service.
pub mod http;

/// Real servers on free loopback ports.
pub mod lab;

/// One comparison run as plain data.
pub mod run;

/// A run as JSON, Markdown or HTML.
pub mod report;

/// One comparison: real servers, every strategy under the same burst.
pub mod bench;
