//! The run for a pull request or a decision document: GitHub-flavoured Markdown.

use super::limits;
use super::rows::{self, Kind, Row};
use super::words;
use crate::run::Run;

pub(super) fn render(run: &Run) -> String {
    let rows = rows::rows(run);
    let mut out = Page::default();
    head(&mut out, run);
    tables(&mut out, &rows);
    findings(&mut out, &rows);
    answers(&mut out, &rows);
    limits(&mut out, run);
    environment(&mut out, run);
    out.heading("How to read this");
    for sentence in words::HOW_TO_READ {
        out.item(sentence);
    }
    out.line("");
    out.item(words::DASH);
    out.0
}

fn head(out: &mut Page, run: &Run) {
    let (verdict, says) = words::outcome(run);
    out.line("# flashlock comparison");
    out.line("");
    out.line(&format!("**{}** — {}", rows::verdict(verdict), text(&says)));
    out.line("");
    out.line(&text(&words::load(run)));
    out.line("");
    out.line(&text(&words::origin(run)));
    for why in &run.run.disturbances {
        out.line("");
        out.line(&format!("> **Disturbed, do not compare:** {}", text(why)));
    }
}

fn tables(out: &mut Page, rows: &[Row<'_>]) {
    out.heading("What happened");
    out.header(&[
        "strategy",
        "guard",
        "booked/stock >",
        "attempts >",
        "sold out >",
        "already bought >",
        "limited >",
        "busy >",
        "unknown >",
        "verdict",
        "remark",
    ]);
    for row in rows {
        out.row(&[
            &row.name,
            &row.guard,
            &row.booked,
            &row.attempts,
            &row.sold_out,
            &row.already_purchased,
            &row.limited,
            &row.busy,
            &row.unknown,
            row.verdict,
            &row.remark,
        ]);
    }
    out.heading("What it cost");
    out.header(&[
        "strategy",
        "durability",
        "goodput/s >",
        "p50 ms >",
        "p90 ms >",
        "p99 ms >",
        "max ms >",
        "CPU µs/order: service >",
        "server >",
        "database >",
        "verdict",
    ]);
    for row in rows.iter().filter(|r| r.kind != Kind::Skipped) {
        out.row(&[
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
}

fn findings(out: &mut Page, rows: &[Row<'_>]) {
    out.heading("Findings");
    out.line("Read from the final state of every store after the run had come to rest.");
    out.line("");
    for (property, promise) in words::PROPERTIES {
        out.item(&format!("**{property}** {}", text(promise)));
    }
    for row in rows.iter().filter(|r| r.kind != Kind::Skipped) {
        let control = match row.kind {
            Kind::Control => " (the control: there to fail)",
            Kind::Judged | Kind::Skipped => "",
        };
        out.line("");
        out.line(&format!(
            "### {}{control}: {}",
            text(&row.name),
            row.verdict
        ));
        out.line("");
        for finding in row.findings {
            let verdict = rows::verdict(finding.verdict);
            let (property, says) = (text(&finding.property), text(&finding.says));
            out.item(&format!("{property} **{verdict}**: {says}"));
        }
        if row.findings.is_empty() {
            out.line("Nothing was checked.");
        }
    }
}

fn answers(out: &mut Page, rows: &[Row<'_>]) {
    out.heading("First answers");
    out.header(&["strategy", "answer", "count >"]);
    for row in rows {
        for (answer, count) in row.answers {
            out.row(&[&row.name, answer, &count.to_string()]);
        }
    }
}

fn limits(out: &mut Page, run: &Run) {
    if run.limits.is_empty() {
        return;
    }
    let shares = limits::shares(run);
    out.heading("Limits");
    out.line("What the raw servers do on the same machine in the same run, and goodput as a share of it.");
    out.line("");
    let names = shares.columns.iter().map(|c| format!("{} >", c.name));
    let header: Vec<String> = std::iter::once("strategy".to_string())
        .chain(names)
        .collect();
    out.header(&header.iter().map(String::as_str).collect::<Vec<_>>());
    let raw = shares.columns.iter().map(|c| c.per_s.as_str());
    out.row(
        &std::iter::once("limit, per second")
            .chain(raw)
            .collect::<Vec<_>>(),
    );
    for row in &shares.rows {
        let cells = row.shares.iter().map(String::as_str);
        out.row(
            &std::iter::once(row.strategy.as_str())
                .chain(cells)
                .collect::<Vec<_>>(),
        );
    }
}

fn environment(out: &mut Page, run: &Run) {
    let env = &run.environment;
    out.heading("Environment");
    out.header(&["what", "value"]);
    out.row(&["CPU", &env.cpu]);
    out.row(&["cores", &env.cores.to_string()]);
    out.row(&["kernel", &env.kernel]);
    out.row(&["file system", &env.file_system]);
    for (server, settings) in &env.servers {
        let pairs = settings.iter().map(|(k, v)| format!("{k} = {v}"));
        out.row(&[server, &pairs.collect::<Vec<_>>().join(", ")]);
    }
    out.row(&["command", &run.run.command]);
}

/// Markdown as it grows.
#[derive(Debug, Default)]
struct Page(String);

// === impl Page ===

impl Page {
    fn line(&mut self, text: &str) {
        self.0.push_str(text);
        self.0.push('\n');
    }

    fn item(&mut self, text: &str) {
        self.line(&format!("- {text}"));
    }

    fn heading(&mut self, title: &str) {
        self.line("");
        self.line(&format!("## {title}"));
        self.line("");
    }

    /// The head of a table; a name that ends with ` >` is a column of figures, set to the right.
    fn header(&mut self, names: &[&str]) {
        let plain: Vec<&str> = names
            .iter()
            .map(|n| n.strip_suffix(" >").unwrap_or(n))
            .collect();
        self.row(&plain);
        let rules: Vec<&str> = names
            .iter()
            .map(|n| if n.ends_with(" >") { "---:" } else { "---" })
            .collect();
        self.line(&format!("| {} |", rules.join(" | ")));
    }

    fn row(&mut self, cells: &[&str]) {
        let cells: Vec<String> = cells.iter().map(|c| text(c)).collect();
        self.line(&format!("| {} |", cells.join(" | ")));
    }
}

/// `given` as text that is neither markup nor the end of a table cell.
fn text(given: &str) -> String {
    let mut out = String::with_capacity(given.len());
    for c in given.chars() {
        match c {
            '\n' | '\r' => out.push(' '),
            '<' => out.push_str("&lt;"),
            '&' => out.push_str("&amp;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' => {
                out.push('\\');
                out.push(c);
            }
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn the_page_has_the_figures_the_findings_the_limits_and_the_environment() {
        let page = render(&sample::run());
        let expected = [
            "**unknown** — Not decided: db-unique-insert. Skipped: 1 of 7.",
            "| no-lock | none | 237/200 | 2300 | 1800 | 34 | 0 | 12 | 0 | violated | oversold 37: it is the control, and is there to fail |",
            "| redlock |  |  |  |  |  |  |  |  | skipped | redis-server is not installed: apt-get install redis-server |",
            "| zookeeper | fsync | 96.4 | 310 | 640 | – | 1210 | 2140 | 4120 | 1805 | ok |",
            "### no-lock (the control: there to fail): violated",
            "- S1 **violated**: 237 units are in live orders, 200 were for sale",
            "| limit, per second | 1840 | 21500 | 14200 | 812 | 731 |",
            "| redis-set-nx | 9.13 % | 0.781 % | 1.18 % | – | 23.0 % |",
            "| redis | appendfsync = everysec, appendonly = yes, version = 7.0.15 |",
            "| redis-set-nx | 503 lock-timeout | 12 |",
            "seed 7",
        ];
        for line in expected {
            assert!(page.contains(line), "`{line}` is missing in:\n{page}");
        }
    }

    #[test]
    fn every_row_of_a_table_has_as_many_cells_as_its_header() {
        let mut run = sample::run();
        run.results[1].skipped = Some("a | b\nc".to_string());
        let page = render(&run);
        let mut columns = None;
        for line in page.lines() {
            if !line.starts_with('|') {
                columns = None;
                continue;
            }
            let here = line.replace("\\|", "").matches('|').count();
            assert_eq!(*columns.get_or_insert(here), here, "{line}");
        }
    }

    #[test]
    fn a_name_cannot_become_markup() {
        assert_eq!(text("<b>a|b</b> *c* \nd"), "&lt;b>a\\|b&lt;/b> \\*c\\*  d");
    }
}
