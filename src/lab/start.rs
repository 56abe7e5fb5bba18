//! In which order, on which ports and how often are the servers of a plan started?

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use futures::future::{BoxFuture, FutureExt, join_all};
use tempfile::TempDir;

use super::mariadb::Mariadb;
use super::port::{self, Ports};
use super::postgres::Postgres;
use super::process::{Ward, WardSpec};
use super::redis::Redis;
use super::server::{Recipe, Server, ServerDir, ServerId, StartError};
use super::zookeeper::{Node, NodePorts};
use super::{Entry, LabError, LabOptions, LabPlan, NotStarted};
use super::{mariadb, postgres, redis, zookeeper};

/// A private directory for one lab. As root it may be passed through, because PostgreSQL and
/// MariaDB run as other users; what lies in it is each server's own.
pub(super) fn directory() -> Result<TempDir, LabError> {
    let directory = tempfile::Builder::new()
        .prefix("flashlock-lab-")
        .tempdir()
        .map_err(LabError::Directory)?;
    let mode = if rustix::process::geteuid().is_root() {
        0o711
    } else {
        0o700
    };
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(mode))
        .map_err(LabError::Directory)?;
    Ok(directory)
}

/// A process that does nothing but go away with this one, and takes the directory along. Started
/// before anything is put there: between a server's directory and its ward lies a moment in which
/// nobody else would remove it.
pub(super) async fn keeper(directory: &Path) -> Result<Ward, LabError> {
    let spec = WardSpec::new("tail", directory.join("keeper.log"))
        .args(["-f", "/dev/null"])
        .dir("/")
        .remove(directory);
    Ward::spawn(&spec)
        .await
        .map_err(|error| LabError::Directory(std::io::Error::other(error)))
}

/// Starts everything side by side; the entries come in the order of [`ServerId`].
pub(super) async fn all(
    plan: &LabPlan,
    options: &LabOptions,
    lab: &Path,
) -> Result<Vec<Entry>, LabError> {
    let mut starts: Vec<BoxFuture<'_, Vec<Entry>>> = Vec::new();
    if plan.redis {
        starts.push(one_redis(options, lab, ServerId::Redis, port::REDIS).boxed());
    }
    if plan.redlock {
        for (node, preferred) in (1..).zip(port::REDLOCK) {
            starts.push(one_redis(options, lab, ServerId::Redlock(node), preferred).boxed());
        }
    }
    match plan.zookeeper_nodes {
        0 => {}
        1 | 3 => starts.push(ensemble(options, lab, plan.zookeeper_nodes).boxed()),
        other => return Err(LabError::ZookeeperNodes(other)),
    }
    if plan.postgres {
        starts.push(one_postgres(options, lab).boxed());
    }
    if plan.mariadb {
        starts.push(one_mariadb(options, lab).boxed());
    }
    Ok(join_all(starts).await.into_iter().flatten().collect())
}

async fn one_redis(options: &LabOptions, lab: &Path, id: ServerId, preferred: u16) -> Vec<Entry> {
    let Some(program) = Redis::program(&options.binaries) else {
        return vec![not_installed(id, redis::INSTALL)];
    };
    let started = on_a_port(options.ports, preferred, |port| {
        let dir = ServerDir::create(lab, id, None)?;
        Ok(Box::new(Redis::new(program.clone(), dir, port)))
    });
    vec![entry(id, started.await)]
}

async fn one_postgres(options: &LabOptions, lab: &Path) -> Vec<Entry> {
    let id = ServerId::Postgres;
    let Some(programs) = Postgres::programs(&options.binaries) else {
        return vec![not_installed(id, postgres::INSTALL)];
    };
    let account = Postgres::account();
    let started = on_a_port(options.ports, port::POSTGRES, |port| {
        let dir = ServerDir::create(lab, id, account.as_ref())?;
        let (programs, account) = (programs.clone(), account.clone());
        Ok(Box::new(Postgres::new(programs, account, dir, port)))
    });
    vec![entry(id, started.await)]
}

