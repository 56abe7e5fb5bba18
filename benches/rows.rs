//! How do the benches share `target/bench.json`? Each writes its own rows, and keeps the others'.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// One comparison of ours with a reference. `ours`, `reference` and `target` are in the unit that
/// the name says; `ratio` is what `target` is for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) ours: f64,
    pub(crate) reference: f64,
    pub(crate) ratio: f64,
    pub(crate) target: f64,
    /// What else a bench tells, such as the spread.
    #[serde(flatten)]
    pub(crate) more: serde_json::Map<String, serde_json::Value>,
}

/// Where all benches write.
pub(crate) fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target/bench.json")
}

/// Puts `rows` into the array in `file`: a row of the same name is replaced where it stands, another
/// is appended. The file is never half written.
///
/// # Errors
/// When it cannot be written, or holds something that is no array: another's file is not
/// overwritten.
pub(crate) fn merge(file: &Path, rows: &[Row]) -> io::Result<()> {
    let mut all: Vec<serde_json::Value> = match std::fs::read(file) {
        Ok(text) => serde_json::from_slice(&text)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error),
    };
    for row in rows {
        let value = serde_json::to_value(row)?;
        match all.iter_mut().find(|old| old["name"] == row.name.as_str()) {
            Some(old) => *old = value,
            None => all.push(value),
        }
    }
    write(file, &all)
}

/// Writes `value` as JSON, beside the file first.
pub(crate) fn write(file: &Path, value: &impl Serialize) -> io::Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let beside = file.with_extension("json.new");
    let mut text = serde_json::to_vec_pretty(value)?;
    text.push(b'\n');
    std::fs::write(&beside, text)?;
    std::fs::rename(&beside, file)
}
