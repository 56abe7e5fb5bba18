//! Do the servers start, answer, break as told, and end with their parent?

use std::time::Duration;

use flashlock::lab::{Lab, LabPlan, ServerState};

#[tokio::test(flavor = "multi_thread")]
async fn every_server_starts_and_answers() {
    let begun = flashlock::clock::now();
    let lab = Lab::start(&LabPlan::all()).await.unwrap();
    println!("{:?}", begun.elapsed());
    for s in lab.servers() {
        println!("{s:?}");
    }
    println!("{:#?}", lab.environment());
    println!("{:#?}", lab.settings().await);
    println!("{:?}", lab.pids());
    lab.stop().await.unwrap();
    println!("{:?}", begun.elapsed());
    let _ = Duration::ZERO;
    let _ = ServerState::Stopped { port: 1 };
}
