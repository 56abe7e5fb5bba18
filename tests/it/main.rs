//! Tests on real servers.

mod lab;
mod purchase;
mod world;
