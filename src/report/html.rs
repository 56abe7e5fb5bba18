//! The run as one page that opens without a network: template, style and pictures in one file.

use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior};
use serde::Serialize;

use super::limits::{self, Shares};
use super::rows::{self, Kind, Row};
use super::{ReportError, chart, words};
use crate::run::Run;

/// The name decides that everything put into it is escaped as HTML.
const TEMPLATE: &str = "report.html";

/// What the template may name.
#[derive(Serialize)]
struct Page<'a> {
    run: &'a Run,
    verdict: &'static str,
    says: String,
    load: String,
    rows: Vec<Row<'a>>,
    has_dash: bool,
    any_ran: bool,
    shares: Shares,
    properties: [(&'static str, &'static str); 5],
    how_to_read: &'static [&'static str],
    dash: &'static str,
    /// Role and value of each colour of the pictures.
    palette: Vec<(&'static str, String)>,
    goodput: String,
    latency: String,
}

pub(super) fn render(run: &Run) -> Result<String, ReportError> {
    let rows = rows::rows(run);
    let (verdict, says) = words::outcome(run);
    let palette = chart::PALETTE.iter();
    let page = Page {
        run,
        verdict: rows::verdict(verdict),
        says,
        load: words::load(run),
        has_dash: rows.iter().any(Row::has_dash),
        any_ran: rows.iter().any(|r| r.kind != Kind::Skipped),
        rows,
        shares: limits::shares(run),
        properties: words::PROPERTIES,
        how_to_read: &words::HOW_TO_READ,
        dash: words::DASH,
        palette: palette
            .map(|(role, c)| (*role, format!("#{:02X}{:02X}{:02X}", c.0, c.1, c.2)))
            .collect(),
        goodput: chart::goodput(run)?,
        latency: chart::latency(run)?,
    };
    fill(&page).map_err(|e| ReportError::Render {
        source: Box::new(e),
    })
}

fn fill(page: &Page<'_>) -> Result<String, minijinja::Error> {
    let mut templates = Environment::new();
    // A name the template misspells is an error, not an empty cell.
    templates.set_undefined_behavior(UndefinedBehavior::Strict);
    templates.add_template(TEMPLATE, include_str!("report.html.j2"))?;
    let template = templates.get_template(TEMPLATE)?;
    let mut text = template.render(Serde(page))?;
    text.push('\n');
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn the_page_loads_nothing() {
        let page = render(&sample::run()).expect("rendered");
        for needle in [
            "http://", "https://", "//cdn", "src=", "@import", "url(", "<script", "<link",
        ] {
            assert!(!page.contains(needle), "`{needle}` is in the page");
        }
    }

    #[test]
    fn what_a_run_holds_is_text_and_not_markup() {
        let evil = "<script>alert('1')</script>\"&";
        let mut run = sample::run();
        run.run.id = evil.to_string();
        run.run.command = evil.to_string();
        run.run.disturbances = vec![evil.to_string()];
        run.environment.cpu = evil.to_string();
        run.limits[0].name = evil.to_string();
        run.results[0].strategy = evil.to_string();
        run.results[0].safety.findings[0].says = evil.to_string();
        run.results[1].skipped = Some(evil.to_string());
        let page = render(&run).expect("rendered");
        assert!(!page.contains("<script"), "a given text became markup");
        assert!(page.matches("&lt;script&gt;").count() >= 8);
    }

    #[test]
    fn the_pictures_stand_in_the_page_with_words_for_who_cannot_see_them() {
        let page = render(&sample::run()).expect("rendered");
        assert_eq!(page.matches("<svg ").count(), 2);
        assert_eq!(page.matches("</svg>").count(), 2);
        assert_eq!(page.matches("role=\"img\"").count(), 2);
        assert!(page.contains("redis-set-nx 171 · 505 · 922; zookeeper 310 · 640 · –"));
        assert!(page.contains("redis-lua 1310; no-lock 912"));
    }

    #[test]
    fn the_control_and_the_skipped_are_labelled() {
        let page = render(&sample::run()).expect("rendered");
        assert!(page.contains("oversold 37: it is the control, and is there to fail"));
        assert!(page.contains("apt-get install redis-server"));
        assert!(page.contains("fewer than 100 samples"));
    }

    #[test]
    fn a_run_without_any_result_is_still_a_page() {
        let mut run = sample::run();
        run.results.clear();
        run.limits.clear();
        run.environment.servers.clear();
        let page = render(&run).expect("rendered");
        assert!(page.contains("No strategy was judged"));
    }

    #[test]
    fn figures_at_the_edge_can_be_drawn() {
        let mut run = sample::run();
        for (cell, ms) in run
            .results
            .iter_mut()
            .zip([0.0, 1.0, 10.0, 0.004, 1e7, 1.0, 1.0])
        {
            cell.latency_ms.p50 = Some(ms);
            cell.latency_ms.p90 = None;
            cell.latency_ms.p99 = None;
            cell.goodput_per_s = None;
        }
        render(&run).expect("rendered");
    }
}
