//! Do the servers start, answer, and break as told?

use std::net::TcpListener;
use std::time::Duration;

use flashlock::lab::process::{EndSignal, Signal, Stdout, Ward, WardSpec, log_tail, signal_all};
use flashlock::lab::{
    Binaries, DatabaseKind, Lab, LabError, LabOptions, LabPlan, Ports, ServerId, ServerState,
    mariadb, port, postgres, redis, zookeeper,
};
use sqlx::Connection;

/// Longer than anything here takes on a loaded machine.
const DEADLINE: Duration = Duration::from_secs(30);

/// Long for an answer over loopback, short for a test that waits for none.
const SILENCE: Duration = Duration::from_millis(500);

pub(crate) async fn start(change: impl FnOnce(&mut LabPlan)) -> Lab {
    let mut plan = LabPlan::nothing();
    change(&mut plan);
    Lab::start(&plan).await.unwrap()
}

pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let deadline = flashlock::clock::now() + DEADLINE;
    while !holds().await {
        assert!(flashlock::clock::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn state(lab: &Lab, id: ServerId) -> ServerState {
    let servers = lab.servers();
    servers.into_iter().find(|s| s.id == id).unwrap().state
}

#[tokio::test(flavor = "multi_thread")]
async fn every_server_starts_and_answers() {
    let lab = Lab::start(&LabPlan::all()).await.unwrap();
    for server in lab.servers() {
        assert!(
            matches!(server.state, ServerState::Running { .. }),
            "{server:?}"
        );
    }
    redis::ping(&lab.redis_url().unwrap()).await.unwrap();
    let redlock = lab.redlock_urls().unwrap();
    assert_eq!(redlock.len(), 5);
    for url in &redlock {
        redis::ping(url).await.unwrap();
    }
    zookeeper::ping(&lab.zookeeper().unwrap()).await.unwrap();
    postgres::ping(&lab.postgres_url().unwrap()).await.unwrap();
    mariadb::ping(&lab.mysql_url().unwrap()).await.unwrap();

    let names: Vec<String> = lab
        .environment()
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert_eq!(
        names,
        [
            "FLASHLOCK_REDIS_URL",
            "FLASHLOCK_REDLOCK_URLS",
            "FLASHLOCK_ZOOKEEPER",
            "FLASHLOCK_DATABASE_URL"
        ]
    );

    // What decides durability is what the servers say, not what they were told.
    let settings = lab.settings().await;
    let of = |server: &str, name: &str| settings[server][name].clone();
    assert_eq!(of("redis", "appendonly"), "yes");
    assert_eq!(of("redis", "appendfsync"), "everysec");
    assert_eq!(of("redlock", "maxmemory-policy"), "noeviction");
    assert_eq!(of("postgres", "fsync"), "on");
    assert_eq!(of("postgres", "synchronous_commit"), "on");
    assert_eq!(of("mariadb", "innodb_flush_log_at_trx_commit"), "1");
    assert_eq!(of("zookeeper", "forceSync"), "yes");
    for server in settings.values() {
        assert!(server["version"].starts_with(|c: char| c.is_ascii_digit()));
    }

    let directory = lab.directory().to_owned();
    let pids: Vec<u32> = lab.pids().into_iter().flat_map(|(_, pids)| pids).collect();
    lab.stop().await.unwrap();
    assert!(!directory.exists());
    for pid in pids {
        assert!(!flashlock::lab::process::is_alive(pid), "{pid} is left");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ensemble_of_three_survives_a_killed_node() {
    let lab = start(|plan| plan.zookeeper_nodes = 3).await;
    let nodes: Vec<String> = lab
        .zookeeper()
        .unwrap()
        .split(',')
        .map(Into::into)
        .collect();
    assert_eq!(nodes.len(), 3);
    lab.kill(ServerId::Zookeeper(3)).await.unwrap();
    for node in &nodes[..2] {
        eventually("a quorum of two serves", || async {
            zookeeper::ping(node).await.is_ok()
        })
        .await;
    }
    assert!(zookeeper::ping(&nodes[2]).await.is_err());
    lab.restart(ServerId::Zookeeper(3)).await.unwrap();
    zookeeper::ping(&nodes[2]).await.unwrap();
    lab.stop().await.unwrap();
}

#[tokio::test]
async fn four_nodes_are_no_ensemble() {
    let mut plan = LabPlan::nothing();
    plan.zookeeper_nodes = 4;
    let refused = Lab::start(&plan).await;
    assert!(matches!(refused, Err(LabError::ZookeeperNodes(4))));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_installed_is_reported_and_the_rest_starts() {
    let system = std::env::split_paths(&std::env::var_os("PATH").unwrap())
        .map(|dir| dir.join("redis-server"))
        .find(|path| path.exists())
        .unwrap();
    let bare = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(system, bare.path().join("redis-server")).unwrap();
    let options = LabOptions {
        ports: Ports::Free,
        binaries: Binaries::only_in(vec![bare.path().to_owned()]),
    };
    let mut plan = LabPlan::all();
    plan.redlock = false;
    let lab = Lab::start_with(&plan, &options).await.unwrap();
    redis::ping(&lab.redis_url().unwrap()).await.unwrap();
    for (id, package) in [
        (ServerId::Zookeeper(1), "zookeeper"),
        (ServerId::Postgres, "postgresql"),
        (ServerId::Mariadb, "mariadb-server"),
    ] {
        let ServerState::NotInstalled { install } = state(&lab, id) else {
            panic!("{id}: {:?}", state(&lab, id));
        };
        assert!(install.contains(package) && install.contains("compose/deps.sh"));
    }
    assert_eq!(lab.environment().len(), 1);
    assert!(matches!(
        lab.kill(ServerId::Postgres).await,
        Err(LabError::Absent(ServerId::Postgres))
    ));
    lab.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_start_is_reported_with_its_log() {
    // Whoever holds the port, this listener or somebody else's server: it is taken.
    let taken = TcpListener::bind(("127.0.0.1", port::REDIS));
    let options = LabOptions {
        ports: Ports::Fixed,
        ..LabOptions::default()
    };
    let mut plan = LabPlan::nothing();
    plan.redis = true;
    let lab = Lab::start_with(&plan, &options).await.unwrap();
    let ServerState::Failed { log } = state(&lab, ServerId::Redis) else {
        panic!("{:?}", state(&lab, ServerId::Redis));
    };
    assert!(log.contains("ended with status 1"), "{log}");
    assert!(log.contains("Address already in use"), "{log}");
    assert_eq!(lab.redis_url(), None);
    lab.stop().await.unwrap();
    drop(taken);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_early_end_is_noticed() {
    let lab = start(|plan| plan.redis = true).await;
    let ServerState::Running { pid, port } = state(&lab, ServerId::Redis) else {
        panic!("it does not run");
    };
    signal_all(&[pid], Signal::KILL);
    let ended = tokio::time::timeout(DEADLINE, lab.first_to_end(&[])).await;
    let (id, status, log) = ended.unwrap();
    assert_eq!((id, status), (ServerId::Redis, 128 + 9));
    assert!(log.contains("Ready to accept connections"), "{log}");
    assert_eq!(state(&lab, id), ServerState::Stopped { port });
    lab.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_redis_comes_back_with_its_data() {
    let lab = start(|plan| plan.redis = true).await;
    let url = lab.redis_url().unwrap();
    let client = ::redis::Client::open(url.as_str()).unwrap();
    let mut before = client.get_multiplexed_async_connection().await.unwrap();
    let _: () = ::redis::cmd("SET")
        .arg(&["stock", "60"])
        .query_async(&mut before)
        .await
        .unwrap();
    lab.kill(ServerId::Redis).await.unwrap();
    assert!(redis::ping(&url).await.is_err());
    lab.restart(ServerId::Redis).await.unwrap();
    assert_eq!(lab.redis_url(), Some(url));
    let mut after = client.get_multiplexed_async_connection().await.unwrap();
    let stock: String = ::redis::cmd("GET")
        .arg("stock")
        .query_async(&mut after)
        .await
        .unwrap();
    assert_eq!(stock, "60");
    lab.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_server_is_silent_until_resumed() {
    let lab = start(|plan| plan.redis = true).await;
    let url = lab.redis_url().unwrap();
    lab.pause(ServerId::Redis).unwrap();
    let silent = tokio::time::timeout(SILENCE, redis::ping(&url)).await;
    assert!(silent.is_err(), "a paused Redis answered");
    lab.resume(ServerId::Redis).unwrap();
    redis::ping(&url).await.unwrap();
    // Stopping a lab with a paused server takes no detour over a deadline.
    lab.pause(ServerId::Redis).unwrap();
    lab.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_postgres_stops_its_backends_too() {
    let lab = start(|plan| plan.postgres = true).await;
    let url = lab.postgres_url().unwrap();
    let mut connection = sqlx::PgConnection::connect(&url).await.unwrap();
    lab.pause(ServerId::Postgres).unwrap();
    {
        let query = sqlx::query("SELECT 1").execute(&mut connection);
        tokio::pin!(query);
        let silent = tokio::time::timeout(SILENCE, &mut query).await;
        assert!(silent.is_err(), "a paused backend answered");
        lab.resume(ServerId::Postgres).unwrap();
        query.await.unwrap();
    }
    lab.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_databases_come_back_with_what_was_committed() {
    let lab = start(|plan| {
        plan.postgres = true;
        plan.mariadb = true;
    })
    .await;
    sqlx::any::install_default_drivers();
    for (kind, id) in [
        (DatabaseKind::Postgres, ServerId::Postgres),
        (DatabaseKind::Mysql, ServerId::Mariadb),
    ] {
        let url = lab.create_database(kind, "sale_1").await.unwrap();
        let mut connection = sqlx::AnyConnection::connect(&url).await.unwrap();
        for statement in [
            "CREATE TABLE stock (available BIGINT)",
            "INSERT INTO stock VALUES (60)",
        ] {
            sqlx::query(statement)
                .execute(&mut connection)
                .await
                .unwrap();
        }
        lab.kill(id).await.unwrap();
        assert!(
            sqlx::query("SELECT 1")
                .execute(&mut connection)
                .await
                .is_err()
        );
        lab.restart(id).await.unwrap();
        let mut connection = sqlx::AnyConnection::connect(&url).await.unwrap();
        let available: i64 = sqlx::query_scalar("SELECT available FROM stock")
            .fetch_one(&mut connection)
            .await
            .unwrap();
        assert_eq!(available, 60);
        let twice = lab.create_database(kind, "sale_1").await;
        assert!(matches!(twice, Err(LabError::Server { .. })), "{twice:?}");
        let odd = lab.create_database(kind, "sale; DROP").await;
        assert!(matches!(odd, Err(LabError::DatabaseName(_))));
    }
    lab.stop().await.unwrap();
}

#[tokio::test]
async fn a_ward_passes_lines_and_the_exit_status_on() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let spec = WardSpec::new("sh", &log)
        .args(["-c", "echo one; echo $two; echo oops >&2; exit 3"])
        .env("two", "zwei drei")
        .stdout(Stdout::Lines);
    let mut ward = Ward::spawn(&spec).await.unwrap();
    assert_eq!(ward.next_line().await.as_deref(), Some("one"));
    assert_eq!(ward.next_line().await.as_deref(), Some("zwei drei"));
    assert_eq!(ward.next_line().await, None);
    assert_eq!(ward.ended().await, 3);
    assert_eq!(log_tail(&log, 0), "oops");
}

#[tokio::test]
async fn a_ward_ends_with_the_signal_it_was_given() {
    let dir = tempfile::tempdir().unwrap();
    let spec = WardSpec::new("sh", dir.path().join("log"))
        .args([
            "-c",
            "trap 'echo drained; exit 7' TERM; echo ready; while :; do sleep 0.05; done",
        ])
        .stdout(Stdout::Lines)
        .end(EndSignal::Term);
    let mut ward = Ward::spawn(&spec).await.unwrap();
    assert_eq!(ward.next_line().await.as_deref(), Some("ready"));
    assert!(ward.end(DEADLINE).await);
    assert_eq!(ward.next_line().await.as_deref(), Some("drained"));
    assert_eq!(ward.has_ended(), Some(7));
}

#[tokio::test]
async fn a_command_that_does_not_exist_ends_at_once_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let ward = Ward::spawn(&WardSpec::new("/nowhere/redis-server", &log)).await;
    assert_eq!(ward.unwrap().ended().await, 127);
    assert!(log_tail(&log, 0).contains("/nowhere/redis-server"));
}
