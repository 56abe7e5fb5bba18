//! Real servers on free loopback ports, ended with their parent.
