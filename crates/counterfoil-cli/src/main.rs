//! `counterfoil`: the relay, the API and the operator's commands in one program.
//!
//! | module | what lives there |
//! |---|---|
//! | `args` | the command line |
//! | `bridge` | consumers that the configuration file describes |
//! | `config` | the configuration file, in two stages |
//! | `database` | which database, and opening it |
//! | `demo` | a shop under live traffic |
//! | `serve` | the relay and the API until stopped |
//! | `commands` | everything else that can be asked for |
//! | `print` | results on standard output |
//! | `logging` | log lines on standard error |
//! | `failure` | exit codes |

mod args;
mod bridge;
mod commands;
mod config;
mod database;
#[cfg(feature = "sqlite")]
mod demo;
mod failure;
mod logging;
mod print;
mod serve;

use std::process::ExitCode;

use clap::Parser as _;

use args::{Args, Command};
use failure::{Failure, Result};

/// Many small pieces of memory are taken in one thread and given back in another, with every request
/// that passes the gateway. The system's own allocator makes threads wait for each other there.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let args = Args::parse();
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn run(args: Args) -> Result {
    let usual = match args.command {
        Command::Serve(_) => "info,sqlx=error",
        _ => "warn,sqlx=error",
    };
    logging::start(&args.global, usual)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::failed(format!("cannot start: {e}")))?;
    let result = runtime.block_on(commands::run(&args.global, args.command));
    // Whatever still runs beside (a name being looked up, say) is not waited for.
    runtime.shutdown_background();
    result
}
