//! What do the raw servers do on this machine? Each result of a comparison is a share of that.

use std::future::Future;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use redis::aio::MultiplexedConnection;
use zookeeper_client::{Acls, CreateMode};

use super::plan::Servers;
use crate::clock;
use crate::run::Limit;
use crate::script::calibrate::Calibrate;
use crate::store::{RowGrant, Store, StoreOptions};

/// Long enough for thousands of operations, short enough for eight of them in a quick run.
const RUN: Duration = Duration::from_millis(400);
/// A server that does not answer one operation in this time is left out.
const ONE_WAIT: Duration = Duration::from_secs(5);
/// In flight at once, where a server is asked by many.
const MANY: usize = 50;

const REDIS_KEY: &str = "flashlock:calibrate";
const ZNODE: &str = "/flashlock-calibrate";
const LOCK_ROW: &str = "calibrate";

/// Measures what is there. What cannot be measured is left out, and why is logged.
pub async fn measure(servers: &Servers, data: &Path) -> Vec<Limit> {
    let mut limits = Vec::new();
    let mut keep = |name: &str, measured: Result<f64, String>| match measured {
        Ok(per_s) => limits.push(Limit {
            name: name.to_string(),
            per_s,
        }),
        Err(why) => tracing::warn!(limit = name, why, "not measured"),
    };
    keep("fsync", fsync(data).await);
    if let Some(url) = &servers.redis_url {
        match redis_connection(url).await {
            Ok(connection) => {
                keep("redis-set", redis_set(&connection).await);
                keep("redis-evalsha", redis_evalsha(&connection, 1).await);
                keep("redis-evalsha-50", redis_evalsha(&connection, MANY).await);
            }
            Err(why) => keep("redis-set", Err(why)),
        }
    }
    if let Some(cluster) = &servers.zookeeper {
        keep("zookeeper-create-delete", zookeeper(cluster).await);
    }
    if let Some(url) = &servers.database_url {
        keep("database-row-commit", row_commit(url).await);
    }
    limits
}

/// Requests a second that the service answers without a server behind it, `in_flight` at once.
pub async fn http_noop(
    client: &reqwest::Client,
    instances: &[String],
    in_flight: usize,
) -> Option<Limit> {
    let urls: Vec<String> = instances.iter().map(|i| format!("{i}/healthz")).collect();
    let one = |n: usize| {
        let request = client.get(&urls[n % urls.len()]).send();
        async move {
            let answer = request.await.and_then(reqwest::Response::error_for_status);
            let answer = answer.map_err(|e| e.to_string())?;
            answer.bytes().await.map(drop).map_err(|e| e.to_string())
        }
    };
    match per_second(in_flight, one).await {
        Ok(per_s) => Some(Limit {
            name: format!("http-noop-{in_flight}"),
            per_s,
        }),
        Err(why) => {
            tracing::warn!(limit = "http-noop", why, "not measured");
            None
        }
    }
}

/// Runs `one` again and again, `in_flight` at once, and tells how many ended in a second.
async fn per_second<F, T>(in_flight: usize, one: F) -> Result<f64, String>
where
    F: Fn(usize) -> T,
    T: Future<Output = Result<(), String>>,
{
    let timed = |n: usize| {
        let operation = one(n);
        async move {
            match tokio::time::timeout(ONE_WAIT, operation).await {
                Ok(done) => done,
                Err(_elapsed) => Err("one operation took more than 5 s".to_string()),
            }
        }
    };
    // The first is not counted: it pays for connections and caches.
    timed(0).await?;
    let start = clock::now();
    let mut sent = in_flight;
    let mut done = 0u32;
    let mut running: FuturesUnordered<_> = (0..in_flight).map(&timed).collect();
    while let Some(result) = running.next().await {
        result?;
        done += 1;
        if start.elapsed() >= RUN {
            break;
        }
        running.push(timed(sent));
        sent += 1;
    }
    Ok(f64::from(done) / start.elapsed().as_secs_f64())
}

// === the servers ===

