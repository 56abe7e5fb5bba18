//! The run as two tables for the terminal: what happened, and what it cost.

use comfy_table::{
    CellAlignment, ColumnConstraint, ContentArrangement, ContentLineStyle, LineStyle, Table,
    TableStyle,
};

use super::rows::{self, Kind, Row};
use super::words;
use crate::run::Run;

/// Columns of text a report may take: what a terminal beside an editor still shows.
pub(super) const WIDTH_MAX: u16 = 120;

pub(super) fn render(run: &Run) -> String {
    let rows = rows::rows(run);
    let (verdict, says) = words::outcome(run);
    let mut out = String::new();
    let mut paragraph = |text: &str| {
        out.push_str(&wrap(text));
        out.push('\n');
    };
    paragraph(&words::load(run));
    paragraph(&words::origin(run));
    for why in &run.run.disturbances {
        paragraph(&format!("DISTURBED, do not compare: {why}"));
    }
    paragraph("");
    paragraph(&safety(&rows));
    paragraph("");
    if rows.iter().any(|r| r.kind != Kind::Skipped) {
        paragraph(&cost(&rows));
        paragraph("");
    }
    if rows.iter().any(Row::has_dash) {
        paragraph(words::DASH);
    }
    paragraph(
        "Figures compare only within one durability class. CPU is per booked order; server is \
         Redis or ZooKeeper.",
    );
    paragraph(&format!("{}: {says}", rows::verdict(verdict)));
    out
}

fn safety(rows: &[Row<'_>]) -> String {
    let mut table = new_table(&[
        ("strategy", Side::Left),
        ("guard", Side::Left),
        ("booked\n/stock", Side::Right),
        ("sold\nout", Side::Right),
        ("already\nbought", Side::Right),
        ("busy", Side::Right),
        ("unknown", Side::Right),
        ("verdict", Side::Left),
        ("", Side::Wrapped),
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
        ("goodput\n/s", Side::Right),
        ("p50\nms", Side::Right),
        ("p90\nms", Side::Right),
        ("p99\nms", Side::Right),
        ("max\nms", Side::Right),
        ("CPU µs\nservice", Side::Right),
        ("CPU µs\nserver", Side::Right),
        ("CPU µs\ndatabase", Side::Right),
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

/// How a column's text stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    /// Figures, so that their digits line up.
    Right,
    /// Sentences: the only columns that give way when the table is too wide.
    Wrapped,
}

/// An empty table without colour, and without lines but the one under its head.
pub(super) fn new_table(columns: &[(&str, Side)]) -> Table {
    let style = TableStyle::new()
        .header_lines(ContentLineStyle::none())
        .header_separator(LineStyle::none().fill('─').junction('─'))
        .content_lines(ContentLineStyle::none());
    let mut table = Table::new();
    table
        .load_style(style)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .force_no_tty()
        .set_width(WIDTH_MAX)
        .set_header(columns.iter().map(|(name, _)| *name));
    for (i, (_, side)) in columns.iter().enumerate() {
        let Some(column) = table.column_mut(i) else {
            continue;
        };
        column.set_padding((0, 2));
        match side {
            Side::Left => column.set_constraint(ColumnConstraint::ContentWidth),
            Side::Right => {
                column.set_cell_alignment(CellAlignment::Right);
                column.set_constraint(ColumnConstraint::ContentWidth)
            }
            Side::Wrapped => column,
        };
    }
    table
}

/// Breaks lines that are too long between words; a table's lines fit already and stay as they are.
pub(super) fn wrap(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for (i, line) in text.split('\n').enumerate() {
        if i > 0 {
            out.push('\n');
        }
        if line.chars().count() <= usize::from(WIDTH_MAX) {
            out.push_str(line);
            continue;
        }
        let mut width = 0;
        for word in line.split(' ') {
            let length = word.chars().count();
            if width > 0 && width + 1 + length > usize::from(WIDTH_MAX) {
                out.push('\n');
                width = 0;
            } else if width > 0 {
                out.push(' ');
                width += 1;
            }
            out.push_str(word);
            width += length;
        }
    }
    out
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
        for line in text.lines() {
            assert!(line.chars().count() <= usize::from(WIDTH_MAX), "{line}");
        }
    }
}
