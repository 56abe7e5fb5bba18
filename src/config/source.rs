//! Where options come from, each named in an error as it is written there.

use std::path::Path;

use figment::providers::{Env, Format, Serialized, Toml};
use figment::value::{Dict, Map, Value};
use figment::{Metadata, Profile, Provider};

/// The file, whose fields are named in errors as they are written there.
pub(super) struct File<'a>(pub(super) &'a Path);

/// The options of the command line, likewise.
pub(super) struct CommandLine(pub(super) serde_json::Map<String, serde_json::Value>);

/// The `FLASHLOCK_*` variables, likewise. One that is no option is an error, as an unknown field of the file
/// is: a misspelt one would otherwise be ignored.
pub(super) struct Variables;

/// Not options: the log's filter, the file, and where the lab notes its state.
const NOT_OPTIONS: [&str; 3] = ["log", "config", "lab_state"];
/// Options that are text whatever they look like: the token `12345` is no number.
const TEXTS: [&str; 8] = [
    "listen",
    "database_url",
    "redis_url",
    "redlock_urls",
    "zookeeper",
    "operator_token",
    "caller_token",
    "roles",
];

// === impl File ===

impl Provider for File<'_> {
    fn metadata(&self) -> Metadata {
        Metadata::from("TOML file", self.0).interpolater(|_profile, keys| keys.join("."))
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Toml::file_exact(self.0).data()
    }
}

// === impl CommandLine ===

impl Provider for CommandLine {
    fn metadata(&self) -> Metadata {
        Metadata::named("the command line")
            .interpolater(|_profile, keys| format!("--{}", keys.join(".").replace('_', "-")))
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Serialized::defaults(&self.0).data()
    }
}

// === impl Variables ===

impl Provider for Variables {
    fn metadata(&self) -> Metadata {
        Metadata::named("the environment").interpolater(|_profile, keys| {
            format!("FLASHLOCK_{}", keys.join(".").to_ascii_uppercase())
        })
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        let variables = Env::prefixed("FLASHLOCK_").ignore(&NOT_OPTIONS);
        let options = variables.iter().map(|(name, text)| {
            let name = name.into_string();
            let value = if TEXTS.contains(&name.as_str()) {
                Value::from(text)
            } else {
                // Infallible: what is neither a number nor a flag stays text.
                text.parse().unwrap_or_else(|_never| Value::from(text))
            };
            (name, value)
        });
        Ok(Profile::Default.collect(options.collect()))
    }
}
