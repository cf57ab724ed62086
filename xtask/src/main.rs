//! `cargo xtask`: the commands of a developer.
//!
//! # Promise
//! Whatever a command starts, it stops, and whatever it writes outside the target directory, it
//! removes: also after a failure, Ctrl-C or SIGTERM. Its own remarks go to stderr, so that the
//! stdout of a command it runs stays clean.

mod alone;
mod args;
mod cargo;
mod check;
mod deny;
mod interrupt;
mod mutants;
mod process;
mod run;
mod scratch;
mod servers;
mod stop;
mod test;

use std::process::ExitCode;

use args::Command;
use stop::Stop;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let outcome = args::parse(&words).and_then(|command| {
        interrupt::install()?;
        perform(&command)
    });
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(stop) => {
            eprintln!("xtask: {stop}");
            ExitCode::from(stop.exit_code())
        }
    }
}

fn perform(command: &Command) -> Result<u8, Stop> {
    match command {
        Command::Help => {
            print!("{}", args::HELP);
            Ok(0)
        }
        Command::Test(options) => test::run(options),
        Command::Servers { only, command } => run::servers(only, command),
        Command::Check { fast } => check::run(*fast),
        Command::CheckAlone => alone::run(),
        Command::Deny => deny::run(),
        Command::Mutants { chosen } => mutants::run(chosen),
        Command::Bench { name, args } => run::bench(name, args),
        Command::Chaos { args } => run::chaos(args),
    }
}
