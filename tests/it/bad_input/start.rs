//! Set-ups that a service refuses to start with.

use std::time::Duration;

use crate::world::{Refused, Service, Start, world};

/// The exit code of a usage error.
const USAGE: i32 = 2;
/// A process that only has to say no.
const SOON: Duration = Duration::from_secs(20);

async fn refused(args: &[&str], env: &[(&str, &str)]) -> Refused {
    let start = Start {
        args: args.iter().map(ToString::to_string).collect(),
        env: env
            .iter()
            .map(|(name, value)| (format!("FLASHLOCK_{name}"), value.to_string()))
            .collect(),
        dir: Some(world().directory()),
    };
    let begun = flashlock::clock::now();
    match Service::start_with(&start).await {
        Ok(service) => panic!("it listens on {} with {start:?}", service.api.url),
        Err(refused) => {
            assert!(begun.elapsed() < SOON, "after {:?}", begun.elapsed());
            assert!(!refused.said.contains("panicked"), "{refused:?}");
            refused
        }
    }
}

async fn usage(args: &[&str], env: &[(&str, &str)], says: &[&str]) {
    let Refused { code, said } = refused(args, env).await;
    assert_eq!(code, USAGE, "{said}");
    for says in says {
        assert!(said.contains(says), "{said:?} does not say {says:?}");
    }
}

async fn started(env: &[(&str, &str)]) -> Service {
    let url = world().database("sqlite").await;
    let mut all = vec![("FLASHLOCK_DATABASE_URL".to_string(), url)];
    let given = env.iter();
    all.extend(given.map(|(name, value)| (format!("FLASHLOCK_{name}"), value.to_string())));
    Service::start(&all).await
}

