//! What if the network between a lock and its server loses something? A relay that does so on demand.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flashlock::clock::{self, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

/// Stands between the clients that connect to it and one server.
pub(super) struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    server: String,
    now: watch::Sender<Now>,
    once: Mutex<Option<(Vec<u8>, Once)>>,
    /// Requests that contained the searched bytes.
    seen: Mutex<Vec<(Vec<u8>, Arc<AtomicUsize>)>>,
}

/// How it treats what passes, until told otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Now {
    mode: Mode,
    /// Connections of an earlier generation are cut.
    generation: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Open,
    /// Each answer comes this much later.
    Slow(Duration),
    /// Nothing passes in either direction, and nothing is cut.
    BlackHole,
}

/// What happens to one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Once {
    /// It does not reach the server, and the connection is cut.
    CutBefore,
    /// It reaches the server, its answer does not come, and the connection is cut.
    CutAfter,
    /// It and all that follows waits until the mode is set anew.
    Hold,
}

impl Relay {
    pub(super) async fn to(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared {
            server,
            now: watch::Sender::new(Now {
                mode: Mode::Open,
                generation: 0,
            }),
            once: Mutex::default(),
            seen: Mutex::default(),
        });
        let accepting = shared.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(accepting.clone().relay(client));
            }
        });
        Self { address, shared }
    }

    pub(super) fn address(&self) -> String {
        self.address.to_string()
    }

    pub(super) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    pub(super) fn set(&self, mode: Mode) {
        self.shared.now.send_modify(|now| now.mode = mode);
    }

    /// Cuts every connection; new ones are relayed.
    pub(super) fn cut(&self) {
        self.shared.now.send_modify(|now| now.generation += 1);
    }

    /// The next request that contains `word` is treated so.
    pub(super) fn once(&self, word: &[u8], what: Once) {
        *self.shared.once.lock().expect("no panic") = Some((word.to_vec(), what));
    }

    /// Whether the request of `once` has come.
    pub(super) fn has_come(&self) -> bool {
        self.shared.once.lock().expect("no panic").is_none()
    }

    /// Counts requests that contain `word`, from now on.
    pub(super) fn count(&self, word: &[u8]) -> Arc<AtomicUsize> {
        let count = Arc::new(AtomicUsize::new(0));
        let mut seen = self.shared.seen.lock().expect("no panic");
        seen.push((word.to_vec(), count.clone()));
        count
    }
}

impl Shared {
    async fn relay(self: Arc<Self>, client: TcpStream) {
        let mut now = self.now.subscribe();
        let generation = now.borrow_and_update().generation;
        let Ok(server) = TcpStream::connect(&self.server).await else {
            return;
        };
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let muted = AtomicBool::new(false);
        tokio::select! {
            () = self.requests(from_client, to_server, &muted) => {}
            () = self.answers(from_server, to_client, &muted) => {}
            _ = now.wait_for(|now| now.generation != generation) => {}
        }
    }

    async fn requests(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, muted: &AtomicBool) {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let Ok(n @ 1..) = from.read(&mut buffer).await else {
                return;
            };
            let bytes = &buffer[..n];
            self.passable().await;
            for (word, count) in self.seen.lock().expect("no panic").iter() {
                let times = bytes.windows(word.len()).filter(|w| w == word).count();
                count.fetch_add(times, Ordering::SeqCst);
            }
            match self.treatment(bytes) {
                None => {}
                Some(Once::CutBefore) => return,
                Some(Once::CutAfter) => {
                    muted.store(true, Ordering::SeqCst);
                    // The server reads it before it sees the end, and ends the connection then.
                    let _sent = to.write_all(bytes).await;
                    let _shut = to.shutdown().await;
                    return std::future::pending().await;
                }
                Some(Once::Hold) => {
                    let mut now = self.now.subscribe();
                    now.borrow_and_update();
                    if now.changed().await.is_err() {
                        return;
                    }
                }
            }
            if to.write_all(bytes).await.is_err() {
                return;
            }
        }
    }

    async fn answers(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, muted: &AtomicBool) {
        let (push, mut late) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
        // Each answer is late by itself: those behind it are not late twice.
        let read = async {
            let mut buffer = vec![0; 64 * 1024];
            while let Ok(n @ 1..) = from.read(&mut buffer).await {
                let by = match self.now.borrow().mode {
                    Mode::Slow(by) => by,
                    Mode::Open | Mode::BlackHole => Duration::ZERO,
                };
                if push
                    .send((clock::now() + by, buffer[..n].to_vec()))
                    .is_err()
                {
                    return;
                }
            }
        };
        let write = async {
            while let Some((due, bytes)) = late.recv().await {
                tokio::time::sleep_until(due).await;
                self.passable().await;
                if !muted.load(Ordering::SeqCst) && to.write_all(&bytes).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = read => {}
            () = write => {}
        }
    }

    async fn passable(&self) {
        let mut now = self.now.subscribe();
        let open = now.wait_for(|now| now.mode != Mode::BlackHole).await;
        drop(open);
    }

    fn treatment(&self, bytes: &[u8]) -> Option<Once> {
        let mut once = self.once.lock().expect("no panic");
        let (word, _) = once.as_ref()?;
        let found = bytes.windows(word.len()).any(|w| w == word.as_slice());
        if found {
            once.take().map(|(_, what)| what)
        } else {
            None
        }
    }
}
