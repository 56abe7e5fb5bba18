//! Tests on real servers.

mod books;
mod broken_lock;
mod compare;
mod conformance;
mod embedded;
mod gate;
mod lab;
mod lab_compose;
mod lab_ends;
mod locks;
mod purchase;
mod readme;
mod servers;
mod store;
mod world;
