//! Tests on real servers.

mod bad_input;
mod books;
mod broken_lock;
mod compare;
mod conformance;
mod embedded;
mod gate;
mod held;
mod lab;
mod lab_compose;
mod lab_ends;
mod life;
mod limits;
mod locks;
mod outage;
mod outbox;
mod overtime;
mod purchase;
mod readme;
mod reconcile;
mod rest;
mod servers;
mod store;
mod wire;
mod world;
