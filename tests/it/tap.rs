//! What passes between a service and a server, and how is it cut off, delayed or kept?

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What happens to a piece of a request that is on its way to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    Pass,
    /// The connection ends before the server reads it.
    CutBefore,
    /// The server has carried it out; the connection ends instead of the answer.
    CutAfter,
    /// Its answer, and what comes behind it, is this late.
    AnswerLate(Duration),
    /// The server reads it this late, whether or not the client has waited.
    RequestLate(Duration),
    /// The server never reads it.
    Keep,
    /// The server reads it once it is let go, whether or not the client has waited.
    Hold,
}

/// A proxy on loopback in front of a server. It ends with the runtime of its test.
pub(crate) struct Tap {
    /// `host:port`, in place of the server's.
    pub(crate) address: String,
    /// Pieces that were kept or held.
    kept: watch::Receiver<usize>,
    go_on: watch::Sender<bool>,
    server: watch::Sender<String>,
}

/// What a connection needs to know.
#[derive(Clone)]
struct Line {
    decide: Decide,
    kept: Arc<watch::Sender<usize>>,
    going: watch::Receiver<bool>,
    server: watch::Receiver<String>,
}

type Decide = Arc<dyn Fn(&[u8]) -> Act + Send + Sync>;

// === impl Tap ===

impl Tap {
    /// Stands before `server` (`host:port`); `decide` sees each piece that a client sends.
    pub(crate) async fn before(
        server: &str,
        decide: impl Fn(&[u8]) -> Act + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address").to_string();
        let (count, kept) = watch::channel(0);
        let (go_on, going) = watch::channel(false);
        let (server, serving) = watch::channel(server.to_string());
        let line = Line {
            decide: Arc::new(decide),
            kept: Arc::new(count),
            going,
            server: serving,
        };
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let mut moved = line.server.clone();
                moved.mark_unchanged();
                let line = line.clone();
                tokio::spawn(async move {
                    tokio::select! {
                        // A connection that breaks is one that either side has left.
                        passed = pass(client, line) => drop(passed),
                        Ok(()) = moved.changed() => {}
                    }
                });
            }
        });
        Self {
            address,
            kept,
            go_on,
            server,
        }
    }

    /// Ends all connections; the next ones are to `server`.
    pub(crate) fn switch_to(&self, server: &str) {
        self.server.send_replace(server.to_string());
    }

    /// Lets go what is held, and what would be.
    pub(crate) fn let_go(&self) {
        self.go_on.send_replace(true);
    }

    /// `url` with this proxy in place of the server.
    pub(crate) fn instead_of(&self, url: &str) -> String {
        url.replace(&host_of(url), &self.address)
    }

    /// Waits until `n` pieces in all are kept from the server.
    pub(crate) async fn until_kept(&self, n: usize) {
        let mut kept = self.kept.clone();
        let waited = tokio::time::timeout(Duration::from_secs(30), kept.wait_for(|k| *k >= n));
        waited.await.expect("it comes").expect("the proxy runs");
    }
}

/// `host:port` in a URL.
pub(crate) fn host_of(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let rest = rest.split(['/', '?']).next().unwrap_or(rest);
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    host.to_string()
}

/// Whether `piece` has `text` in it.
pub(crate) fn has(piece: &[u8], text: &str) -> bool {
    piece
        .windows(text.len())
        .any(|part| part == text.as_bytes())
}

async fn pass(mut client: TcpStream, mut line: Line) -> std::io::Result<()> {
    let address = line.server.borrow().clone();
    let mut server = TcpStream::connect(address).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut up, mut down) = (vec![0; 65_536], vec![0; 65_536]);
    loop {
        tokio::select! {
            n = client.read(&mut up) => {
                let piece = &up[..n?];
                if piece.is_empty() {
                    return Ok(());
                }
                match (line.decide)(piece) {
                    Act::Pass => server.write_all(piece).await?,
                    Act::CutBefore => return Ok(()),
                    Act::CutAfter => {
                        server.write_all(piece).await?;
                        let _carried_out = server.read(&mut down).await?;
                        return Ok(());
                    }
                    Act::AnswerLate(by) => {
                        server.write_all(piece).await?;
                        tokio::time::sleep(by).await;
                    }
                    Act::RequestLate(by) => {
                        tokio::time::sleep(by).await;
                        server.write_all(piece).await?;
                    }
                    Act::Keep => {
                        line.kept.send_modify(|kept| *kept += 1);
                        // Until the client goes; what else it sends is kept as well.
                        while client.read(&mut up).await? > 0 {}
                        return Ok(());
                    }
                    Act::Hold => {
                        line.kept.send_modify(|kept| *kept += 1);
                        drop(line.going.wait_for(|go_on| *go_on).await);
                        server.write_all(piece).await?;
                    }
                }
            }
            n = server.read(&mut down) => {
                let piece = &down[..n?];
                if piece.is_empty() {
                    return Ok(());
                }
                client.write_all(piece).await?;
            }
        }
    }
}
