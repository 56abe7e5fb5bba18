//! Which of the three databases this is, and what they spell differently.

use std::fmt::Write as _;

/// A database the store can run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dialect {
    Sqlite,
    Postgres,
    Mysql,
}

/// A database URL of no known kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the database URL `{0}` is of an unknown kind; use sqlite:FILE, postgres://USER:PASSWORD@HOST:PORT/NAME or mysql://USER:PASSWORD@HOST:PORT/NAME"
)]
pub struct UnknownDatabase(pub String);

// === impl Dialect ===

impl Dialect {
    pub fn of_url(url: &str) -> Result<Self, UnknownDatabase> {
        match url.split_once(':').map(|(scheme, _)| scheme) {
            Some("sqlite") => Ok(Self::Sqlite),
            Some("postgres" | "postgresql") => Ok(Self::Postgres),
            Some("mysql" | "mariadb") => Ok(Self::Mysql),
            Some(_) | None => Err(UnknownDatabase(without_password(url))),
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
            Self::Mysql => "mysql",
        }
    }

    /// The database's clock in Unix milliseconds, read at the statement. (PostgreSQL's `now()`
    /// stands still inside a transaction.)
    pub(super) fn now_ms(self) -> &'static str {
        match self {
            Self::Sqlite => "CAST(unixepoch('subsec') * 1000 AS INTEGER)",
            Self::Postgres => "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)",
            Self::Mysql => "CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)",
        }
    }

    /// A sum that the driver can decode: `SUM` of a BIGINT is numeric on PostgreSQL and MySQL.
    pub(super) fn sum(self, column: &str) -> String {
        match self {
            Self::Sqlite | Self::Postgres => format!("CAST(COALESCE(SUM({column}), 0) AS BIGINT)"),
            Self::Mysql => format!("CAST(COALESCE(SUM({column}), 0) AS SIGNED)"),
        }
    }

    /// Begins a transaction that writes. SQLite's plain BEGIN would read first and then fail to
    /// become a writer.
    pub(super) fn begin(self) -> &'static str {
        match self {
            Self::Sqlite => "BEGIN IMMEDIATE",
            Self::Postgres | Self::Mysql => "BEGIN",
        }
    }

    /// `sql` with each `?` in the dialect's own form and `{now}` as its clock.
    pub(super) fn sql(self, sql: &str) -> String {
        let sql = sql.replace("{now}", self.now_ms());
        match self {
            Self::Sqlite | Self::Mysql => sql,
            Self::Postgres => {
                let mut numbered = String::with_capacity(sql.len() + 16);
                let mut n = 0;
                for c in sql.chars() {
                    if c == '?' {
                        n += 1;
                        let _infallible = write!(numbered, "${n}");
                    } else {
                        numbered.push(c);
                    }
                }
                numbered
            }
        }
    }

    /// `(?, ?, …), (?, ?, …)`: `rows` tuples of `columns`, where a column may be an expression.
    pub(super) fn tuples(rows: usize, columns: &[&str]) -> String {
        let tuple = format!("({})", columns.join(", "));
        vec![tuple; rows].join(", ")
    }
}

/// The URL for messages: without what may be a password, in the login or among the parameters.
pub fn without_password(url: &str) -> String {
    let (url, parameters) = match url.split_once('?') {
        Some((url, _)) => (url, "?***"),
        None => (url, ""),
    };
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => match url.split_once(':') {
            Some((scheme, rest)) => (format!("{scheme}:"), rest),
            None => (String::new(), url),
        },
    };
    let rest = match rest.rsplit_once('@') {
        Some((login, host)) => {
            let user = login.split_once(':').map_or("***", |(user, _)| user);
            format!("{user}:***@{host}")
        }
        None => rest.to_string(),
    };
    format!("{scheme}{rest}{parameters}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_kind_of_url_names_the_known_ones_and_hides_the_password() {
        let error = Dialect::of_url("oracle://u:secret@h/db").expect_err("unknown");
        let text = error.to_string();
        assert!(
            text.contains("sqlite:FILE") && text.contains("mysql://"),
            "{text}"
        );
        assert!(!text.contains("secret"), "{text}");
        assert!(Dialect::of_url("").is_err());
        for url in [
            "oracle:u:secret@h/db",
            "oracle:secret@h",
            "jdbc:mysql://u:sec@secret@h/db",
            "oracle://h/db?user=u&password=secret",
            "u:secret@h",
        ] {
            let text = Dialect::of_url(url).expect_err("unknown").to_string();
            assert!(!text.contains("secret"), "{text}");
        }
        assert_eq!(Dialect::of_url("mariadb://u@h/db"), Ok(Dialect::Mysql));
    }

    #[test]
    fn placeholders_are_numbered_for_postgres_only() {
        assert_eq!(
            Dialect::Postgres.sql("a = ? AND b = ?"),
            "a = $1 AND b = $2"
        );
        assert_eq!(Dialect::Mysql.sql("a = ? AND b = ?"), "a = ? AND b = ?");
    }
}
