//! How is a ZooKeeper node of the lab set up, alone or as one of three?

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use async_trait::async_trait;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::find::{Binaries, JarSet};
use super::process::WardSpec;
use super::server::{ANSWER_WAIT, Recipe, ServerDir, StartError};

/// What is missing when there is no ZooKeeper.
pub(super) const INSTALL: &str = "run compose/deps.sh, or install the packages zookeeper and \
     default-jre-headless, or set ZOOKEEPER_HOME to an unpacked release";

/// The settings of every node; `compose/zookeeper.yaml` has the same.
pub const SETTINGS: &[(&str, &str)] = &[
    // Session timeouts of 1 s to 10 s (2 to 20 ticks).
    ("tickTime", "500"),
    ("admin.enableServer", "false"),
    ("4lw.commands.whitelist", "srvr,ruok,mntr,conf"),
    // The default of 60 connections per address is fewer than a test's clients.
    ("maxClientCnxns", "0"),
];

/// The JVM's arguments; `forceSync` (fsync before the answer) is the default, said aloud so that
/// it can be read back from the process.
pub const JVM_ARGS: &[&str] = &["-Xmx256m", "-Dzookeeper.forceSync=yes"];

/// The ports of one node. The last two are for the ensemble, and unused by a node alone.
#[derive(Debug, Clone, Copy)]
pub(super) struct NodePorts {
    pub(super) client: u16,
    pub(super) quorum: u16,
    pub(super) election: u16,
}

/// One node of an ensemble of one or three.
#[derive(Debug)]
pub(super) struct Node {
    java: PathBuf,
    jars: JarSet,
    dir: ServerDir,
    ensemble: Vec<NodePorts>,
    /// From 1, as in `myid`.
    number: u8,
    ports: NodePorts,
}

// === impl Node ===

impl Node {
    pub(super) fn program(binaries: &Binaries) -> Option<(PathBuf, JarSet)> {
        let in_home = std::env::var_os("JAVA_HOME")
            .map(|home| PathBuf::from(home).join("bin/java"))
            .filter(|java| java.exists());
        let jars = binaries.zookeeper()?;
        Some((binaries.program("java").or(in_home)?, jars))
    }

    /// Node `number` of the ensemble, counted from 1; `None` when the ensemble has no such node.
    pub(super) fn new(
        (java, jars): (PathBuf, JarSet),
        dir: ServerDir,
        ensemble: Vec<NodePorts>,
        number: u8,
    ) -> Option<Self> {
        let ports = *ensemble.get(usize::from(number).checked_sub(1)?)?;
        Some(Self {
            java,
            jars,
            dir,
            ensemble,
            number,
            ports,
        })
    }

    fn config(&self) -> String {
        let mut config = format!(
            "dataDir={}\nclientPort={}\nclientPortAddress=127.0.0.1\n",
            self.dir.data().display(),
            self.ports.client
        );
        for (name, value) in SETTINGS {
            let _infallible = writeln!(config, "{name}={value}");
        }
        if self.ensemble.len() > 1 {
            // In ticks: 5 s to find a leader's state at the start, 2.5 s of silence within a quorum.
            config.push_str("initLimit=10\nsyncLimit=5\n");
            for (number, ports) in (1..).zip(&self.ensemble) {
                let (quorum, election) = (ports.quorum, ports.election);
                let _infallible = writeln!(config, "server.{number}=127.0.0.1:{quorum}:{election}");
            }
        }
        config
    }
}

#[async_trait]
impl Recipe for Node {
    async fn prepare(&self) -> Result<(), StartError> {
        let written = std::fs::create_dir_all(self.dir.data())
            .and_then(|()| std::fs::write(self.dir.path().join("zoo.cfg"), self.config()))
            .and_then(|()| std::fs::write(self.dir.data().join("myid"), self.number.to_string()));
        written.map_err(|error| StartError::new(format!("configuration: {error}"), ""))
    }

    fn spec(&self) -> WardSpec {
        self.dir
            .spec(self.java.clone(), Vec::new())
            .arg("-cp")
            .arg(&self.jars.0)
            .args(JVM_ARGS)
            .arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
            .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
            .arg(self.dir.path().join("zoo.cfg"))
    }

    fn port(&self) -> u16 {
        self.ports.client
    }

    fn url(&self) -> String {
        format!("127.0.0.1:{}", self.ports.client)
    }

    async fn answers(&self, _pid: u32) -> Result<(), String> {
        ping(&self.url()).await?;
        let config = ask(&self.url(), "conf").await?;
        let data = self.dir.data();
        // ZooKeeper appends its own `version-2` to the directory it was given.
        if config.contains(&format!("dataDir={}", data.display())) {
            Ok(())
        } else {
            Err("another ZooKeeper answers on this port".to_owned())
        }
    }

    async fn settings(&self, pid: u32) -> Result<BTreeMap<String, String>, String> {
        let mut settings = BTreeMap::new();
        for line in ask(&self.url(), "srvr").await?.lines() {
            if let Some(version) = line.strip_prefix("Zookeeper version: ") {
                let version = version.split(['-', ',']).next().unwrap_or(version);
                settings.insert("version".to_owned(), version.to_owned());
            }
            if let Some(mode) = line.strip_prefix("Mode: ") {
                settings.insert("mode".to_owned(), mode.to_owned());
            }
        }
        for line in ask(&self.url(), "conf").await?.lines() {
            if let Some(tick) = line.strip_prefix("tickTime=") {
                settings.insert("tickTime".to_owned(), tick.to_owned());
            }
        }
        // No four-letter word tells it; the JVM's own arguments do.
        let arguments = i32::try_from(pid)
            .ok()
            .and_then(|pid| procfs::process::Process::new(pid).ok())
            .and_then(|process| process.cmdline().ok())
            .unwrap_or_default();
        let force_sync = arguments
            .iter()
            .find_map(|argument| argument.strip_prefix("-Dzookeeper.forceSync="))
            .unwrap_or("unknown");
        settings.insert("forceSync".to_owned(), force_sync.to_owned());
        settings.insert("file_system".to_owned(), self.dir.file_system());
        Ok(settings)
    }
}

/// Whether the node at `address` serves requests now: it is up, and in a quorum where there is one.
pub async fn ping(address: &str) -> Result<(), String> {
    let answer = ask(address, "ruok").await?;
    if answer != "imok" {
        return Err(format!("ruok was answered with `{answer}`"));
    }
    let state = ask(address, "srvr").await?;
    if state.contains("\nMode: ") {
        Ok(())
    } else {
        Err(state)
    }
}

/// The answer to a four-letter word.
async fn ask(address: &str, word: &str) -> Result<String, String> {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(word.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    match tokio::time::timeout(ANSWER_WAIT, exchange).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_elapsed) => Err(format!("no answer to {word}")),
    }
}
