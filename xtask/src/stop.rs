//! Why a command ended early, and the exit code that says so.

use std::fmt;

/// Why a command ended early.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The command line makes no sense; nothing was done.
    Usage(String),
    /// Ctrl-C or a request to terminate; what was started is stopped.
    Interrupted,
    /// It did not work, for this reason.
    Failed(String),
}

impl Stop {
    /// A failure with its reason.
    pub(crate) fn failed(reason: impl Into<String>) -> Self {
        Self::Failed(reason.into())
    }

    /// The exit code for the shell.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Interrupted => 130,
            Self::Failed(_) => 1,
        }
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(reason) => write!(f, "{reason}; see `cargo xtask help`"),
            Self::Interrupted => f.write_str("interrupted"),
            Self::Failed(reason) => f.write_str(reason),
        }
    }
}
