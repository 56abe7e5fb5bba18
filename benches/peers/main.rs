//! How fast are our locks beside those of other libraries, on the same servers in the same run?
//!
//! `make bench-peers` fetches the peers and runs this. It starts the lab, measures every library in
//! every scenario (each as processes of their own, with the driver of the library's language), prints
//! the tables, and writes `target/peers.json`, `target/peers.md` and the ratios in
//! `target/bench.json`.

mod cell;
mod clock;
mod holds;
mod library;
mod outcome;
mod plan;
#[path = "../rows.rs"]
mod rows;
mod scenario;
mod server;
mod table;
mod target;
mod worker;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use plan::RunArgs;
use worker::WorkerArgs;

/// A libtest option that `cargo bench` passes.
#[derive(Debug, Parser)]
struct Cli {
    #[arg(long, hide = true, global = true)]
    bench: bool,
    #[command(flatten)]
    run: RunArgs,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// One process of a scenario; started by this program itself.
    #[command(hide = true)]
    Worker(WorkerArgs),
    /// Print the README's tables from the last full run.
    Render,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let done = match cli.command {
        Some(Command::Worker(args)) => runtime.block_on(worker::run(args)),
        Some(Command::Render) => plan::stored().map(|text| println!("{text}")),
        None => runtime.block_on(plan::run(&cli.run)),
    };
    // Clients that still wait for a lock end with the process.
    runtime.shutdown_background();
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}
