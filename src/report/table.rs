//! The run as two tables for the terminal: what happened, and what it cost.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use super::rows::{self, Kind, Row};
use super::words;
use crate::run::Run;

/// Columns of text a report may take: what a terminal beside an editor still shows.
pub(super) const WIDTH_MAX: u16 = 120;

pub(super) fn render(run: &Run) -> String {
    let rows = rows::rows(run);
    let (_, outcome) = words::outcome(run);
    let mut out = String::new();
    let mut line = |text: &str| {
        out.push_str(text);
        out.push('\n');
    };
    line(&words::load(run));
    line(&words::origin(run));
    for why in &run.run.disturbances {
        line(&format!("DISTURBED, do not compare: {why}"));
    }
    line("");
    line(&safety(&rows));
    line("");
    line(&cost(&rows));
    line("");
    if rows.iter().any(Row::has_dash) {
        line(words::DASH);
    }
    line("Figures compare only within one durability class.");
    line(&outcome);
    out
}

fn safety(rows: &[Row<'_>]) -> String {
    let mut table = new_table(&[
        ("strategy", Side::Left),
        ("guard", Side::Left),
        ("booked/stock", Side::Right),
        ("sold out", Side::Right),
        ("already", Side::Right),
        ("busy", Side::Right),
        ("unknown", Side::Right),
        ("verdict", Side::Left),
        ("", Side::Left),
    ]);
    for row in rows {
        table.add_row(vec![
            &row.name,
            &row.guard,
            &row.booked,
            &row.sold_out,
            &row.already_purchased,
            &row.busy,
            &row.unknown,
            row.verdict,
            &row.remark,
        ]);
    }
    table.trim_fmt()
}

fn cost(rows: &[Row<'_>]) -> String {
    let mut table = new_table(&[
        ("strategy", Side::Left),
        ("durability", Side::Left),
        ("goodput/s", Side::Right),
        ("p50 ms", Side::Right),
        ("p90 ms", Side::Right),
        ("p99 ms", Side::Right),
        ("max ms", Side::Right),
        ("CPU µs/order:\nservice", Side::Right),
        ("\nserver", Side::Right),
        ("\ndatabase", Side::Right),
        ("verdict", Side::Left),
    ]);
    for row in rows.iter().filter(|r| r.kind != Kind::Skipped) {
        table.add_row(vec![
            &row.name,
            row.durability,
            &row.goodput,
            &row.p50,
            &row.p90,
            &row.p99,
            &row.max,
            &row.cpu_service,
            &row.cpu_server,
            &row.cpu_database,
            row.verdict,
        ]);
    }
    table.trim_fmt()
}

/// On which side a column's text stands: figures right, so that their digits line up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    Right,
}

/// An empty table without colour or vertical lines; what does not fit is wrapped.
pub(super) fn new_table(columns: &[(&str, Side)]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_HORIZONTAL_ONLY)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .force_no_tty()
        .set_width(WIDTH_MAX)
        .set_header(columns.iter().map(|(name, _)| *name));
    for (i, (_, side)) in columns.iter().enumerate() {
        if let Some(column) = table.column_mut(i) {
            column.set_padding((0, 2)).set_cell_alignment(match side {
                Side::Left => CellAlignment::Left,
                Side::Right => CellAlignment::Right,
            });
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    fn line_of(text: &str, name: &str) -> String {
        let line = text.lines().find(|l| l.trim_start().starts_with(name));
        line.unwrap_or_else(|| panic!("no row of {name} in:\n{text}"))
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn every_strategy_has_a_row_with_its_counts_and_its_verdict() {
        let text = render(&sample::run());
        for name in [
            "redis-set-nx",
            "zookeeper",
            "redis-lua",
            "db-conditional-update",
        ] {
            let line = line_of(&text, name);
            assert!(line.contains("200/200 1800 34 12 0 ok"), "{line}");
        }
        assert!(line_of(&text, "db-unique-insert").contains("3 unknown"));
    }

    #[test]
    fn the_control_says_that_overselling_is_its_purpose() {
        let text = render(&sample::run());
        let words: Vec<&str> = text.split_whitespace().collect();
        assert!(line_of(&text, "no-lock").contains("237/200"));
        assert!(
            words
                .join(" ")
                .contains("oversold 37: it is the control, and"),
            "{text}"
        );
    }

    #[test]
    fn a_dash_is_explained_where_there_is_one() {
        let mut run = sample::run();
        assert!(render(&run).contains("fewer than 100 samples"));
        run.results.retain(|c| c.strategy == "redis-set-nx");
        assert!(!render(&run).contains("fewer than 100 samples"));
    }

    #[test]
    fn a_disturbed_run_says_so_before_its_figures() {
        let mut run = sample::run();
        run.run.disturbances = vec!["the generator was busy".to_string()];
        let text = render(&run);
        let warned = text.find("DISTURBED, do not compare: the generator was busy");
        assert!(warned < text.find("redis-set-nx"), "{text}");
        assert!(warned.is_some());
    }

    #[test]
    fn the_tables_fit_the_terminal() {
        let mut run = sample::run();
        for cell in &mut run.results {
            cell.latency_ms.max = Some(123_456.0);
            cell.durability = "replicated".to_string();
        }
        run.results[1].skipped = Some("a long reason ".repeat(20));
        let text = render(&run);
        let tables = text.lines().filter(|l| !l.starts_with('–'));
        for line in tables.skip(2) {
            assert!(line.chars().count() <= usize::from(WIDTH_MAX), "{line}");
        }
    }
}
