//! Do the compose files and the lab set up the same servers, and is the installer a script?

use std::path::PathBuf;
use std::process::Command;

use flashlock::lab::{mariadb, port, postgres, redis, zookeeper};

fn compose(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("compose")
        .join(name)
}

/// The items of every list under `key:`, one list per service. These files use block style alone.
fn lists(file: &str, key: &str) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(compose(file)).unwrap();
    let mut lists: Vec<Vec<String>> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        match line.trim().strip_prefix("- ") {
            Some(item) if inside => {
                let item = item.trim_matches('"').to_owned();
                lists.last_mut().unwrap().push(item);
            }
            Some(_) => {}
            None => {
                inside = line.trim() == format!("{key}:");
                if inside {
                    lists.push(Vec::new());
                }
            }
        }
    }
    lists
}

/// The value of `key: "value"`.
fn value(file: &str, key: &str) -> String {
    let text = std::fs::read_to_string(compose(file)).unwrap();
    let line = text
        .lines()
        .find_map(|line| line.trim().strip_prefix(&format!("{key}: ")));
    line.unwrap_or_else(|| panic!("{file} has no {key}"))
        .trim_matches('"')
        .to_owned()
}

fn published(port: u16, inside: u16) -> Vec<String> {
    vec![format!("127.0.0.1:{port}:{inside}")]
}

#[test]
fn both_redis_topologies_are_the_labs() {
    let mut command = vec!["redis-server".to_owned()];
    for (name, value) in redis::SETTINGS {
        command.extend([format!("--{name}"), (*value).to_owned()]);
    }
    assert_eq!(lists("redis.yaml", "command"), [command.clone()]);
    assert_eq!(lists("redis.yaml", "ports"), [published(port::REDIS, 6379)]);
    assert_eq!(lists("redlock.yaml", "command"), vec![command; 5]);
    let ports: Vec<_> = port::REDLOCK.map(|port| published(port, 6379)).into();
    assert_eq!(lists("redlock.yaml", "ports"), ports);
}

#[test]
fn zookeeper_is_the_labs() {
    for (name, expected) in zookeeper::SETTINGS {
        // The image's entry point writes zoo.cfg from variables.
        let variable = match *name {
            "tickTime" => "ZOO_TICK_TIME",
            "admin.enableServer" => "ZOO_ADMINSERVER_ENABLED",
            "4lw.commands.whitelist" => "ZOO_4LW_COMMANDS_WHITELIST",
            "maxClientCnxns" => "ZOO_MAX_CLIENT_CNXNS",
            other => panic!("zookeeper.yaml has no variable for {other}"),
        };
        assert_eq!(value("zookeeper.yaml", variable), *expected);
    }
    let jvm = zookeeper::JVM_ARGS.join(" ");
    assert_eq!(value("zookeeper.yaml", "SERVER_JVMFLAGS"), jvm);
    let ports = [published(port::ZOOKEEPER[0], 2181)];
    assert_eq!(lists("zookeeper.yaml", "ports"), ports);
}

#[test]
fn both_databases_are_the_labs() {
    let mut command = vec!["postgres".to_owned()];
    for (name, value) in postgres::SETTINGS {
        command.extend(["-c".to_owned(), format!("{name}={value}")]);
    }
    assert_eq!(lists("postgres.yaml", "command"), [command]);
    assert_eq!(
        lists("postgres.yaml", "ports"),
        [published(port::POSTGRES, 5432)]
    );

    let settings = mariadb::SETTINGS.iter();
    let mut command: Vec<String> = settings
        .map(|(name, value)| format!("--{name}={value}"))
        .collect();
    command.extend(mariadb::SWITCHES.iter().map(|switch| format!("--{switch}")));
    assert_eq!(lists("mysql.yaml", "command"), [command]);
    assert_eq!(
        lists("mysql.yaml", "ports"),
        [published(port::MARIADB, 3306)]
    );
}

#[test]
fn the_installer_is_a_script_and_has_nothing_to_do_here() {
    for shell in ["sh", "bash"] {
        let checked = Command::new(shell)
            .arg("-n")
            .arg(compose("deps.sh"))
            .status();
        assert!(checked.unwrap().success(), "{shell}");
    }
    // The other tests need every server; where one is missing this names it.
    let checked = Command::new(compose("deps.sh"))
        .arg("--check")
        .output()
        .unwrap();
    let missing = String::from_utf8(checked.stderr).unwrap();
    assert!(
        checked.status.success() && !missing.contains("missing: "),
        "{missing}"
    );
    let wrong = Command::new(compose("deps.sh"))
        .arg("--all")
        .output()
        .unwrap();
    assert_eq!(wrong.status.code(), Some(2));
}
