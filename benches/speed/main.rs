//! How fast is it beside the raw servers? `make bench`, or `cargo bench --bench speed -- reserve`.
//!
//! Ours and the reference run in turns, on the same servers, in the same run; a ratio is the median
//! of the rounds' ratios. So a busy machine slows both, and a figure of another machine means little.

mod bare;
mod book;
mod close;
mod ground;
mod measured;
mod reserve;
#[path = "../rows.rs"]
mod rows;
mod script;
mod settle;

use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use ground::Ground;
use measured::Measured;

/// A target that was missed, with `--check`.
const MISSED: u8 = 4;

#[derive(Debug, Parser)]
#[command(
    name = "speed",
    about = "Ours beside the raw servers, in turns, in one run"
)]
struct Args {
    /// What to measure; everything if nothing is said.
    #[arg(value_enum)]
    figures: Vec<Figure>,
    /// End with status 4 when a target is missed.
    #[arg(long)]
    check: bool,
    /// Rounds of each comparison: one of ours, one of the reference.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Orders of the backlog that is closed.
    #[arg(long, default_value_t = 100_000)]
    backlog: usize,
    /// What cargo adds.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Figure {
    /// `Gate::reserve` beside redis-benchmark with the same command.
    Reserve,
    /// CPU of one call of `reserve.lua` beside a bare deduct.
    Script,
    /// Booking in PostgreSQL beside a raw batched insert of the same rows.
    Book,
    /// Booking what was accepted for later, beside the same insert.
    Settle,
    /// Closing a backlog of expired orders.
    Close,
}

pub(crate) type Failed = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let _since_cargo_says_it = args.bench;
    match run(&args).await {
        Ok(measured) => {
            let missed = measured.iter().any(|m| !m.is_met());
            match missed && args.check {
                true => ExitCode::from(MISSED),
                false => ExitCode::SUCCESS,
            }
        }
        Err(error) => {
            eprintln!("speed: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: &Args) -> Result<Vec<Measured>, Failed> {
    let figures = match args.figures.as_slice() {
        [] => Figure::value_variants(),
        some => some,
    };
    let ground = Ground::start(figures).await?;
    println!("{}", ground.describe().await);
    let mut all = Vec::new();
    for figure in figures {
        let measured = match figure {
            Figure::Reserve => reserve::measure(&ground, args.rounds).await?,
            Figure::Script => script::measure(&ground, args.rounds).await?,
            Figure::Book => book::measure(&ground, args.rounds).await?,
            Figure::Settle => settle::measure(&ground, args.rounds).await?,
            Figure::Close => close::measure(&ground, args.backlog).await?,
        };
        println!("{}", measured::table(&measured));
        let rows: Vec<rows::Row> = measured.iter().map(Measured::row).collect();
        rows::merge(&rows::file(), &rows)?;
        all.extend(measured);
    }
    ground.stop().await?;
    Ok(all)
}
