//! A lock in ZooKeeper: `cargo run --example zookeeper -- 10.0.0.1:2181,10.0.0.2:2181`.
//! Without an argument it starts a private server.

#[path = "shared/hold.rs"]
mod hold;

use flashlock::lab::{Lab, LabPlan};
use flashlock::strategy::zookeeper::ZookeeperLock;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Some(servers) = std::env::args().nth(1) {
        return hold::hold(&ZookeeperLock::new(&servers)).await;
    }
    let plan = LabPlan {
        zookeeper_nodes: 1,
        ..LabPlan::nothing()
    };
    let lab = Lab::start(&plan).await?;
    let servers = lab
        .zookeeper()
        .ok_or("ZooKeeper is not installed: make deps")?;
    hold::hold(&ZookeeperLock::new(&servers)).await?;
    Ok(lab.stop().await?)
}
