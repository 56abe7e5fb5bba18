//! On what was it measured, and what does an acknowledged order survive there?

use std::collections::BTreeMap;
use std::path::Path;

use super::plan::DatabaseKind;
use crate::run::Environment;

/// Settings by server, as the lab read them back.
pub type Settings = BTreeMap<String, BTreeMap<String, String>>;

pub fn describe(data: &Path, servers: Settings) -> Environment {
    Environment {
        cpu: cpu().unwrap_or_else(|| "unknown".to_string()),
        cores: std::thread::available_parallelism().map_or(1, |n| n.get() as u64),
        kernel: kernel().unwrap_or_else(|| "unknown".to_string()),
        file_system: file_system(data),
        servers,
    }
}

fn cpu() -> Option<String> {
    let info = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = info.lines().find(|l| l.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_string())
}

fn kernel() -> Option<String> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    Some(format!("Linux {}", release.trim()))
}

/// The kind of file system that holds `path`, which need not be there yet.
pub fn file_system(path: &Path) -> String {
    let there = std::path::absolute(path)
        .unwrap_or_else(|_| path.to_path_buf())
        .ancestors()
        .find_map(|dir| dir.canonicalize().ok());
    let path = there.unwrap_or_else(|| path.to_path_buf());
    let mounts = procfs::process::Process::myself()
        .and_then(|me| me.mountinfo())
        .map(|mounts| mounts.0)
        .unwrap_or_default();
    mounts
        .into_iter()
        .filter(|mount| path.starts_with(&mount.mount_point))
        .max_by_key(|mount| mount.mount_point.components().count())
        .map_or_else(|| "unknown".to_string(), |mount| mount.fs_type)
}

/// What SQLite does; the service sets it on each connection and nothing else decides it.
pub fn sqlite(path: &Path) -> BTreeMap<String, String> {
    [
        ("journal_mode", "wal".to_string()),
        ("synchronous", "full".to_string()),
        ("file_system", file_system(path)),
    ]
    .map(|(name, value)| (name.to_string(), value))
    .into()
}

/// The class of an acknowledged order: `memory`, `second`, `fsync`, or `unknown` where the settings
/// were not read. Every strategy acknowledges after the database's commit, so the database decides.
pub fn durability(database: DatabaseKind, settings: &Settings) -> &'static str {
    let server = match database {
        DatabaseKind::Sqlite => "sqlite",
        DatabaseKind::Postgres => "postgres",
        DatabaseKind::Mysql => "mariadb",
    };
    let Some(settings) = settings.get(server) else {
        return "unknown";
    };
    let is = |name: &str, value: &str| settings.get(name).is_some_and(|v| v == value);
    // An fsync on tmpfs reaches no disk.
    if is("file_system", "tmpfs") {
        return "memory";
    }
    match database {
        DatabaseKind::Sqlite => match is("synchronous", "full") {
            true => "fsync",
            false => "memory",
        },
        DatabaseKind::Postgres if is("fsync", "off") => "memory",
        DatabaseKind::Postgres if is("synchronous_commit", "off") => "second",
        DatabaseKind::Postgres => "fsync",
        DatabaseKind::Mysql if is("innodb_flush_log_at_trx_commit", "1") => "fsync",
        DatabaseKind::Mysql => "second",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(server: &str, all: &[(&str, &str)]) -> Settings {
        let all = all.iter().map(|(n, v)| (n.to_string(), v.to_string()));
        [(server.to_string(), all.collect())].into()
    }

    #[test]
    fn the_class_is_what_the_server_says_and_unknown_where_it_says_nothing() {
        let postgres =
            |all: &[(&str, &str)]| durability(DatabaseKind::Postgres, &settings("postgres", all));
        assert_eq!(
            postgres(&[("fsync", "on"), ("synchronous_commit", "on")]),
            "fsync"
        );
        assert_eq!(
            postgres(&[("fsync", "on"), ("synchronous_commit", "off")]),
            "second"
        );
        assert_eq!(postgres(&[("fsync", "off")]), "memory");
        assert_eq!(
            postgres(&[("fsync", "on"), ("file_system", "tmpfs")]),
            "memory"
        );
        let mysql = |v| settings("mariadb", &[("innodb_flush_log_at_trx_commit", v)]);
        assert_eq!(durability(DatabaseKind::Mysql, &mysql("1")), "fsync");
        assert_eq!(durability(DatabaseKind::Mysql, &mysql("2")), "second");
        assert_eq!(durability(DatabaseKind::Mysql, &Settings::new()), "unknown");
    }
}
