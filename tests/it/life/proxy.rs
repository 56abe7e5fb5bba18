//! A proxy before a server that cuts everything off at the k-th write of the process behind it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

/// What the process is left without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lose {
    /// The server never sees the request.
    Request,
    /// The server does as it was asked, and the process never learns of it.
    Answer,
}

/// The proxy's address, and whether it has cut. It ends with the test's runtime.
pub(super) struct Proxy {
    /// `host:port`.
    pub(super) address: String,
    /// Writes until the cut; below zero while it is not armed.
    left: Arc<AtomicI64>,
    cut: CancellationToken,
}

impl Proxy {
    /// Before the server at `address` (`host:port`).
    pub(super) async fn before(server: &str, lose: Lose) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address").to_string();
        let left = Arc::new(AtomicI64::new(-1));
        let cut = CancellationToken::new();
        let (seen, server) = (cut.clone(), Arc::new(server.to_string()));
        let counter = Arc::clone(&left);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (left, cut) = (Arc::clone(&counter), cut.clone());
                let server = Arc::clone(&server);
                tokio::spawn(async move {
                    // A connection that breaks is one that the process under test has left.
                    drop(pass(client, &server, lose, &left, &cut).await);
                });
            }
        });
        Self {
            address,
            left,
            cut: seen,
        }
    }

    /// Cuts at the `k`-th write from now on, the first being 1.
    pub(super) fn arm(&self, k: i64) {
        self.left.store(k, Ordering::SeqCst);
    }

    /// Waits for the cut.
    pub(super) async fn cut(&self) {
        self.cut.cancelled().await;
    }
}

async fn pass(
    mut client: TcpStream,
    server: &str,
    lose: Lose,
    left: &AtomicI64,
    cut: &CancellationToken,
) -> std::io::Result<()> {
    let mut server = TcpStream::connect(server).await?;
    let (mut up, mut down) = (vec![0; 65536], vec![0; 65536]);
    let mut loses_answer = false;
    loop {
        tokio::select! {
            () = cut.cancelled() => break,
            n = client.read(&mut up) => {
                let n = n?;
                if n == 0 {
                    return Ok(());
                }
                let is_it = left.load(Ordering::SeqCst) > 0 && left.fetch_sub(1, Ordering::SeqCst) == 1;
                if is_it && lose == Lose::Request {
                    cut.cancel();
                    break;
                }
                loses_answer |= is_it;
                server.write_all(&up[..n]).await?;
            }
            n = server.read(&mut down) => {
                let n = n?;
                if n == 0 {
                    return Ok(());
                }
                if loses_answer {
                    cut.cancel();
                    break;
                }
                client.write_all(&down[..n]).await?;
            }
        }
    }
    // Silent until the process is gone; only then does the server learn of it.
    while client.read(&mut up).await? > 0 {}
    Ok(())
}
