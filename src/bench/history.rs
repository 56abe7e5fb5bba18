//! What happened, one JSON line per event on one monotonic clock.
//!
//! `fail` is written only when it is certain that nothing was booked; a timeout, a reset or
//! `outcome-unknown` is `info`: it stays open for ever.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use serde::Serialize;

/// One event of a buyer's call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Event {
    /// Nanoseconds since the sale opened.
    pub ns: u64,
    pub layer: Layer,
    /// The click, as a number in the burst.
    pub click: usize,
    /// 1 is the first request of the click.
    pub attempt: u32,
    pub user: String,
    pub key: String,
    pub instance: usize,
    #[serde(flatten)]
    pub what: What,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    Buyer,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum What {
    Invoke,
    Ok {
        order: String,
        status: u16,
        /// Units left after it, as the service saw them.
        left: Option<i64>,
        replay: bool,
    },
    Fail {
        status: u16,
        problem: String,
    },
    Info {
        why: String,
    },
}

/// The first line of a history: what the events are about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Head<'a> {
    pub layer: &'static str,
    pub strategy: &'a str,
    pub activity: &'a str,
    pub seed: u64,
    pub sku: &'a str,
    pub stock: i64,
}

/// Writes `head` and the events, in the order of their time, to `path`.
pub fn write(path: &Path, head: &Head<'_>, events: &[Event]) -> io::Result<()> {
    let mut sorted: Vec<&Event> = events.iter().collect();
    sorted.sort_by_key(|event| (event.ns, event.click, event.attempt));
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)?;
    }
    let mut file = BufWriter::new(File::create(path)?);
    line(&mut file, head)?;
    for event in sorted {
        line(&mut file, event)?;
    }
    file.flush()
}

fn line(file: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *file, value)?;
    file.write_all(b"\n")
}
