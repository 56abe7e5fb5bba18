//! The contract: `report.json` is the run itself, pretty-printed.

use std::path::Path;

use serde::Deserialize;

use super::ReportError;
use crate::run::{Run, SCHEMA};

pub(super) fn render(run: &Run) -> Result<String, ReportError> {
    check_finite(run)?;
    let mut text = serde_json::to_string_pretty(run).map_err(|e| ReportError::Render {
        source: Box::new(e),
    })?;
    text.push('\n');
    Ok(text)
}

/// `path` is where `text` came from, for the message.
pub(super) fn parse(path: &Path, text: &[u8]) -> Result<Run, ReportError> {
    /// Read first: a run of another schema may lack any other field.
    #[derive(Deserialize)]
    struct Probe {
        schema: Option<serde_json::Value>,
    }

    let not_a_run = |source| ReportError::NotARun {
        path: path.to_path_buf(),
        source,
    };
    let probe: Probe = serde_json::from_slice(text).map_err(not_a_run)?;
    if probe.schema != Some(SCHEMA.into()) {
        return Err(ReportError::UnknownSchema {
            path: path.to_path_buf(),
            found: probe.schema.map_or("none".to_string(), |v| v.to_string()),
            known: SCHEMA,
        });
    }
    serde_json::from_slice(text).map_err(not_a_run)
}

/// serde_json writes an infinite number as null, and null is no number when the run is read again.
fn check_finite(run: &Run) -> Result<(), ReportError> {
    let plan = &run.run.plan;
    let mut figures = vec![
        ("run.plan.same_key_share".to_string(), plan.same_key_share),
        ("run.plan.other_key_share".to_string(), plan.other_key_share),
    ];
    for (i, limit) in run.limits.iter().enumerate() {
        figures.push((format!("limits[{i}].per_s"), limit.per_s));
    }
    for (i, cell) in run.results.iter().enumerate() {
        let mut add = |name: &str, figure: Option<f64>| {
            figures.extend(figure.map(|f| (format!("results[{i}].{name}"), f)));
        };
        add("elapsed_s", Some(cell.elapsed_s));
        add("goodput_per_s", cell.goodput_per_s);
        add("latency_ms.p50", cell.latency_ms.p50);
        add("latency_ms.p90", cell.latency_ms.p90);
        add("latency_ms.p99", cell.latency_ms.p99);
        add("latency_ms.max", cell.latency_ms.max);
        add("cpu_us_per_order.service", cell.cpu_us_per_order.service);
        add("cpu_us_per_order.redis", cell.cpu_us_per_order.redis);
        add(
            "cpu_us_per_order.zookeeper",
            cell.cpu_us_per_order.zookeeper,
        );
        add("cpu_us_per_order.database", cell.cpu_us_per_order.database);
    }
    match figures.into_iter().find(|(_, figure)| !figure.is_finite()) {
        Some((field, _)) => Err(ReportError::NotFinite { field }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    fn keys<'a>(value: &'a serde_json::Value, at: &str) -> Vec<&'a str> {
        let object = value.pointer(at).and_then(|v| v.as_object());
        let object = object.unwrap_or_else(|| panic!("no object at {at}"));
        object.keys().map(String::as_str).collect()
    }

    /// The README documents these names, and programs read them: a name may be added, none may go.
    #[test]
    fn the_contract_has_every_name_it_promises() {
        let text = render(&sample::run()).expect("rendered");
        let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let promised: [(&str, &[&str]); 8] = [
            ("", &["schema", "run", "environment", "limits", "results"]),
            ("/run", &["id", "seed", "profile", "started_at", "commit"]),
            ("/environment", &["cores", "kernel", "servers"]),
            (
                "/environment/servers/redis",
                &["version", "appendonly", "appendfsync"],
            ),
            ("/limits/0", &["name", "per_s"]),
            (
                "/results/0",
                &[
                    "strategy",
                    "database",
                    "guard",
                    "batch_max",
                    "instances",
                    "durability",
                    "attempts",
                    "booked",
                    "sold_out",
                    "already_purchased",
                    "limited",
                    "busy",
                    "unknown",
                    "goodput_per_s",
                    "latency_ms",
                    "cpu_us_per_order",
                    "safety",
                    "skipped",
                ],
            ),
            ("/results/0/latency_ms", &["p50", "p90", "p99", "max"]),
            (
                "/results/0/cpu_us_per_order",
                &["service", "redis", "zookeeper", "database"],
            ),
        ];
        for (at, names) in promised {
            let there = keys(&value, at);
            for name in names {
                assert!(
                    there.contains(name),
                    "`{name}` is missing at `{at}`: {there:?}"
                );
            }
        }
        let safety = [
            "verdict",
            "oversold",
            "duplicate_orders",
            "lost_orders",
            "phantom_orders",
        ];
        for name in safety {
            assert!(keys(&value, "/results/0/safety").contains(&name), "{name}");
        }
        assert_eq!(value["schema"], 1);
        assert_eq!(value["results"][0]["safety"]["verdict"], "ok");
        assert_eq!(value["results"][6]["safety"]["verdict"], "violated");
        assert!(value["results"][0]["skipped"].is_null());
        assert!(value["results"][2]["latency_ms"]["p99"].is_null());
    }
}
