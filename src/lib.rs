//! flashlock runs a flash sale behind a lock strategy chosen per activity, and compares the
//! strategies on real servers.
//!
//! # Layout, in reading order

/// Time.
pub mod clock;
/// A way to sell; the critical section all locks share.
pub mod deduct;
/// Every Redis key, znode path and lock row.
pub mod keys;
/// The options of the service.
pub mod config;
/// Opened servers and strategies.
pub mod app;
/// The way of a purchase.
pub mod flow;
/// The REST service.
pub mod http;
/// Real servers on free loopback ports.
pub mod lab;
/// The law: total = available + held + sold.
pub mod ledger;
/// A mutual exclusion with a lease.
pub mod lock;
/// An order and the states it may pass through.
pub mod order;
/// A run as JSON, Markdown or HTML.
pub mod report;
/// One comparison run as plain data.
pub mod run;
/// What is sold, and to whom.
pub mod sale;
/// The database: the only SQL is below it.
pub mod store;
/// The strategies by name.
pub mod strategy;
