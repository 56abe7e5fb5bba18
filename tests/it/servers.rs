//! Real servers for the tests, on free loopback ports, ended when dropped.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How long a server may take to start: a Java virtual machine on a busy machine takes seconds.
const START_TRIES_MAX: u32 = 600;
const START_PAUSE: Duration = Duration::from_millis(50);

/// A server process and its directory.
pub(crate) struct Server {
    child: Child,
    command: Box<dyn Fn() -> Command + Send + Sync>,
    address: SocketAddr,
    _dir: tempfile::TempDir,
}

impl Server {
    pub(crate) fn redis() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let address = free_address();
        let (port, path) = (address.port().to_string(), dir.path().to_owned());
        let command = move || {
            let mut c = Command::new("redis-server");
            c.args(["--port", &port, "--bind", "127.0.0.1", "--save", ""])
                .args(["--appendonly", "no", "--maxmemory-policy", "noeviction"])
                .arg("--dir")
                .arg(&path);
            c
        };
        Self::start(Box::new(command), address, dir)
    }

    pub(crate) fn zookeeper() -> Self {
        Self::zookeeper_ticking(1_000)
    }

    /// Sessions last 2 to 20 ticks.
    pub(crate) fn zookeeper_ticking(tick_ms: u32) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let address = free_address();
        let config = dir.path().join("zoo.cfg");
        let text = format!(
            "tickTime={tick_ms}\ndataDir={}\nclientPort={}\nclientPortAddress=127.0.0.1\n\
             admin.enableServer=false\nmaxClientCnxns=0\nskipACL=no\n",
            dir.path().display(),
            address.port()
        );
        std::fs::write(&config, text).expect("the configuration is written");
        let command = move || {
            let mut c = Command::new("java");
            c.args(["-Xmx256m", "-Dlog4j.configuration=file:/dev/null", "-cp"])
                .arg("/usr/share/java/zookeeper.jar")
                .arg("org.apache.zookeeper.server.ZooKeeperServerMain")
                .arg(&config);
            c
        };
        Self::start(Box::new(command), address, dir)
    }

    fn start(
        command: Box<dyn Fn() -> Command + Send + Sync>,
        address: SocketAddr,
        dir: tempfile::TempDir,
    ) -> Self {
        let child = spawn(&command, address);
        Self {
            child,
            command,
            address,
            _dir: dir,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    /// Kills it as a crash would.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it is ours");
        self.child.wait().expect("it is ours");
    }

    /// The same server on the same port, after `kill`.
    pub(crate) fn start_again(&mut self) {
        self.child = spawn(&self.command, self.address);
    }

    /// Stops it without closing its sockets: it answers nothing.
    pub(crate) fn freeze(&self) {
        self.signal("-STOP");
    }

    pub(crate) fn thaw(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill")
            .args([signal, &self.child.id().to_string()])
            .status()
            .expect("kill is installed");
        assert!(status.success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have been killed by the test.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn free_address() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|l| l.local_addr())
        .expect("a free port")
}

fn spawn(command: &(dyn Fn() -> Command + Send + Sync), address: SocketAddr) -> Child {
    let mut child = command()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the server is installed");
    for _ in 0..START_TRIES_MAX {
        if TcpStream::connect(address).is_ok() {
            return child;
        }
        if let Some(status) = child.try_wait().expect("it is ours") {
            panic!("the server ended at once: {status}");
        }
        std::thread::sleep(START_PAUSE);
    }
    drop(child.kill());
    panic!("the server did not listen on {address}");
}

/// One ZooKeeper.
pub(crate) fn zookeeper() -> Server {
    Server::zookeeper()
}

/// One Redis of its own.
pub(crate) fn redis() -> Server {
    Server::redis()
}

/// `n` independent Redis.
pub(crate) fn redlock(n: usize) -> Vec<Server> {
    (0..n).map(|_| Server::redis()).collect()
}

pub(crate) fn urls(servers: &[Server]) -> Vec<String> {
    servers.iter().map(Server::url).collect()
}
