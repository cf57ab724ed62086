//! A seeded random run of Counterfoil. `cargo xtask chaos --help` says how.
//!
//! The program starts itself again as relays and writers, so there is nothing to build beside it.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use counterfoil_e2e::chaos::{self, Options, StoreKind};
use counterfoil_e2e::process::Launcher;

/// The first argument of a process that is not the director of the run.
const ACTOR: &str = "actor";

/// Kill, freeze and cut at random, then heal, and check that nothing was lost, reordered or repeated
/// without a reason.
#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask chaos",
    after_help = "Exit code 1 on a violation; it is printed with the seed.\n\n\
                  Example:\n  cargo xtask chaos --store sqlite --seconds 120 --seed 7"
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
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.next_if(|first| first == ACTOR).is_some() {
        return counterfoil_e2e::actor::main(arguments);
    }
    let args = Args::parse();
    let options = Options {
        seed: args.seed.unwrap_or_else(|| fastrand::u64(..1_000_000_000)),
        length: Duration::from_secs(args.seconds),
        store: args.store,
        relays: args.relays.max(1),
        writers: args.writers.max(1),
    };
    println!("seed {}", options.seed);
    direct(&options)
}

fn direct(options: &Options) -> ExitCode {
    let own = match std::env::current_exe() {
        Ok(own) => own,
        Err(error) => return refuse(&format!("cannot find this program: {error}")),
    };
    let launcher = Launcher::program(own).after(&[ACTOR]);
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return refuse(&format!("cannot start: {error}")),
    };
    let Some(report) = runtime.block_on(chaos::run(options, launcher)) else {
        return refuse("there is no server to run on");
    };
    println!("{}", report.table());
    if report.violations.is_empty() {
        return ExitCode::SUCCESS;
    }
    refuse(&report.complaint())
}

fn refuse(why: &str) -> ExitCode {
    eprintln!("{why}");
    ExitCode::FAILURE
}
