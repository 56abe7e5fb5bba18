//! Tests on real servers.

mod lab;
