//! The options of `serve`, from the command line, `FLASHLOCK_*` variables and a TOML file.
