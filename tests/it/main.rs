//! Tests on real servers.

mod compare;
mod conformance;
mod gate;
mod lab;
mod lab_compose;
mod lab_ends;
mod locks;
mod purchase;
mod servers;
mod world;
