//! How is the lab's MariaDB set up?

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use async_trait::async_trait;
use sqlx::{AssertSqlSafe, Connection, MySqlConnection};

use super::find::{Account, Binaries};
use super::postgres::with_database;
use super::process::WardSpec;
use super::server::{ANSWER_WAIT, Recipe, ServerDir, StartError, run_once};

/// What is missing when there is no MariaDB.
pub(super) const INSTALL: &str = "run compose/deps.sh, or install the package mariadb-server";

/// The settings that matter to a comparison; `compose/mysql.yaml` has the same.
pub const SETTINGS: &[(&str, &str)] = &[
    ("max-connections", "500"),
    // The default, said aloud: a commit is on disk before it is answered.
    ("innodb-flush-log-at-trx-commit", "1"),
    // The same as PostgreSQL's, so that one rule of visibility holds for all three databases.
    ("transaction-isolation", "READ-COMMITTED"),
    ("character-set-server", "utf8mb4"),
];

/// Switches without a value: no second log to sync, and no reverse look-up of each client.
pub const SWITCHES: &[&str] = &["skip-log-bin", "skip-name-resolve"];

/// Who may run it when we are root.
const ACCOUNTS: &[&str] = &["mysql", "nobody"];

/// Run at every start, and safe to repeat. The user may do everything, on loopback alone.
const INIT_SQL: &str = "CREATE DATABASE IF NOT EXISTS flashlock;\n\
     CREATE USER IF NOT EXISTS flashlock@'127.0.0.1' IDENTIFIED BY 'flashlock';\n\
     GRANT ALL ON *.* TO flashlock@'127.0.0.1' WITH GRANT OPTION;\n";

#[derive(Debug)]
pub(super) struct Mariadb {
    programs: Programs,
    account: Option<Account>,
    dir: ServerDir,
    port: u16,
}

#[derive(Debug, Clone)]
pub(super) struct Programs {
    install: PathBuf,
    server: PathBuf,
}

// === impl Mariadb ===

impl Mariadb {
    pub(super) fn programs(binaries: &Binaries) -> Option<Programs> {
        Some(Programs {
            install: binaries.program("mariadb-install-db")?,
            server: binaries.program("mariadbd")?,
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

    /// `--name=path`.
    fn path_arg(name: &str, path: PathBuf) -> OsString {
        let mut arg = OsString::from(format!("--{name}="));
        arg.push(path);
        arg
    }
}

#[async_trait]
impl Recipe for Mariadb {
    async fn prepare(&self) -> Result<(), StartError> {
        std::fs::write(self.dir.path().join("init.sql"), INIT_SQL)
            .map_err(|error| StartError::new(format!("init.sql: {error}"), ""))?;
        if self.dir.data().join("mysql").exists() {
            return Ok(());
        }
        let args = vec![
            // The machine's own configuration is for the machine's own server.
            "--no-defaults".into(),
            Self::path_arg("datadir", self.dir.data()),
            "--auth-root-authentication-method=normal".into(),
            "--skip-test-db".into(),
            "--skip-name-resolve".into(),
        ];
        run_once(
            self.spec_of(&self.programs.install, args),
            "mariadb-install-db",
        )
        .await
    }

    fn spec(&self) -> WardSpec {
        let mut args = vec![
            "--no-defaults".into(),
            Self::path_arg("datadir", self.dir.data()),
            Self::path_arg("init-file", self.dir.path().join("init.sql")),
            "--bind-address=127.0.0.1".into(),
            format!("--port={}", self.port).into(),
            // Relative to the data directory: a socket's path may be 107 bytes long.
            "--socket=mariadb.sock".into(),
            "--pid-file=mariadb.pid".into(),
        ];
        for (name, value) in SETTINGS {
            args.push(format!("--{name}={value}").into());
        }
        for switch in SWITCHES {
            args.push(format!("--{switch}").into());
        }
        self.spec_of(&self.programs.server, args)
    }

    fn port(&self) -> u16 {
        self.port
    }

    fn url(&self) -> String {
        format!(
            "mysql://flashlock:flashlock@127.0.0.1:{}/flashlock",
            self.port
        )
    }

    async fn answers(&self, _pid: u32) -> Result<(), String> {
        let mut connection = connect(&self.url()).await?;
        let theirs = one(&mut connection, "SELECT CAST(@@datadir AS CHAR)").await?;
        let data = self.dir.data();
        let canonical = data.canonicalize().unwrap_or_else(|_| data.clone());
        let theirs = std::path::Path::new(&theirs);
        if theirs != data && theirs != canonical {
            return Err("another MariaDB answers on this port".to_owned());
        }
        connection.close().await.map_err(|error| error.to_string())
    }

    async fn settings(&self, _pid: u32) -> Result<BTreeMap<String, String>, String> {
        let mut connection = connect(&self.url()).await?;
        let mut settings = BTreeMap::new();
        for (name, statement) in [
            ("version", "SELECT CAST(@@version AS CHAR)"),
            (
                "innodb_flush_log_at_trx_commit",
                "SELECT CAST(@@innodb_flush_log_at_trx_commit AS CHAR)",
            ),
            ("sync_binlog", "SELECT CAST(@@sync_binlog AS CHAR)"),
            ("log_bin", "SELECT CAST(@@log_bin AS CHAR)"),
            ("max_connections", "SELECT CAST(@@max_connections AS CHAR)"),
        ] {
            settings.insert(name.to_owned(), one(&mut connection, statement).await?);
        }
        settings.insert("file_system".to_owned(), self.dir.file_system());
        Ok(settings)
    }
}

/// Whether the MySQL or MariaDB at `url` serves requests now.
pub async fn ping(url: &str) -> Result<(), String> {
    one(&mut connect(url).await?, "SELECT CAST('pong' AS CHAR)")
        .await
        .map(drop)
}

/// Creates a database beside the one of `url`, and answers its URL. `name` holds lower-case
/// letters, digits and `_` alone, so it can stand in the statement.
pub(super) async fn create_database(url: &str, name: &str) -> Result<String, String> {
    sqlx::raw_sql(AssertSqlSafe(format!("CREATE DATABASE {name}")))
        .execute(&mut connect(url).await?)
        .await
        .map_err(|error| error.to_string())?;
    Ok(with_database(url, name))
}

async fn one(connection: &mut MySqlConnection, statement: &'static str) -> Result<String, String> {
    sqlx::query_scalar(statement)
        .fetch_one(connection)
        .await
        .map_err(|error| error.to_string())
}

async fn connect(url: &str) -> Result<MySqlConnection, String> {
    match tokio::time::timeout(ANSWER_WAIT, MySqlConnection::connect(url)).await {
        Ok(connection) => connection.map_err(|error| error.to_string()),
        Err(_elapsed) => Err("no answer".to_owned()),
    }
}
