//! Tests on real servers.

mod lab;
mod locks;
mod purchase;
mod servers;
mod world;
