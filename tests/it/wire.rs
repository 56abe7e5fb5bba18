//! Requests byte by byte: what a well-behaved client cannot send, and where a request stands.

use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::world::Answer;

/// An answer takes at most this long, whatever is asked.
const ANSWER: Duration = Duration::from_secs(30);

/// A connection in the middle of a request.
pub(crate) struct Wire {
    stream: TcpStream,
    /// What came after the last thing that was read.
    rest: Vec<u8>,
}

impl Wire {
    /// Connects, and sends the beginning of a request.
    pub(crate) async fn send(url: &str, bytes: &[u8]) -> Self {
        let address = url.strip_prefix("http://").expect("an http URL");
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        stream.write_all(bytes).await.expect("it reads");
        Self {
            stream,
            rest: Vec::new(),
        }
    }

    /// Sends the head of a POST and waits until its handler asks for the body: the request is in
    /// the service's hands then, and nothing of it has been done.
    pub(crate) async fn begin(url: &str, path: &str, headers: &[&str], body_len: usize) -> Self {
        let mut head = format!(
            "POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {body_len}\r\nExpect: 100-continue\r\n"
        );
        for header in headers {
            head.push_str(header);
            head.push_str("\r\n");
        }
        head.push_str("\r\n");
        let mut wire = Self::send(url, head.as_bytes()).await;
        let head = wire.head().await.expect("an answer to the head");
        assert!(head.starts_with("HTTP/1.1 100 "), "{head}");
        wire
    }

    pub(crate) async fn go_on(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.expect("it reads");
    }

    /// The answer; `Err` when the connection ended without a whole one.
    pub(crate) async fn answer(&mut self) -> std::io::Result<Answer> {
        let head = self.head().await?;
        let mut lines = head.lines();
        let status = lines
            .next()
            .and_then(|line| line.split(' ').nth(1))
            .and_then(|status| status.parse().ok())
            .unwrap_or_else(|| panic!("no status in {head}"));
        let mut headers = HeaderMap::new();
        for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
            let name: HeaderName = name.parse().expect("a header's name");
            headers.append(name, HeaderValue::from_str(value).expect("a header"));
        }
        let length = headers
            .get("content-length")
            .and_then(|length| length.to_str().ok()?.parse().ok())
            .unwrap_or(0);
        while self.rest.len() < length {
            self.more().await?;
        }
        let text = String::from_utf8_lossy(&self.rest[..length]).into_owned();
        self.rest.drain(..length);
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Ok(Answer {
            status,
            headers,
            body,
        })
    }

    async fn head(&mut self) -> std::io::Result<String> {
        loop {
            let end = self.rest.windows(4).position(|four| four == b"\r\n\r\n");
            if let Some(end) = end {
                let head = String::from_utf8_lossy(&self.rest[..end]).into_owned();
                self.rest.drain(..end + 4);
                return Ok(head);
            }
            self.more().await?;
        }
    }

    async fn more(&mut self) -> std::io::Result<()> {
        let mut buffer = [0; 4096];
        let read = tokio::time::timeout(ANSWER, self.stream.read(&mut buffer));
        let n = read.await.expect("it answers or hangs up")?;
        if n == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        self.rest.extend_from_slice(&buffer[..n]);
        Ok(())
    }
}

/// One whole request of exactly these bytes, and its answer.
pub(crate) async fn exchange(url: &str, request: impl AsRef<[u8]>) -> Answer {
    let mut wire = Wire::send(url, request.as_ref()).await;
    wire.answer().await.expect("a whole answer")
}
