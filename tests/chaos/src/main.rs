//! A seeded random run of Counterfoil. `cargo xtask chaos --help` says how.
//!
//! The program starts itself again as relays, writers and consumers, so there is nothing to build
//! beside it.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use counterfoil_e2e::chaos::{self, Least, Options, StoreKind};
use counterfoil_e2e::journey::{self, Kind};
use counterfoil_e2e::process::Launcher;

/// The first argument of a process that is not the director of the run.
const ACTOR: &str = "actor";

/// Kill, freeze and cut at random, then heal, and check that nothing was lost, reordered or repeated
/// without a reason.
#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask chaos",
    after_help = "Exit code 1 on a violation; it is printed with the seed.\n\n\
                  Examples:\n  cargo xtask chaos --store sqlite --seconds 120 --seed 7\n  \
                  cargo xtask chaos --broker redis --messages 50000"
)]
struct Args {
    /// Everything random follows from it [default: another one each time]
    #[arg(long)]
    seed: Option<u64>,
    /// How long things are broken, before everything is healed
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// On which database; PostgreSQL is the server that COUNTERFOIL_TEST_POSTGRES_URL names
    #[arg(long, value_enum, default_value = "postgres")]
    store: StoreKind,
    /// Relays at one time
    #[arg(long, default_value_t = 3)]
    relays: usize,
    /// Writers at one time
    #[arg(long, default_value_t = 2)]
    writers: usize,
    /// Play the whole journey instead: outbox on PostgreSQL, relay, this broker, consumers, inbox
    #[arg(long, value_enum, conflicts_with_all = ["seconds", "store", "relays", "writers"])]
    broker: Option<Kind>,
    /// Messages of a journey
    #[arg(long, default_value_t = 50_000, requires = "broker")]
    messages: i64,
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.next_if(|first| first == ACTOR).is_some() {
        return counterfoil_e2e::actor::main(arguments);
    }
    let args = Args::parse();
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1_000_000_000));
    println!("seed {seed}");
    let own = match std::env::current_exe() {
        Ok(own) => own,
        Err(error) => return refuse(&format!("cannot find this program: {error}")),
    };
    let launcher = Launcher::program(own).after(&[ACTOR]);
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return refuse(&format!("cannot start: {error}")),
    };
    match runtime.block_on(direct(&args, seed, launcher)) {
        None => refuse("there is no server to run on"),
        Some((table, complaint)) => {
            println!("{table}");
            complaint.map_or(ExitCode::SUCCESS, |text| refuse(&text))
        }
    }
}

/// What came of it, and what went wrong. Absent when there is no server.
async fn direct(args: &Args, seed: u64, launcher: Launcher) -> Option<(String, Option<String>)> {
    if let Some(broker) = args.broker {
        let options = journey::Options::long(broker, seed, args.messages.max(1));
        let mut report = Box::pin(journey::run(&options, launcher)).await?;
        if report.repeats == 0 {
            report.violations.push("no duplicate has come".into());
        }
        let complaint = (!report.violations.is_empty()).then(|| report.complaint());
        return Some((report.table(), complaint));
    }
    let options = Options {
        seed,
        length: Duration::from_secs(args.seconds),
        least: Least::default(),
        store: args.store,
        relays: args.relays.max(1),
        writers: args.writers.max(1),
    };
    let report = Box::pin(chaos::run(&options, launcher)).await?;
    let complaint = (!report.violations.is_empty()).then(|| report.complaint());
    Some((report.table(), complaint))
}

fn refuse(why: &str) -> ExitCode {
    eprintln!("{why}");
    ExitCode::FAILURE
}
