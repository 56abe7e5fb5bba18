//! A lock on a majority of independent Redis, an odd number of URLs:
//! `cargo run --example redlock -- redis://10.0.0.1 redis://10.0.0.2 redis://10.0.0.3`.
//! Without an argument it starts five private redis-server.

#[path = "shared/hold.rs"]
mod hold;

use flashlock::lab::{Lab, LabPlan};
use flashlock::strategy::redlock::RedlockLock;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let urls: Vec<String> = std::env::args().skip(1).collect();
    if !urls.is_empty() {
        return hold::hold(&RedlockLock::new(&urls)?).await;
    }
    let plan = LabPlan {
        redlock: true,
        ..LabPlan::nothing()
    };
    let lab = Lab::start(&plan).await?;
    let urls = lab
        .redlock_urls()
        .ok_or("redis-server is not installed: make deps")?;
    hold::hold(&RedlockLock::new(&urls)?).await?;
    Ok(lab.stop().await?)
}
