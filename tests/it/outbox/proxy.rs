//! A proxy before a Redis that can keep a request back, or its answer.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What happens to the first XADD that comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keep {
    Request,
    Answer,
}

/// The proxy's address and what it has seen. It ends with the test's runtime.
pub(super) struct Proxy {
    pub(super) url: String,
    kept: watch::Receiver<bool>,
    go_on: watch::Sender<bool>,
}

impl Proxy {
    pub(super) async fn before(redis_url: &str, keep: Keep) -> Self {
        let redis = redis_url.trim_start_matches("redis://");
        let redis = Arc::new(redis.trim_end_matches('/').to_string());
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (seen, kept) = watch::channel(false);
        let (go_on, going) = watch::channel(false);
        let seen = Arc::new(seen);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (seen, going, redis) = (Arc::clone(&seen), going.clone(), Arc::clone(&redis));
                tokio::spawn(async move {
                    // A connection that breaks is one that the process under test has left.
                    drop(pass(client, &redis, keep, &seen, going).await);
                });
            }
        });
        Self {
            url: format!("redis://{address}"),
            kept,
            go_on,
        }
    }

    /// Waits until an XADD is kept back, or its answer.
    pub(super) async fn kept(&mut self) {
        let kept = tokio::time::timeout(Duration::from_secs(20), self.kept.wait_for(|k| *k));
        kept.await.expect("an XADD comes").expect("the proxy runs");
    }

    pub(super) fn go_on(&self) {
        self.go_on.send(true).expect("the proxy runs");
    }
}

async fn pass(
    mut client: TcpStream,
    redis: &str,
    keep: Keep,
    seen: &watch::Sender<bool>,
    mut going: watch::Receiver<bool>,
) -> std::io::Result<()> {
    let mut server = TcpStream::connect(redis).await?;
    let (mut up, mut down) = (vec![0; 65536], vec![0; 65536]);
    let mut keeps_answer = false;
    loop {
        tokio::select! {
            n = client.read(&mut up) => {
                let n = n?;
                if n == 0 {
                    return Ok(());
                }
                // The command, and not the text of a script that has it.
                let adds = up[..n].windows(6).any(|six| six == b"XADD\r\n");
                let first = adds && seen.send_if_modified(|kept| keep == Keep::Request && !std::mem::replace(kept, true));
                if first {
                    let _gone = going.wait_for(|go_on| *go_on).await;
                }
                keeps_answer |= adds && keep == Keep::Answer && !*seen.borrow();
                server.write_all(&up[..n]).await?;
            }
            n = server.read(&mut down) => {
                let n = n?;
                if n == 0 {
                    return Ok(());
                }
                if std::mem::take(&mut keeps_answer) {
                    seen.send_replace(true);
                    let _gone = going.wait_for(|go_on| *go_on).await;
                }
                client.write_all(&down[..n]).await?;
            }
        }
    }
}
