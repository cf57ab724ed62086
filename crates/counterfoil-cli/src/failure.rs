//! How a command ends when it does not succeed.
//!
//! # Promise
//! Every failure is one line for each thing that is wrong, on standard error, and an exit code that
//! a script can rely on:
//!
//! | code | meaning |
//! |---|---|
//! | 1 | it failed: database, network, findings of an audit |
//! | 2 | the command line or the configuration is wrong |
//! | 3 | nothing is there under this name |

use std::io;
use std::process::ExitCode;

use counterfoil_core::StoreError;
use counterfoil_core::message::MessageError;
use counterfoil_engine::StartError;

use crate::print;

/// Why a command did not succeed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Something did not work.
    Failed(String),
    /// The command line or the configuration is wrong, one line each.
    Config(Vec<String>),
    /// Nothing is there under this name.
    NotFound(String),
    /// The command has already said what is wrong, as its result.
    Told,
    /// Whoever read our output has gone: nobody is left to tell.
    NobodyReads,
}

pub(crate) type Result<T = ()> = std::result::Result<T, Failure>;

impl Failure {
    /// One mistake in the command line or the configuration.
    pub(crate) fn config(problem: impl Into<String>) -> Self {
        Failure::Config(vec![problem.into()])
    }

    /// Something did not work.
    pub(crate) fn failed(problem: impl Into<String>) -> Self {
        Failure::Failed(problem.into())
    }

    /// Says what is wrong and gives the exit code.
    pub(crate) fn report(self) -> ExitCode {
        let (code, lines) = match self {
            Failure::Failed(line) => (1, vec![line]),
            Failure::Config(lines) => (2, lines),
            Failure::NotFound(line) => (3, vec![line]),
            Failure::Told => (1, Vec::new()),
            Failure::NobodyReads => (0, Vec::new()),
        };
        for line in lines {
            eprintln!("error: {}", print::clean(&line));
        }
        ExitCode::from(code)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::NotFound(what) => Failure::NotFound(what),
            other => Failure::Failed(other.one_line()),
        }
    }
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Self {
        match error {
            StartError::Settings(settings) => Failure::config(settings.to_string()),
            StartError::Store(store) => store.into(),
            other => Failure::Failed(other.to_string()),
        }
    }
}

impl From<MessageError> for Failure {
    fn from(error: MessageError) -> Self {
        Failure::config(error.to_string())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::NobodyReads,
            _ => Failure::Failed(error.to_string()),
        }
    }
}
