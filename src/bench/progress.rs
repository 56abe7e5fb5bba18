//! What is running now: a bar per strategy on a terminal, plain lines elsewhere.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::run::{Cell, Finding, Verdict};

/// A spinner that moves shows that the program lives.
const TICK: Duration = Duration::from_millis(120);

/// Where progress goes.
#[derive(Debug, Clone)]
pub enum Progress {
    Bars(MultiProgress),
    Lines,
    /// Nowhere: for tests.
    Silent,
}

/// One strategy's line.
#[derive(Debug, Clone)]
pub struct Step {
    name: String,
    shown: Shown,
}

#[derive(Debug, Clone)]
enum Shown {
    Bar(ProgressBar),
    Line,
    Nothing,
}

// === impl Progress ===

impl Progress {
    /// Bars if stderr is a terminal.
    pub fn to_stderr() -> Self {
        match std::io::stderr().is_terminal() {
            true => Self::Bars(MultiProgress::new()),
            false => Self::Lines,
        }
    }

    /// Begins a line.
    pub fn step(&self, name: &str) -> Step {
        let shown = match self {
            Self::Bars(all) => {
                let bar = all.add(ProgressBar::new(1));
                bar.set_style(style("{spinner} {prefix:<22} {bar:24} {msg}"));
                bar.set_prefix(name.to_string());
                bar.enable_steady_tick(TICK);
                Shown::Bar(bar)
            }
            Self::Lines => Shown::Line,
            Self::Silent => Shown::Nothing,
        };
        Step {
            name: name.to_string(),
            shown,
        }
    }
}

// === impl Step ===

impl Step {
    /// What it does now.
    pub fn now(&self, what: &str) {
        match &self.shown {
            Shown::Bar(bar) => bar.set_message(what.to_string()),
            Shown::Line => eprintln!("{:<22} {what}", self.name),
            Shown::Nothing => {}
        }
    }

    /// `total` answers are to come; each [`Step::tick`] is one.
    pub fn expect(&self, total: usize, what: &str) {
        if let Shown::Bar(bar) = &self.shown {
            bar.set_length(total as u64);
            bar.set_position(0);
        }
        self.now(what);
    }

    pub fn tick(&self) {
        if let Shown::Bar(bar) = &self.shown {
            bar.inc(1);
        }
    }

    /// The last word; the line stays.
    pub fn done(&self, what: &str) {
        match &self.shown {
            Shown::Bar(bar) => {
                bar.set_style(style("  {prefix:<22} {msg}"));
                bar.finish_with_message(what.to_string());
            }
            Shown::Line => eprintln!("{:<22} {what}", self.name),
            Shown::Nothing => {}
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("a valid template")
}

/// A cell in one line.
pub fn summary(cell: &Cell) -> String {
    if let Some(why) = &cell.skipped {
        return format!("skipped: {why}");
    }
    let goodput = cell
        .goodput_per_s
        .map_or_else(|| "-".to_string(), |g| format!("{g:.0}"));
    let verdict = match (cell.safety.verdict, cell.control) {
        (Verdict::Violated, true) => format!(
            "oversold {} units, as the control is meant to",
            cell.safety.oversold
        ),
        (Verdict::Ok, _) => "held".to_string(),
        (Verdict::Violated, false) => "VIOLATED".to_string(),
        (Verdict::Unknown, _) => {
            let unknown = |f: &&Finding| f.verdict == Verdict::Unknown;
            let why = cell.safety.findings.iter().find(unknown);
            format!("unknown: {}", why.map_or("", |f| f.says.as_str()))
        }
    };
    format!(
        "{} of {} booked in {:.1} s, {goodput} orders/s, {verdict}",
        cell.booked, cell.stock, cell.elapsed_s
    )
}
