//! How is the lab's PostgreSQL set up, also when we are root, which it refuses?

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use async_trait::async_trait;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::find::{Account, Binaries};
use super::process::{EndSignal, WardSpec};
use super::server::{ANSWER_WAIT, Recipe, ServerDir, StartError, run_once};

/// What is missing when there is no PostgreSQL.
pub(super) const INSTALL: &str = "run compose/deps.sh, or install the package postgresql";

/// The settings that matter to a comparison; `compose/postgres.yaml` has the same.
pub const SETTINGS: &[(&str, &str)] = &[
    ("max_connections", "300"),
    // The defaults, said aloud: a commit is on disk before it is answered.
    ("fsync", "on"),
    ("synchronous_commit", "on"),
    ("default_transaction_isolation", "read committed"),
];

/// Who may run it when we are root.
const ACCOUNTS: &[&str] = &["postgres", "nobody"];

#[derive(Debug)]
pub(super) struct Postgres {
    programs: Programs,
    account: Option<Account>,
    dir: ServerDir,
    port: u16,
}

#[derive(Debug, Clone)]
pub(super) struct Programs {
    initdb: PathBuf,
    postgres: PathBuf,
}

// === impl Postgres ===

impl Postgres {
    pub(super) fn programs(binaries: &Binaries) -> Option<Programs> {
        Some(Programs {
            initdb: binaries.program("initdb")?,
            postgres: binaries.program("postgres")?,
        })
    }

    pub(super) fn account() -> Option<Account> {
        Account::for_root(ACCOUNTS)
    }

    pub(super) fn new(
        programs: Programs,
        account: Option<Account>,
        dir: ServerDir,
        port: u16,
    ) -> Self {
        Self {
            programs,
            account,
            dir,
            port,
        }
    }

    fn spec_of(&self, program: &std::path::Path, args: Vec<OsString>) -> WardSpec {
        let (command, args) = Account::wrap(self.account.as_ref(), program, args);
        self.dir.spec(command, args)
    }
}

#[async_trait]
impl Recipe for Postgres {
    async fn prepare(&self) -> Result<(), StartError> {
        if self.dir.data().join("PG_VERSION").exists() {
            return Ok(());
        }
        let mut args: Vec<OsString> = vec!["-D".into(), self.dir.data().into()];
        // Not synced: after a crash of the machine nobody wants this directory back.
        for arg in [
            "-U",
            "flashlock",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale=C",
            "--no-sync",
        ] {
            args.push(arg.into());
        }
        run_once(self.spec_of(&self.programs.initdb, args), "initdb").await
    }

    fn spec(&self) -> WardSpec {
        let mut args: Vec<OsString> = vec!["-D".into(), self.dir.data().into()];
        args.extend(["-p".into(), self.port.to_string().into()]);
        args.extend(["-h".into(), "127.0.0.1".into()]);
        // A socket's path may be 107 bytes long, which a temporary directory can exceed.
        args.extend(["-c".into(), "unix_socket_directories=".into()]);
        for (name, value) in SETTINGS {
            args.extend(["-c".into(), format!("{name}={value}").into()]);
        }
        // QUIT is the immediate shutdown: KILL would leave the backends to notice by themselves.
        self.spec_of(&self.programs.postgres, args)
            .end(EndSignal::Quit)
    }

    fn port(&self) -> u16 {
        self.port
    }

    fn url(&self) -> String {
        // Trusted whatever the password; it is there so that the URL is the compose file's too.
        format!(
            "postgres://flashlock:flashlock@127.0.0.1:{}/flashlock",
            self.port
        )
    }

    async fn answers(&self, _pid: u32) -> Result<(), String> {
        let mut connection = connect(&maintenance(&self.url())).await?;
        let data = self.dir.data().canonicalize().unwrap_or(self.dir.data());
        let theirs = one(&mut connection, "SHOW data_directory").await?;
        if std::path::Path::new(&theirs) != data && std::path::Path::new(&theirs) != self.dir.data()
        {
            return Err("another PostgreSQL answers on this port".to_owned());
        }
        let exists = "SELECT count(*)::text FROM pg_database WHERE datname = 'flashlock'";
        if one(&mut connection, exists).await? == "0" {
            create(&mut connection, "flashlock").await?;
        }
        connection.close().await.map_err(|error| error.to_string())
    }

    async fn settings(&self, _pid: u32) -> Result<BTreeMap<String, String>, String> {
        let mut connection = connect(&self.url()).await?;
        let mut settings = BTreeMap::new();
        for (name, statement) in [
            ("version", "SHOW server_version"),
            ("fsync", "SHOW fsync"),
            ("synchronous_commit", "SHOW synchronous_commit"),
            ("max_connections", "SHOW max_connections"),
        ] {
            settings.insert(name.to_owned(), one(&mut connection, statement).await?);
        }
        settings.insert("file_system".to_owned(), self.dir.file_system());
        Ok(settings)
    }
}

/// Whether the PostgreSQL at `url` serves requests now.
pub async fn ping(url: &str) -> Result<(), String> {
    one(&mut connect(url).await?, "SELECT 'pong'::text")
        .await
        .map(drop)
}

/// Creates a database beside the one of `url`, and answers its URL.
pub(super) async fn create_database(url: &str, name: &str) -> Result<String, String> {
    let mut connection = connect(&maintenance(url)).await?;
    create(&mut connection, name).await?;
    Ok(with_database(url, name))
}

/// `url` with another database.
pub(super) fn with_database(url: &str, name: &str) -> String {
    match url.rsplit_once('/') {
        Some((server, _)) => format!("{server}/{name}"),
        None => url.to_owned(),
    }
}

/// The database that every server has, for the statements that need one to stand in.
fn maintenance(url: &str) -> String {
    with_database(url, "postgres")
}

/// `name` holds lower-case letters, digits and `_` alone, so it can stand in the statement.
async fn create(connection: &mut PgConnection, name: &str) -> Result<(), String> {
    sqlx::raw_sql(AssertSqlSafe(format!("CREATE DATABASE {name}")))
        .execute(connection)
        .await
        .map(drop)
        .map_err(|error| error.to_string())
}

async fn one(connection: &mut PgConnection, statement: &'static str) -> Result<String, String> {
    sqlx::query_scalar(statement)
        .fetch_one(connection)
        .await
        .map_err(|error| error.to_string())
}

async fn connect(url: &str) -> Result<PgConnection, String> {
    match tokio::time::timeout(ANSWER_WAIT, PgConnection::connect(url)).await {
        Ok(connection) => connection.map_err(|error| error.to_string()),
        Err(_elapsed) => Err("no answer".to_owned()),
    }
}