fn file(text: &str) -> String {
    let path = world().directory().join("flashlock.toml");
    std::fs::write(&path, text).expect("a file");
    path.to_str().expect("a path").to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_of_an_unknown_kind_is_refused_without_its_password() {
    for url in [
        "oracle://scott:tiger-secret@db/x",
        "jdbc:mysql://scott:tiger-secret@db/x",
        "oracle:tiger-secret@db",
        "mongodb://db/x?password=tiger-secret",
        "flashlock.db",
        "",
    ] {
        let kinds = ["sqlite:FILE", "postgres://", "mysql://", "unknown kind"];
        usage(&[], &[("DATABASE_URL", url)], &kinds).await;
        let Refused { code, said } = refused(&["--database-url", url], &[]).await;
        assert_eq!(code, USAGE, "{said}");
        assert!(!said.contains("tiger-secret"), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_does_not_answer_is_named_without_its_password() {
    // Nothing listens on port 1 of loopback.
    for kind in ["postgres", "mysql"] {
        let url = format!("{kind}://u:tiger-secret@127.0.0.1:1/db");
        let Refused { code, said } = refused(&[], &[("DATABASE_URL", &url)]).await;
        assert_eq!(code, 1, "{said}");
        let shown = format!("cannot open the database {kind}://u:***@127.0.0.1:1/db");
        assert!(said.contains(&shown), "{said}");
        assert!(!said.contains("tiger-secret"), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_in_memory_is_refused() {
    usage(
        &[],
        &[("DATABASE_URL", "sqlite::memory:")],
        &["use sqlite:FILE"],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_field_of_the_file_is_named_with_the_file() {
    let file = file("listen = \"127.0.0.1:0\"\ndatabse_url = \"sqlite:x.db\"\n");
    let says = ["databse_url", "flashlock.toml", "database_url"];
    usage(&["--config", &file], &[], &says).await;
    usage(&[], &[("CONFIG", &file)], &says).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_not_there_or_not_toml_is_named() {
    usage(
        &["--config", "nowhere.toml"],
        &[],
        &["nowhere.toml does not exist"],
    )
    .await;
    let broken = file("listen = \n");
    usage(&["--config", &broken], &[], &["flashlock.toml"]).await;
    let mistyped = file("shutdown_s = \"soon\"\n");
    usage(
        &["--config", &mistyped],
        &[],
        &["shutdown_s", "flashlock.toml"],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_variable_is_named() {
    let says = ["databse_url", "FLASHLOCK_", "database_url"];
    usage(&[], &[("DATABSE_URL", "sqlite:x.db")], &says).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mistyped_variable_is_named_with_what_was_expected() {
    usage(
        &[],
        &[("SHUTDOWN_S", "soon")],
        &["FLASHLOCK_SHUTDOWN_S", "soon"],
    )
    .await;
    usage(&[], &[("SHUTDOWN_S", "0")], &["shutdown_s", "1 to 300"]).await;
    usage(
        &[],
        &[("ALLOW_CONTROL", "maybe")],
        &["FLASHLOCK_ALLOW_CONTROL"],
    )
    .await;
    usage(&[], &[("ROLES", "api,chef")], &["FLASHLOCK_ROLES", "chef"]).await;
    usage(&[], &[("REDIS_URL", "")], &["redis_url is set and empty"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_option_is_refused() {
    usage(
        &["--databse-url", "sqlite:x.db"],
        &[],
        &["--databse-url", "--database-url"],
    )
    .await;
    usage(&["--roles", "chef"], &[], &["chef", "api, booker"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listen_address_that_is_none_is_refused() {
    for address in [
        "nonsense",
        "127.0.0.1",
        "127.0.0.1:99999",
        "localhost:8080",
        "",
    ] {
        let says = ["is not an IP address and a port, such as 127.0.0.1:8080"];
        usage(&[], &[("LISTEN", address)], &["FLASHLOCK_LISTEN", says[0]]).await;
        usage(
            &["--listen", address],
            &[],
            &["--listen", "the command line", says[0]],
        )
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_in_use_is_told() {
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let Refused { code, said } = refused(&["--listen", &address], &[]).await;
    assert_eq!(code, 1, "{said}");
    let says = format!("cannot listen on {address}");
    assert!(said.contains(&says) && said.contains("--listen"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_token_without_the_other_is_refused() {
    for one in ["OPERATOR_TOKEN", "CALLER_TOKEN"] {
        usage(&[], &[(one, "s3cret")], &["set both, or neither"]).await;
    }
    let same = [("OPERATOR_TOKEN", "s3cret"), ("CALLER_TOKEN", "s3cret")];
    usage(&[], &same, &["are the same"]).await;
    let empty = [("OPERATOR_TOKEN", " "), ("CALLER_TOKEN", "s3cret")];
    usage(&[], &empty, &["operator_token is set and empty"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn listening_to_the_world_needs_tokens() {
    for address in ["0.0.0.0:0", "[::]:0"] {
        usage(
            &["--listen", address],
            &[],
            &["operator_token", "127.0.0.1"],
        )
        .await;
    }
    let tokens = [
        ("OPERATOR_TOKEN", "o"),
        ("CALLER_TOKEN", "c"),
        ("ALLOW_CONTROL", "true"),
    ];
    let says = ["allow_control works on loopback only"];
    usage(&["--listen", "0.0.0.0:0"], &tokens, &says).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quorum_that_is_none_is_refused() {
    let two = "redis://127.0.0.1:1,redis://127.0.0.1:2";
    usage(
        &[],
        &[("REDLOCK_URLS", two)],
        &["odd number, three or more"],
    )
    .await;
    let twice = "redis://127.0.0.1:1,redis://127.0.0.1:2,redis://127.0.0.1:1";
    usage(&["--redlock-urls", twice], &[], &["twice"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_looks_like_a_number_is_a_token() {
    let service = started(&[("OPERATOR_TOKEN", "12345"), ("CALLER_TOKEN", "true")]).await;
    let operator = service.api.with_token("12345");
    assert_eq!(operator.get("/v1/activities").await.status, 200);
    let caller = service.api.with_token("true");
    assert_eq!(caller.get("/v1/activities").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_goes_before_the_environment_and_that_before_the_file() {
    let text = "body_bytes_max = 1024\nshutdown_s = 0\nallow_control = true\n";
    let start = |args: &[&str]| Start {
        args: args.iter().map(ToString::to_string).collect(),
        env: vec![
            ("FLASHLOCK_CONFIG".to_string(), file(text)),
            ("FLASHLOCK_SHUTDOWN_S".to_string(), "5".to_string()),
            ("FLASHLOCK_BODY_BYTES_MAX".to_string(), "1025".to_string()),
        ],
        dir: Some(world().directory()),
    };
    for (args, body_bytes_max) in [(&[][..], 1025), (&["--body-bytes-max", "2000"], 2000)] {
        let service = Service::start_with(&start(args)).await.expect("it starts");
        let sale = serde_json::json!({"strategy": "no-lock", "skus": [{"sku": "a", "stock": 1}]});
        let sale = sale.to_string();
        for (length, status) in [(body_bytes_max, 201), (body_bytes_max + 1, 413)] {
            let body = format!("{sale}{}", " ".repeat(length - sale.len()));
            let request = service.api.request(reqwest::Method::POST, "/v1/activities");
            let answer = service
                .api
                .send(request.body(body))
                .await
                .expect("an answer");
            assert_eq!(answer.status, status, "{length}: {answer:?}");
        }
    }
}