async fn one_mariadb(options: &LabOptions, lab: &Path) -> Vec<Entry> {
    let id = ServerId::Mariadb;
    let Some(programs) = Mariadb::programs(&options.binaries) else {
        return vec![not_installed(id, mariadb::INSTALL)];
    };
    let account = Mariadb::account();
    let started = on_a_port(options.ports, port::MARIADB, |port| {
        let dir = ServerDir::create(lab, id, account.as_ref())?;
        let (programs, account) = (programs.clone(), account.clone());
        Ok(Box::new(Mariadb::new(programs, account, dir, port)))
    });
    vec![entry(id, started.await)]
}

/// Starts one server, on another port when somebody took the first between choice and start.
async fn on_a_port<F>(ports: Ports, preferred: u16, recipe: F) -> Result<Server, StartError>
where
    F: Fn(u16) -> Result<Box<dyn Recipe>, StartError>,
{
    let mut last = StartError::new("no port was tried", "");
    for attempt in 0..port::ATTEMPTS_MAX {
        let Some(port) = ports.choose(preferred, attempt) else {
            break;
        };
        match Server::start(recipe(port)?).await {
            Err(error) if error.is_port_taken() => last = error,
            other => return other,
        }
    }
    Err(last)
}

/// The nodes know each other's ports, so a taken port starts all of them again.
async fn ensemble(options: &LabOptions, lab: &Path, nodes: u8) -> Vec<Entry> {
    let ids: Vec<ServerId> = (1..=nodes).map(ServerId::Zookeeper).collect();
    let Some(program) = Node::program(&options.binaries) else {
        return ids
            .into_iter()
            .map(|id| not_installed(id, zookeeper::INSTALL))
            .collect();
    };
    let mut entries = Vec::new();
    for attempt in 0..port::ATTEMPTS_MAX {
        let ports: Option<Vec<NodePorts>> = port::ZOOKEEPER
            .into_iter()
            .take(usize::from(nodes))
            .map(|preferred| {
                Some(NodePorts {
                    client: options.ports.choose(preferred, attempt)?,
                    quorum: port::free(),
                    election: port::free(),
                })
            })
            .collect();
        let Some(ports) = ports else { break };
        let starts = ids.iter().map(|id| async {
            let started = match node(lab, *id, &program, &ports) {
                Ok(node) => Server::start(node).await,
                Err(error) => Err(error),
            };
            (*id, started)
        });
        let started = join_all(starts).await;
        let is_port_taken = started
            .iter()
            .any(|(_, started)| started.as_ref().is_err_and(StartError::is_port_taken));
        entries.clear();
        for (id, started) in started {
            if is_port_taken && let Ok(server) = &started {
                // Killed rather than let go, so that its directory stays for the next attempt.
                server.kill().await;
            }
            entries.push(entry(id, started));
        }
        if !is_port_taken {
            break;
        }
    }
    entries
}

fn node(
    lab: &Path,
    id: ServerId,
    program: &(std::path::PathBuf, super::find::JarSet),
    ports: &[NodePorts],
) -> Result<Box<dyn Recipe>, StartError> {
    let dir = ServerDir::create(lab, id, None)?;
    let ServerId::Zookeeper(number) = id else {
        return Err(StartError::new(format!("{id} is no ZooKeeper"), ""));
    };
    match Node::new(program.clone(), dir, ports.to_vec(), number) {
        Some(node) => Ok(Box::new(node)),
        None => Err(StartError::new(format!("{id} is not in the ensemble"), "")),
    }
}

fn not_installed(id: ServerId, install: &str) -> Entry {
    Entry {
        id,
        outcome: Err(NotStarted::NotInstalled {
            install: install.to_owned(),
        }),
    }
}

fn entry(id: ServerId, started: Result<Server, StartError>) -> Entry {
    Entry {
        id,
        outcome: started.map_err(|error| NotStarted::Failed {
            log: error.to_string(),
        }),
    }
}
