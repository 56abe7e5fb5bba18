//! A lock in a database, which may be your own: it gets the tables of the service beside yours.
//! `cargo run --example db_unique_insert -- postgres://USER:PASSWORD@HOST/NAME` (or `mysql://…`,
//! `sqlite:FILE`). Without an argument it starts a private PostgreSQL.

#[path = "shared/hold.rs"]
mod hold;

use flashlock::lab::{DatabaseKind, Lab, LabPlan};
use flashlock::store::{Store, StoreOptions};
use flashlock::strategy::db_unique_insert::DbUniqueInsertLock;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Some(url) = std::env::args().nth(1) {
        return hold_in(url).await;
    }
    let plan = LabPlan {
        postgres: true,
        ..LabPlan::nothing()
    };
    let lab = Lab::start(&plan).await?;
    let url = lab.create_database(DatabaseKind::Postgres, "locks").await?;
    hold_in(url).await?;
    Ok(lab.stop().await?)
}

async fn hold_in(url: String) -> Result<(), Box<dyn std::error::Error>> {
    let options = StoreOptions {
        url,
        connections_max: 2,
    };
    let store = Store::open(&options).await.map_err(|e| e.to_string())?;
    store.migrate().await?;
    hold::hold(&DbUniqueInsertLock::new(store.lock_rows().clone())).await?;
    store.close().await;
    Ok(())
}
