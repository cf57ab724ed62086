//! The process that crash tests start and kill. See [`counterfoil_e2e::actor`].

use std::process::ExitCode;

fn main() -> ExitCode {
    counterfoil_e2e::actor::main(std::env::args().skip(1))
}
