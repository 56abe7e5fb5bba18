//! A lock on one Redis: `cargo run --example redis_set_nx -- redis://127.0.0.1:6379`.
//! Without an argument it starts a private redis-server.

#[path = "shared/hold.rs"]
mod hold;

use flashlock::lab::{Lab, LabPlan};
use flashlock::strategy::redis_set_nx::RedisSetNxLock;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Some(url) = std::env::args().nth(1) {
        return hold::hold(&RedisSetNxLock::new(&url)?).await;
    }
    let plan = LabPlan {
        redis: true,
        ..LabPlan::nothing()
    };
    let lab = Lab::start(&plan).await?;
    let url = lab
        .redis_url()
        .ok_or("redis-server is not installed: make deps")?;
    hold::hold(&RedisSetNxLock::new(&url)?).await?;
    Ok(lab.stop().await?)
}
