//! Does the README's session run as printed, and does it name every strategy?

use flashlock::strategy::Strategy;
use tokio::process::Command;

use crate::world::Service;

/// The fenced block that follows `after`.
fn block(after: &str) -> &'static str {
    let readme = include_str!("../../README.md");
    let (_, rest) = readme.split_once(after).expect("the README says it");
    let (_, rest) = rest.split_once("```\n").expect("a block follows");
    rest.split_once("```").expect("the block ends").0
}

#[tokio::test(flavor = "multi_thread")]
async fn the_curl_session_of_the_readme_sells_a_phone() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = format!("sqlite:{}", directory.path().join("flashlock.db").display());
    let service = Service::start(&[("FLASHLOCK_DATABASE_URL".to_string(), file)]).await;
    let host = service.api.url.strip_prefix("http://").expect("http");
    let session = block("In another terminal:").replace("localhost:8080", host);
    // `-f` is not in the README: a reader sees the error, this test must fail on it.
    let session = session.replace("curl -s", "curl -sSf -w '\\n'");
    let ran = Command::new("bash")
        .args(["-euo", "pipefail", "-c", &session])
        .output()
        .await
        .expect("bash and curl are there");
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(
        ran.status.success(),
        "{said}\n{}",
        String::from_utf8_lossy(&ran.stderr)
    );
    for expected in [
        r#""name":"db-conditional-update""#,
        r#""state":"READY""#,
        r#""state":"OPEN""#,
        r#""status":"PENDING_PAYMENT""#,
        r#""outcome":"APPLIED""#,
        r#""total":100,"available":99,"held":0,"sold":1"#,
        r#""state":"CLOSING""#,
    ] {
        assert!(said.contains(expected), "{expected} is not in\n{said}");
    }
}

#[test]
fn the_readme_lists_every_strategy_in_its_order() {
    let readme = include_str!("../../README.md");
    let (_, table) = readme
        .split_once("| strategy | protects stock by |")
        .expect("the table of strategies");
    let listed: Vec<&str> = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .filter_map(|line| line.split('`').nth(1))
        .collect();
    let all = Strategy::all().iter().map(|s| s.name().to_string());
    assert_eq!(listed, all.collect::<Vec<String>>());
}
