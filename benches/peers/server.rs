//! What did the servers do for a run: commands, packets and CPU time?

use flashlock::bench::cpu::{self, CpuReading};
use flashlock::lab::Lab;
use redis::aio::MultiplexedConnection;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::clock::monotonic_ns;
use crate::library::Ground;

/// The servers of one kind, and this program's own connections to ask them.
pub(crate) struct Servers {
    pub(crate) urls: Vec<String>,
    /// The name of their processes in the lab.
    kind: &'static str,
    redis: Vec<MultiplexedConnection>,
    /// What one reading itself adds to the count.
    own: u64,
}

/// The counters at one moment.
#[derive(Debug, Clone)]
pub(crate) struct Reading {
    /// When the requests were counted; a busy machine is late.
    pub(crate) at_ns: i64,
    requests: u64,
    cpu: Option<CpuReading>,
}

/// What was done between two readings.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Done {
    /// Redis: commands executed, those inside scripts included, on all nodes together. ZooKeeper:
    /// packets received.
    pub(crate) requests: u64,
    pub(crate) cpu_us: Option<u64>,
}

// === impl Servers ===

impl Servers {
    /// The lab's servers of this kind; an error says why they do not run.
    pub(crate) async fn of(lab: &Lab, ground: Ground) -> Result<Self, String> {
        let (kind, urls) = match ground {
            Ground::OneRedis => ("redis", lab.redis_url().map(|url| vec![url])),
            Ground::FiveRedis => ("redlock", lab.redlock_urls()),
            Ground::Zookeeper => ("zookeeper", lab.zookeeper().map(|url| vec![url])),
        };
        let urls = urls.ok_or_else(|| not_running(lab, kind))?;
        let mut redis = Vec::new();
        match ground {
            Ground::Zookeeper => {}
            Ground::OneRedis | Ground::FiveRedis => {
                for url in &urls {
                    let client = redis::Client::open(url.as_str()).map_err(|e| e.to_string())?;
                    let node = client.get_multiplexed_async_connection().await;
                    redis.push(node.map_err(|error| error.to_string())?);
                }
            }
        }
        let mut servers = Self {
            urls,
            kind,
            redis,
            own: 0,
        };
        // Nobody else is connected yet.
        let before = servers.requests().await?;
        servers.own = servers.requests().await?.saturating_sub(before);
        Ok(servers)
    }

    pub(crate) async fn read(&self, lab: &Lab) -> Result<Reading, String> {
        let pids: Vec<u32> = lab
            .pids()
            .into_iter()
            .filter(|(id, _)| id.kind() == self.kind)
            .flat_map(|(_, pids)| pids)
            .collect();
        let cpu = cpu::read(&pids);
        let asked_ns = monotonic_ns();
        let requests = self.requests().await?;
        Ok(Reading {
            at_ns: i64::midpoint(asked_ns, monotonic_ns()),
            requests,
            cpu,
        })
    }

    pub(crate) fn between(&self, before: &Reading, after: &Reading) -> Done {
        let requests = after.requests.saturating_sub(before.requests);
        let cpu = before.cpu.as_ref().zip(after.cpu.as_ref());
        Done {
            requests: requests.saturating_sub(self.own),
            cpu_us: cpu.map(|(before, after)| cpu::between(before, after)),
        }
    }

    async fn requests(&self) -> Result<u64, String> {
        if self.redis.is_empty() {
            return packets(&self.urls[0]).await;
        }
        let mut sum = 0;
        for node in &self.redis {
            let info: Result<redis::InfoDict, _> = redis::cmd("INFO")
                .arg("stats")
                .query_async(&mut node.clone())
                .await;
            let info = info.map_err(|error| error.to_string())?;
            sum += info.get::<u64>("total_commands_processed").unwrap_or(0);
        }
        Ok(sum)
    }
}

/// `zk_packets_received` of the four-letter word `mntr`.
async fn packets(address: &str) -> Result<u64, String> {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"mntr").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = exchange.await.map_err(|error| error.to_string())?;
    let count = answer
        .lines()
        .find_map(|line| line.strip_prefix("zk_packets_received"))
        .and_then(|count| count.trim().parse().ok());
    count.ok_or_else(|| format!("mntr told no packets: {answer}"))
}

fn not_running(lab: &Lab, kind: &str) -> String {
    let servers = lab.servers().into_iter();
    let states: Vec<String> = servers
        .filter(|server| server.id.kind() == kind)
        .map(|server| format!("{}: {:?}", server.name, server.state))
        .collect();
    format!("{kind} does not run here: {}", states.join(", "))
}
