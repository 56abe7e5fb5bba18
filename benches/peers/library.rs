//! Which locks are measured, on which servers, by which driver, and with which settings?

use std::path::{Path, PathBuf};

use clap::ValueEnum;

/// A lock under measurement; the variant's name in JSON and on the command line is its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Library {
    /// Nothing excludes: the check of exclusion must see it fail.
    NoLock,
    RawRedis,
    RedisSetNx,
    #[value(name = "rslock-1")]
    RslockOne,
    #[value(name = "node-redlock-1")]
    NodeRedlockOne,
    RedisPy,
    RawRedlock,
    Redlock,
    #[value(name = "rslock-5")]
    RslockFive,
    #[value(name = "node-redlock-5")]
    NodeRedlockFive,
    #[value(name = "pottery-5")]
    PotteryFive,
    RawZookeeper,
    Zookeeper,
    ZookeeperClient,
    Curator,
    Kazoo,
}

/// The servers that a lock needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ground {
    OneRedis,
    FiveRedis,
    Zookeeper,
}

/// Whose lock it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    Ours,
    Theirs,
    /// What the bare server does: no lock can be faster for one client.
    Limit,
    Control,
}

/// What runs a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Driver {
    /// This program, started again.
    Rust,
    Python(&'static str),
    Node(&'static str),
    Java(&'static str),
}

/// A program and what comes before the driver's own arguments.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    pub(crate) args: Vec<String>,
}

/// What the fetch put under `target/peers`.
pub(crate) fn fetched() -> PathBuf {
    root().join("target/peers")
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

// === impl Library ===

impl Library {
    pub(crate) fn name(self) -> String {
        let value = self.to_possible_value().expect("no variant is hidden");
        value.get_name().to_owned()
    }

    pub(crate) fn ground(self) -> Ground {
        match self {
            Self::NoLock
            | Self::RawRedis
            | Self::RedisSetNx
            | Self::RslockOne
            | Self::NodeRedlockOne
            | Self::RedisPy => Ground::OneRedis,
            Self::RawRedlock
            | Self::Redlock
            | Self::RslockFive
            | Self::NodeRedlockFive
            | Self::PotteryFive => Ground::FiveRedis,
            Self::RawZookeeper
            | Self::Zookeeper
            | Self::ZookeeperClient
            | Self::Curator
            | Self::Kazoo => Ground::Zookeeper,
        }
    }

    pub(crate) fn whose(self) -> Whose {
        match self {
            Self::NoLock => Whose::Control,
            Self::RawRedis | Self::RawRedlock | Self::RawZookeeper => Whose::Limit,
            Self::RedisSetNx | Self::Redlock | Self::Zookeeper => Whose::Ours,
            Self::RslockOne
            | Self::NodeRedlockOne
            | Self::RedisPy
            | Self::RslockFive
            | Self::NodeRedlockFive
            | Self::PotteryFive
            | Self::ZookeeperClient
            | Self::Curator
            | Self::Kazoo => Whose::Theirs,
        }
    }

    /// What is not the library's default, and how it is used.
    pub(crate) fn settings(self) -> &'static str {
        match self {
            Self::NoLock => "nothing excludes; it must be seen failing",
            Self::RawRedis => "SET NX PX, then compare-and-delete by EVALSHA, one connection",
            Self::RawRedlock => "the same on all five nodes at once, all answers waited for",
            Self::RawZookeeper => {
                "create an ephemeral sequential node, then delete it, one session"
            }
            Self::RedisSetNx | Self::Redlock => {
                "as shipped: watchdog on, fencing token, ttl 10 s, wait 5 s; one lock object per process"
            }
            Self::Zookeeper => {
                "as shipped: watch on the own node, fencing token, session 4 s, wait 5 s; one session per process"
            }
            Self::RslockOne | Self::RslockFive => {
                "ttl 10 s, retry delay 5 ms, 3 tries per call (default), called until granted; one manager per process"
            }
            Self::NodeRedlockOne | Self::NodeRedlockFive => {
                "ttl 10 s, retry delay 5 ms, jitter 100 ms and 10 retries (defaults), called until granted; one client per node and process"
            }
            Self::RedisPy => {
                "timeout 10 s, sleep 1 ms, blocking; one connection pool per process, a thread per client"
            }
            Self::PotteryFive => {
                "auto_release_time 10 s, blocking; one client per node and process, a thread per client"
            }
            Self::ZookeeperClient => {
                "LockPrefix::new_curator, released by drop as its documentation says; one session per process"
            }
            Self::Curator => {
                "InterProcessMutex, a mutex and a thread per client; one CuratorFramework per process"
            }
            Self::Kazoo => {
                "recipe Lock, a lock and a thread per client; one KazooClient per process"
            }
        }
    }

    /// How long it runs before it counts, in milliseconds: until the cost per operation is flat. A
    /// JVM compiles for longer.
    pub(crate) fn warm_ms(self) -> u64 {
        match self.driver() {
            Driver::Java(_) => 2_000,
            Driver::Rust | Driver::Python(_) | Driver::Node(_) => 600,
        }
    }

    fn driver(self) -> Driver {
        match self {
            Self::NoLock
            | Self::RawRedis
            | Self::RedisSetNx
            | Self::RslockOne
            | Self::RawRedlock
            | Self::Redlock
            | Self::RslockFive
            | Self::RawZookeeper
            | Self::Zookeeper
            | Self::ZookeeperClient => Driver::Rust,
            Self::NodeRedlockOne | Self::NodeRedlockFive => Driver::Node("node_redlock.js"),
            Self::RedisPy => Driver::Python("redis_py.py"),
            Self::PotteryFive => Driver::Python("pottery_redlock.py"),
            Self::Kazoo => Driver::Python("kazoo_lock.py"),
            Self::Curator => Driver::Java("CuratorLock"),
        }
    }

    /// What starts its driver, or why it cannot be started here.
    pub(crate) fn program(self) -> Result<Program, String> {
        let scripts = root().join("benches/peers");
        let script = |name: &str| scripts.join(name).to_string_lossy().into_owned();
        let fetched = fetched();
        // What the fetch could not get, it says.
        let missing = |what: &str| {
            let said = std::fs::read_to_string(fetched.join(format!("missing-{what}.txt")));
            said.map_or_else(|_| "not fetched".to_owned(), |why| why.trim().to_owned())
        };
        match self.driver() {
            Driver::Rust => Ok(Program {
                path: std::env::current_exe().map_err(|error| error.to_string())?,
                args: vec!["worker".to_owned()],
            }),
            Driver::Python(name) => {
                let path = fetched.join("venv/bin/python");
                if !path.exists() {
                    return Err(missing("python"));
                }
                // Nothing is written beside the scripts.
                let args = vec!["-B".to_owned(), script(name)];
                Ok(Program { path, args })
            }
            Driver::Node(name) => {
                let modules = fetched.join("node/node_modules");
                if !modules.join("redlock").exists() {
                    return Err(missing("node"));
                }
                let modules = modules.to_string_lossy().into_owned();
                Ok(Program {
                    path: "node".into(),
                    args: vec![script(name), modules],
                })
            }
            Driver::Java(class) => {
                let classes = fetched.join("classes");
                if !classes.join(format!("{class}.class")).exists() {
                    return Err(missing("java"));
                }
                let path = std::fs::read_to_string(fetched.join("classpath.txt"))
                    .map_err(|error| format!("no class path: {error}"))?;
                let path = format!("{}:{}", path.trim(), classes.display());
                let args = [
                    "-Xmx256m",
                    "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
                    "-cp",
                ];
                let args = args.iter().map(|arg| (*arg).to_owned());
                Ok(Program {
                    path: "java".into(),
                    args: args.chain([path, class.to_owned()]).collect(),
                })
            }
        }
    }
}
