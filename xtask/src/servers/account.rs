//! The user under which a server runs.
//!
//! # Promise
//! A server that refuses root runs as its own user when xtask is root, and as the user of xtask
//! otherwise. On Linux it also gets its stop signal when xtask dies without stopping it.

use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{Signal, find, quiet};
use crate::stop::Stop;

/// Who runs a server.
#[derive(Debug)]
pub(crate) struct Account {
    /// The user to become; none when xtask is not root.
    user: Option<&'static str>,
    setpriv: Option<PathBuf>,
}

/// Whether xtask runs as root.
pub(crate) fn is_root() -> bool {
    quiet(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0")
}

impl Account {
    /// The given user if we can become it, else our own.
    pub(crate) fn of(user: &'static str) -> Result<Self, Stop> {
        let setpriv = find("setpriv", &[]);
        let root = is_root();
        if root && setpriv.is_none() {
            return Err(Stop::failed(format!(
                "setpriv is needed to run a server as user {user}"
            )));
        }
        Ok(Self {
            user: root.then_some(user),
            setpriv,
        })
    }

    /// Our own user, for a server that does not mind root.
    pub(crate) fn ours() -> Self {
        Self {
            user: None,
            setpriv: find("setpriv", &[]),
        }
    }

    /// Hands a directory over.
    pub(crate) fn own(&self, directory: &Path) -> Result<(), Stop> {
        let Some(user) = self.user else {
            return Ok(());
        };
        let id = |flag| -> Result<Option<u32>, Stop> {
            let said = quiet(Command::new("id").args([flag, user]))?;
            Ok(said.trim().parse().ok())
        };
        chown(directory, id("-u")?, id("-g")?)
            .map_err(|error| Stop::failed(format!("cannot give a directory to {user}: {error}")))
    }

    /// A command that runs as this account.
    pub(crate) fn command(&self, program: &Path) -> Command {
        self.with(program, &[])
    }

    /// The same for a server, which gets `stop` when the thread that started it dies.
    pub(crate) fn daemon(&self, program: &Path, stop: Signal) -> Command {
        self.with(program, &["--pdeathsig", stop.name()])
    }

    fn with(&self, program: &Path, options: &[&str]) -> Command {
        let Some(setpriv) = &self.setpriv else {
            return Command::new(program);
        };
        let mut command = Command::new(setpriv);
        if let Some(user) = self.user {
            command.args(["--reuid", user, "--regid", user, "--init-groups"]);
        }
        command.args(options).arg("--").arg(program);
        command
    }
}
