//! A run as JSON, Markdown, HTML or a table: which formats there are, and how a run is stored and
//! read again.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::ValueEnum;

use crate::run::Run;

/// This run beside another one.
pub mod against;
/// The pictures of the page.
mod chart;
/// `flashlock report`.
pub mod command;
/// The page.
mod html;
/// The contract.
mod json;
/// Throughput as a share of what the raw servers do.
mod limits;
/// For a pull request or a decision document.
mod markdown;
/// The figures in words, the same in every format.
mod rows;
#[cfg(test)]
mod sample;
/// For the terminal.
mod table;
/// What a report says beside its figures.
mod words;

/// The name under which a run is stored in its directory.
pub const FILE_NAME: &str = "report.json";

/// What a run can be rendered as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum)]
pub enum Format {
    /// The run itself, as stored: the contract for programs.
    Json,
    /// For a pull request or a decision document.
    Markdown,
    /// One page with pictures that opens without a network.
    Html,
    /// For the terminal, at most 120 columns wide.
    Table,
}

/// Why a run could not be read, rendered or written.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    #[error("cannot read {path}: {source}")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// Not JSON, or JSON that is not a run.
    #[error("{path} is not a run that `flashlock compare` wrote: {source}")]
    NotARun {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error(
        "{path} has schema {found}, and this flashlock reads schema {known}: \
         render it with the version that wrote it"
    )]
    UnknownSchema {
        path: PathBuf,
        found: String,
        known: u32,
    },
    /// JSON has no infinity; stored as null, the run could not be read again.
    #[error("`{field}` of the run is not a finite number")]
    NotFinite { field: String },
    #[error("cannot render the run: {source}")]
    Render {
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("cannot write {path}: {source}")]
    Write {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

// === impl Format ===

impl Format {
    /// The file that `write_all` writes in this format; a table is for the terminal only.
    pub fn file_name(self) -> Option<&'static str> {
        match self {
            Self::Json => Some(FILE_NAME),
            Self::Markdown => Some("report.md"),
            Self::Html => Some("report.html"),
            Self::Table => None,
        }
    }
}

/// The run in `format`, as text that ends with a newline.
///
/// # Errors
/// `NotFinite` when the run holds a figure that JSON cannot; `Render` when the page or a picture
/// could not be drawn.
pub fn render(format: Format, run: &Run) -> Result<String, ReportError> {
    match format {
        Format::Json => json::render(run),
        Format::Markdown => Ok(markdown::render(run)),
        Format::Html => html::render(run),
        Format::Table => Ok(table::render(run)),
    }
}

/// Writes the run into `dir`, which is made if need be, in every format that has a file. Each file
/// is there whole or not at all, and none is touched before all are rendered.
///
/// # Errors
/// As `render`; `Write` when the directory or a file could not be written.
pub fn write_all(run: &Run, dir: &Path) -> Result<Vec<PathBuf>, ReportError> {
    let mut files = Vec::new();
    for &format in Format::value_variants() {
        if let Some(name) = format.file_name() {
            files.push((dir.join(name), render(format, run)?));
        }
    }
    std::fs::create_dir_all(dir).map_err(|source| ReportError::Write {
        path: dir.to_path_buf(),
        source,
    })?;
    for (path, text) in &files {
        write_whole(path, text)?;
    }
    Ok(files.into_iter().map(|(path, _)| path).collect())
}

/// The run that is stored at `path`: a `report.json`, or the directory that has one.
///
/// # Errors
/// `Read`, `NotARun` and `UnknownSchema`, each with the path.
pub fn load(path: &Path) -> Result<Run, ReportError> {
    let path = if path.is_dir() {
        path.join(FILE_NAME)
    } else {
        path.to_path_buf()
    };
    let text = std::fs::read(&path).map_err(|source| ReportError::Read {
        path: path.clone(),
        source,
    })?;
    json::parse(&path, &text)
}

/// Puts `text` at `path` by renaming a finished file: a reader, and a crash, see the old file or
/// the new one.
fn write_whole(path: &Path, text: &str) -> Result<(), ReportError> {
    use std::os::unix::fs::PermissionsExt;

    let failed = |source| ReportError::Write {
        path: path.to_path_buf(),
        source,
    };
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        Some(_) | None => Path::new("."),
    };
    // A temporary file is private by default; a report is as readable as the umask lets it be.
    let mut file = tempfile::Builder::new()
        .prefix(".report-")
        .permissions(std::fs::Permissions::from_mode(0o666))
        .tempfile_in(dir)
        .map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)?;
    file.as_file().sync_all().map_err(failed)?;
    file.persist(path).map_err(|e| failed(e.error))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_run_is_read_again_as_it_was() {
        let run = sample::run();
        let dir = tempfile::tempdir().expect("a directory");
        let out = dir.path().join("new/run");
        let written = write_all(&run, &out).expect("written");
        let names: Vec<_> = written.iter().filter_map(|p| p.file_name()).collect();
        assert_eq!(names, ["report.json", "report.md", "report.html"]);
        assert_eq!(load(&out).expect("by directory"), run);
        assert_eq!(load(&written[0]).expect("by file"), run);
        let left_over = std::fs::read_dir(&out).expect("read").count();
        assert_eq!(left_over, 3, "no temporary file stays behind");
    }

    #[test]
    fn a_run_that_cannot_be_rendered_leaves_the_stored_one_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let good = sample::run();
        write_all(&good, dir.path()).expect("written");
        let mut bad = sample::run();
        bad.limits[0].per_s = f64::NAN;
        let refused = write_all(&bad, dir.path()).expect_err("refused");
        assert!(refused.to_string().contains("limits[0].per_s"), "{refused}");
        assert_eq!(load(dir.path()).expect("still there"), good);
    }

    #[test]
    fn what_is_not_a_run_is_refused_with_its_path_and_the_reason() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join(FILE_NAME);
        let refusal = |text: &str| {
            std::fs::write(&path, text).expect("written");
            let message = load(dir.path()).expect_err("refused").to_string();
            assert!(message.contains("report.json"), "{message}");
            message
        };
        assert!(refusal("{ not json").contains("line 1"));
        assert!(refusal("[]").contains("is not a run"));
        assert!(refusal("{}").contains("schema none"));
        assert!(
            refusal(r#"{"schema": 2}"#).contains("schema 2, and this flashlock reads schema 1")
        );
        assert!(refusal(r#"{"schema": "x"}"#).contains("schema \"x\""));
        assert!(refusal(r#"{"schema": 1}"#).contains("missing field `run`"));
        let absent = load(&dir.path().join("absent")).expect_err("refused");
        assert!(matches!(absent, ReportError::Read { .. }), "{absent}");
    }
}
