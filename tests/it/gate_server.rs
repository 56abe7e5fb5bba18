//! A real redis-server on a free loopback port, ended with the test.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redis::aio::MultiplexedConnection;

/// Longest wait for a server to answer; it starts within some 10 ms on an idle machine.
const READY_MAX: Duration = Duration::from_secs(20);

/// Where a Redis with AOF keeps its files.
const APPEND_ONLY: &str = "appendonlydir";

pub(crate) struct RedisServer {
    child: Child,
    port: u16,
    dir: tempfile::TempDir,
    options: Vec<String>,
}

impl RedisServer {
    pub(crate) async fn start(options: &[&str]) -> Self {
        let mut dir = tempfile::tempdir().expect("a temporary directory");
        let options: Vec<String> = options.iter().map(ToString::to_string).collect();
        // Between looking for a free port and binding it another process may take it.
        for _ in 0..5 {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
            let port = listener.local_addr().expect("an address").port();
            drop(listener);
            let mut server = Self {
                child: spawn(port, dir.path(), &options),
                port,
                dir,
                options: options.clone(),
            };
            if server.wait().await {
                return server;
            }
            dir = std::mem::replace(&mut server.dir, tempfile::tempdir().expect("a directory"));
        }
        panic!("redis-server did not start on any of five ports");
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// `host:port`.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// A copy of what it has written to its append-only files by now.
    pub(crate) fn history(&self) -> tempfile::TempDir {
        let copied = tempfile::tempdir().expect("a directory");
        copy(&self.dir.path().join(APPEND_ONLY), copied.path());
        copied
    }

    /// Tears its append-only file inside the last script that wrote `key`, before it wrote `then`;
    /// after `kill`.
    pub(crate) fn tear_between(&self, key: &str, then: &str) {
        self.tear(|bytes| {
            let from = last(bytes, key).expect("written");
            from + first(&bytes[from..], then).expect("written")
        });
    }

    /// Tears its append-only file at the last command of any of these names; after `kill`.
    pub(crate) fn tear_at_the_last(&self, commands: &[&str]) {
        self.tear(|bytes| {
            let places = commands.iter().filter_map(|command| last(bytes, command));
            places.max().expect("written")
        });
    }

    fn tear(&self, at: impl Fn(&[u8]) -> usize) {
        let dir = self.dir.path().join(APPEND_ONLY);
        let files = std::fs::read_dir(dir).expect("it has files");
        let mut files = files.map(|file| file.expect("a file").path());
        let file = files.find(|path| path.to_string_lossy().ends_with(".incr.aof"));
        let file = file.expect("it was written to");
        let at = at(&std::fs::read(&file).expect("it can be read"));
        let file = std::fs::File::options().write(true).open(file);
        file.expect("it is ours").set_len(at as u64).expect("torn");
    }

    /// Puts an earlier history in place of its own, after `kill`.
    pub(crate) fn go_back_to(&self, history: &tempfile::TempDir) {
        copy(history.path(), &self.dir.path().join(APPEND_ONLY));
    }

    pub(crate) async fn con(&self) -> MultiplexedConnection {
        let client = redis::Client::open(self.url()).expect("a url");
        client
            .get_multiplexed_async_connection()
            .await
            .expect("a connection")
    }

    /// Kills the server without a farewell.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("reaped");
    }

    /// Starts it again on the same port, with what its files hold.
    pub(crate) async fn start_again(&mut self) {
        self.child = spawn(self.port, self.dir.path(), &self.options);
        assert!(self.wait().await, "redis-server did not start again");
    }

    async fn wait(&mut self) -> bool {
        let client = redis::Client::open(self.url()).expect("a url");
        let asked = async {
            loop {
                if self.child.try_wait().expect("a child").is_some() {
                    return false;
                }
                if let Ok(mut con) = client.get_multiplexed_async_connection().await
                    && redis::cmd("PING")
                        .query_async::<String>(&mut con)
                        .await
                        .is_ok()
                {
                    return true;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(READY_MAX, asked)
            .await
            .unwrap_or(false)
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The files of one directory in place of the other's.
fn first(bytes: &[u8], text: &str) -> Option<usize> {
    bytes
        .windows(text.len())
        .position(|part| part == text.as_bytes())
}

fn last(bytes: &[u8], text: &str) -> Option<usize> {
    bytes
        .windows(text.len())
        .rposition(|part| part == text.as_bytes())
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    for old in std::fs::read_dir(to).expect("a directory") {
        std::fs::remove_file(old.expect("a file").path()).expect("removed");
    }
    for file in std::fs::read_dir(from).expect("a directory") {
        let file = file.expect("a file");
        std::fs::copy(file.path(), to.join(file.file_name())).expect("copied");
    }
}

fn spawn(port: u16, dir: &std::path::Path, options: &[String]) -> Child {
    Command::new("redis-server")
        .args(["--bind", "127.0.0.1", "--save", "", "--port"])
        .arg(port.to_string())
        .arg("--dir")
        .arg(dir)
        .args(options)
        .stdout(Stdio::null())
        .spawn()
        .expect("redis-server is installed")
}
