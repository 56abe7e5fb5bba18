//! Do the examples do what they show, with servers of their own and with given ones?

use std::process::Output;

use tokio::process::Command;

use crate::world::world;

/// Runs an example as the README says to.
async fn run(example: &str, args: &[&str]) -> Output {
    // Built already by `cargo test`; built here where only this suite is.
    Command::new(env!("CARGO"))
        .args([
            "run",
            "--quiet",
            "--offline",
            "--locked",
            "--example",
            example,
            "--",
        ])
        .args(args)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .await
        .expect("cargo is there")
}

/// What it says from the grant to the end. `fences`: the two tokens of the grants that are shown.
async fn holds(example: &str, args: &[&str], fences: [&str; 2]) {
    let ran = run(example, args).await;
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    let complained = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{example}: {said}\n{complained}");
    let acquired = format!("acquired: {}", fences[0]);
    let next = format!("the next holder: {}", fences[1]);
    let expected = [
        acquired.as_str(),
        "a rival is told: busy",
        "done: the report is written",
        "released",
        next.as_str(),
        "and free again",
    ];
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), expected.len(), "{example}: {said}");
    for (line, start) in lines.iter().zip(expected) {
        assert!(
            line.starts_with(start),
            "{example}: {line:?} is not {start:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_starts_a_server_of_its_own() {
    let counted = ["Token(1)", "Token(2)"];
    holds("redis_set_nx", &[], counted).await;
    holds("redlock", &[], ["IssuedByStore", "IssuedByStore"]).await;
    holds("zookeeper", &[], ["Token(", "Token("]).await;
    holds("db_unique_insert", &[], counted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_takes_the_servers_it_is_given() {
    let lab = &world().lab;
    holds(
        "redis_set_nx",
        &[&lab.redis_url().expect("redis runs")],
        ["Token(", "Token("],
    )
    .await;
    let urls = lab.redlock_urls().expect("redlock's nodes run");
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    holds("redlock", &urls, ["IssuedByStore", "IssuedByStore"]).await;
    holds(
        "zookeeper",
        &[&lab.zookeeper().expect("zookeeper runs")],
        ["Token(", "Token("],
    )
    .await;
    for kind in crate::world::DATABASES {
        let url = world().database(kind).await;
        holds("db_unique_insert", &[&url], ["Token(1)", "Token(2)"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_away_is_named() {
    for (example, args, says) in [
        (
            "redis_set_nx",
            &["redis://127.0.0.1:1"][..],
            "redis is away, nothing was granted",
        ),
        (
            "zookeeper",
            &["127.0.0.1:1"],
            "zookeeper is away, nothing was granted",
        ),
        (
            "redlock",
            &[
                "redis://127.0.0.1:1",
                "redis://127.0.0.1:2",
                "redis://127.0.0.1:3",
            ],
            "redlock is away, nothing was granted",
        ),
        (
            "db_unique_insert",
            &["postgres://nobody@127.0.0.1:1/none"],
            "cannot open the database",
        ),
    ] {
        let ran = run(example, args).await;
        let complained = String::from_utf8_lossy(&ran.stderr);
        assert!(!ran.status.success(), "{example}");
        assert!(complained.contains(says), "{example}: {complained}");
    }
}