/// Appends of one page, each on the disk before the next, where the servers' data is.
async fn fsync(data: &Path) -> Result<f64, String> {
    let data = data.to_path_buf();
    let measured = tokio::task::spawn_blocking(move || -> std::io::Result<f64> {
        let mut file = tempfile::tempfile_in(data)?;
        let page = [0x5a; 4096];
        let start = clock::now();
        let mut done = 0u32;
        while start.elapsed() < RUN {
            // The same page, as a log that was allocated ahead has it.
            file.seek(SeekFrom::Start(0))?;
            file.write_all(&page)?;
            file.sync_data()?;
            done += 1;
        }
        Ok(f64::from(done) / start.elapsed().as_secs_f64())
    });
    let joined = measured.await.map_err(|e| e.to_string())?;
    joined.map_err(|e| e.to_string())
}

async fn redis_connection(url: &str) -> Result<MultiplexedConnection, String> {
    let client = redis::Client::open(url).map_err(|e| e.to_string())?;
    match tokio::time::timeout(ONE_WAIT, client.get_multiplexed_async_connection()).await {
        Ok(connection) => connection.map_err(|e| e.to_string()),
        Err(_elapsed) => Err("Redis did not answer".to_string()),
    }
}

async fn redis_set(connection: &MultiplexedConnection) -> Result<f64, String> {
    per_second(1, |n| {
        let mut connection = connection.clone();
        async move {
            let mut set = redis::cmd("SET");
            set.arg(REDIS_KEY).arg(n).arg("PX").arg(60_000);
            set.query_async::<()>(&mut connection)
                .await
                .map_err(|e| e.to_string())
        }
    })
    .await
}

async fn redis_evalsha(
    connection: &MultiplexedConnection,
    in_flight: usize,
) -> Result<f64, String> {
    let script = Calibrate::default();
    let rate = per_second(in_flight, |n| {
        let mut connection = connection.clone();
        let script = &script;
        async move {
            let set = script.set(&mut connection, REDIS_KEY, n).await;
            set.map_err(|e| e.to_string())
        }
    })
    .await;
    let mut connection = connection.clone();
    redis::cmd("DEL")
        .arg(REDIS_KEY)
        .query_async::<()>(&mut connection)
        .await
        .map_err(|e| e.to_string())?;
    rate
}

/// One client that creates an ephemeral sequential node and deletes it.
async fn zookeeper(cluster: &str) -> Result<f64, String> {
    let say = |e: zookeeper_client::Error| e.to_string();
    let connect = zookeeper_client::Client::connect(cluster);
    let client = match tokio::time::timeout(ONE_WAIT, connect).await {
        Ok(client) => client.map_err(say)?,
        Err(_elapsed) => return Err("ZooKeeper did not answer".to_string()),
    };
    let parent = CreateMode::Persistent.with_acls(Acls::anyone_all());
    match client.create(ZNODE, b"", &parent).await {
        Ok(_) | Err(zookeeper_client::Error::NodeExists) => {}
        Err(error) => return Err(say(error)),
    }
    let rate = per_second(1, |_| {
        let client = &client;
        async move {
            let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
            let path = format!("{ZNODE}/n-");
            let (_, sequence) = client.create(&path, b"", &options).await.map_err(say)?;
            let made = format!("{path}{sequence}");
            client.delete(&made, None).await.map_err(say)
        }
    })
    .await;
    client.delete(ZNODE, None).await.map_err(say)?;
    rate
}

/// One connection that updates one row and commits, again and again.
async fn row_commit(url: &str) -> Result<f64, String> {
    let options = StoreOptions {
        url: url.to_string(),
        connections_max: 1,
    };
    let store = Store::open(&options).await.map_err(|e| e.to_string())?;
    let rate = row_commit_on(&store).await;
    store.close().await;
    rate
}

async fn row_commit_on(store: &Store) -> Result<f64, String> {
    let rows = store.lock_rows();
    let owner = uuid::Uuid::new_v4().to_string();
    let ttl = Duration::from_secs(60);
    match rows.try_acquire(LOCK_ROW, &owner, ttl).await {
        Ok(RowGrant::Mine { .. }) => {}
        Ok(RowGrant::Held { .. }) => return Err("another comparison is measuring".to_string()),
        Err(error) => return Err(error.to_string()),
    }
    let rate = per_second(1, |_| async {
        match rows.renew(LOCK_ROW, &owner, ttl).await {
            Ok(true) => Ok(()),
            Ok(false) => Err("the row is gone".to_string()),
            Err(error) => Err(error.to_string()),
        }
    })
    .await;
    rows.release(LOCK_ROW, &owner)
        .await
        .map_err(|e| e.to_string())?;
    rate
}
