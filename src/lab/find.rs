//! Where are the servers' programs, and which user may run them?

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The directories that are searched for programs and jars.
#[derive(Debug, Clone)]
pub struct Binaries {
    programs: Vec<PathBuf>,
    jars: Option<JarSet>,
}

/// ZooKeeper's class path.
#[derive(Debug, Clone)]
pub(super) struct JarSet(pub(super) OsString);

/// Another user to run a server as: PostgreSQL and MariaDB refuse to run as root.
#[derive(Debug, Clone)]
pub(super) struct Account {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

// === impl Binaries ===

impl Binaries {
    /// `PATH`, the `sbin` directories, and where distributions hide PostgreSQL's programs.
    pub fn of_system() -> Self {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut programs: Vec<PathBuf> = std::env::split_paths(&path).collect();
        for dir in ["/usr/local/sbin", "/usr/sbin", "/usr/local/bin", "/usr/bin"] {
            programs.push(dir.into());
        }
        programs.extend(postgres_dirs());
        Self {
            programs,
            jars: zookeeper_jars(),
        }
    }

    /// Only these directories, and no ZooKeeper: for tests of a machine that lacks servers.
    pub fn only_in(programs: Vec<PathBuf>) -> Self {
        Self {
            programs,
            jars: None,
        }
    }

    pub(super) fn program(&self, name: &str) -> Option<PathBuf> {
        self.programs
            .iter()
            .map(|dir| dir.join(name))
            .find(|path| is_executable(path))
    }

    pub(super) fn zookeeper(&self) -> Option<JarSet> {
        self.jars.clone()
    }
}

// === impl Account ===

impl Account {
    /// The first of `names` that exists here, when we are root; `None` otherwise: anybody but
    /// root runs the server as themselves.
    pub(super) fn for_root(names: &[&str]) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        names.iter().find_map(|name| {
            let line = passwd
                .lines()
                .find(|line| line.split(':').next() == Some(name))?;
            let mut fields = line.split(':').skip(2);
            Some(Self {
                uid: fields.next()?.parse().ok()?,
                gid: fields.next()?.parse().ok()?,
            })
        })
    }

    /// The command line that becomes `command` as this user, in the same process.
    pub(super) fn wrap(
        account: Option<&Self>,
        command: &Path,
        args: Vec<OsString>,
    ) -> (PathBuf, Vec<OsString>) {
        let Some(account) = account else {
            return (command.to_owned(), args);
        };
        let mut wrapped: Vec<OsString> = vec![
            format!("--reuid={}", account.uid).into(),
            format!("--regid={}", account.gid).into(),
            "--clear-groups".into(),
            "--".into(),
            command.into(),
        ];
        wrapped.extend(args);
        ("setpriv".into(), wrapped)
    }
}

/// Debian keeps PostgreSQL's programs per version, out of `PATH`; the newest comes first.
fn postgres_dirs() -> Vec<PathBuf> {
    let mut versions: Vec<(u32, PathBuf)> = Vec::new();
    for entry in std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
    {
        if let Some(version) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        {
            versions.push((version, entry.path().join("bin")));
        }
    }
    versions.sort_by_key(|version| std::cmp::Reverse(version.0));
    versions.into_iter().map(|(_, dir)| dir).collect()
}

/// `$ZOOKEEPER_HOME`, Debian's jars, or a release unpacked where people unpack it.
fn zookeeper_jars() -> Option<JarSet> {
    if let Some(home) = std::env::var_os("ZOOKEEPER_HOME") {
        return release_jars(Path::new(&home));
    }
    let debian = Path::new("/usr/share/java/zookeeper.jar");
    if debian.exists() {
        // The jar's manifest names the others. slf4j-simple comes first: with the whole directory
        // on the class path another binding wins that throws every message away.
        return Some(JarSet(
            "/usr/share/java/slf4j-simple.jar:/usr/share/java/zookeeper.jar".into(),
        ));
    }
    [
        "/opt/zookeeper",
        "/usr/local/zookeeper",
        "/usr/share/zookeeper",
    ]
    .into_iter()
    .find_map(|home| release_jars(Path::new(home)))
}

/// The class path of an unpacked release: its jars, and its logging configuration.
fn release_jars(home: &Path) -> Option<JarSet> {
    let lib = home.join("lib");
    let has_jars = std::fs::read_dir(&lib).ok()?.flatten().any(|entry| {
        entry
            .file_name()
            .to_string_lossy()
            .starts_with("zookeeper-")
    });
    let mut path = home.join("conf").into_os_string();
    path.push(":");
    path.push(lib.join("*"));
    has_jars.then_some(JarSet(path))
}

fn is_executable(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}
