//! Every Lua file, one typed function each: the only place that knows the order of KEYS and ARGV.

pub mod gate;
