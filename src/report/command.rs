//! `flashlock report`: renders a stored run again, or beside another one.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::{Format, ReportError, against, load, render, write_whole};
use crate::run::Verdict;

/// What to render, and where to.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub struct ReportArgs {
    /// The run: a directory that `flashlock compare` wrote, or its report.json
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    /// What to render it as
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub format: Format,
    /// Where to write to, instead of standard output
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Print ratios to this run and verdicts that changed. Exits 1 when a strategy is violated that
    /// was not, 3 when a verdict became unknown
    #[arg(long, value_name = "OTHER_RUN", conflicts_with = "format")]
    pub against: Option<PathBuf>,
}

/// Renders as the options say. The exit code is 0 for a report, whatever its verdicts are; they
/// were the exit code of the run.
///
/// # Errors
/// As `load`, `render` and `write_all`.
pub fn run(args: &ReportArgs) -> Result<ExitCode, ReportError> {
    let this = load(&args.run)?;
    let (text, exit) = match &args.against {
        Some(other) => {
            let compared = against::against(&this, &load(other)?);
            (compared.text, exit_code(compared.worsened))
        }
        None => (render(args.format, &this)?, 0),
    };
    match &args.out {
        Some(file) => write_whole(file, &text)?,
        None => print(&text)?,
    }
    Ok(ExitCode::from(exit))
}

fn exit_code(worsened: Verdict) -> u8 {
    match worsened {
        Verdict::Ok => 0,
        Verdict::Violated => 1,
        Verdict::Unknown => 3,
    }
}

fn print(text: &str) -> Result<(), ReportError> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // The reader has seen enough, such as `| head`.
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(()),
        Err(source) => Err(ReportError::Write {
            path: Path::new("standard output").to_path_buf(),
            source,
        }),
        Ok(()) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{sample, write_all};
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        report: ReportArgs,
    }

    fn parse(line: &[&str]) -> Result<ReportArgs, clap::Error> {
        let line = std::iter::once("report").chain(line.iter().copied());
        Line::try_parse_from(line).map(|l| l.report)
    }

    #[test]
    fn a_stored_run_is_rendered_into_a_file() {
        let dir = tempfile::tempdir().expect("a directory");
        write_all(&sample::run(), dir.path()).expect("written");
        let stored = dir.path().to_str().expect("UTF-8");
        let out = dir.path().join("again.md");
        let to = out.to_str().expect("UTF-8");
        let args = parse(&[stored, "--format", "markdown", "--out", to]).expect("parsed");
        run(&args).expect("rendered");
        let again = std::fs::read_to_string(&out).expect("read");
        let first = std::fs::read_to_string(dir.path().join("report.md")).expect("read");
        assert_eq!(again, first);
    }

    #[test]
    fn a_table_is_the_default_and_a_comparison_has_no_other_format() {
        let args = parse(&["DIR"]).expect("parsed");
        assert_eq!((args.format, args.against), (Format::Table, None));
        assert!(parse(&["DIR", "--against", "OTHER", "--format", "html"]).is_err());
        let unknown = parse(&["DIR", "--format", "pdf"])
            .expect_err("refused")
            .to_string();
        assert!(unknown.contains("json, markdown, html, table"), "{unknown}");
    }

    #[test]
    fn a_verdict_that_became_graver_is_the_exit_code() {
        assert_eq!(exit_code(Verdict::Ok), 0);
        assert_eq!(exit_code(Verdict::Violated), 1);
        assert_eq!(exit_code(Verdict::Unknown), 3);
    }
}
