//! Tests on real servers.

mod lab;
mod lab_compose;
mod lab_ends;
mod purchase;
mod world;
