//! Runs other programs.
//!
//! # Promise
//! While a program runs in the foreground, signals to xtask reach it and, unless it shares the
//! terminal, everything it started.

use std::io::IsTerminal;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use crate::interrupt;
use crate::stop::Stop;

/// The signals that xtask sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    /// What Ctrl-C sends; PostgreSQL stops at once instead of waiting for its clients.
    Interrupt,
    /// Please end.
    Terminate,
    /// End.
    Kill,
}

impl Signal {
    /// The name for `kill` and `setpriv`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "INT",
            Self::Terminate => "TERM",
            Self::Kill => "KILL",
        }
    }
}

/// Who gets a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// A child by its process id.
    Process(u32),
    /// A child that leads a group of its own, and the whole group.
    Group(u32),
}

/// Sends a signal.
pub(crate) fn send(signal: Signal, target: Target) {
    let target = match target {
        Target::Process(pid) => pid.to_string(),
        Target::Group(pid) => format!("-{pid}"),
    };
    // The shell has its own `kill`; a slim machine may have no other one.
    let script = format!("kill -s {} -- {target}", signal.name());
    let _ = Command::new("sh")
        .args(["-c", &script])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status();
}

/// Runs a program with our stdin, stdout and stderr until it ends.
pub(crate) fn interactive(command: &mut Command) -> Result<ExitStatus, Stop> {
    // In a group of its own it could not read from the terminal.
    if std::io::stdin().is_terminal() {
        return wait(spawn(command)?, Target::Process);
    }
    wait(spawn(command.process_group(0))?, Target::Group)
}

/// Runs a program in a group of its own, without stdin; the caller chooses stdout and stderr.
pub(crate) fn batch(command: &mut Command) -> Result<ExitStatus, Stop> {
    command.stdin(Stdio::null()).process_group(0);
    wait(spawn(command)?, Target::Group)
}

/// Runs a program quietly; a failure carries what it said.
pub(crate) fn quiet(command: &mut Command) -> Result<String, Stop> {
    let name = program(command);
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Stop::failed(format!("cannot run {name}: {error}")))?;
    interrupt::check()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(Stop::failed(format!(
        "{name} failed with {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    )))
}

/// The exit code that a shell would show.
pub(crate) fn exit_code(status: ExitStatus) -> u8 {
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// The path of a program in PATH or in one of the other directories.
pub(crate) fn find(program: &str, others: &[PathBuf]) -> Option<PathBuf> {
    find_together(&[program], others).map(|directory| directory.join(program))
}

/// The first directory in PATH or among the others that has all of these programs.
pub(crate) fn find_together(programs: &[&str], others: &[PathBuf]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(others.iter().cloned())
        .find(|directory| programs.iter().all(|name| directory.join(name).is_file()))
}

fn spawn(command: &mut Command) -> Result<Child, Stop> {
    interrupt::check()?;
    command
        .spawn()
        .map_err(|error| Stop::failed(format!("cannot run {}: {error}", program(command))))
}

fn wait(mut child: Child, target: fn(u32) -> Target) -> Result<ExitStatus, Stop> {
    let target = target(child.id());
    interrupt::foreground(Some(target));
    // A signal may have come between the start and the line above.
    if interrupt::check().is_err() {
        send(Signal::Terminate, target);
    }
    let status = child.wait();
    interrupt::foreground(None);
    if let Err(stop) = interrupt::check() {
        if matches!(target, Target::Group(_)) {
            // The program is gone; what it started may have stayed.
            send(Signal::Kill, target);
        }
        return Err(stop);
    }
    status.map_err(|error| Stop::failed(format!("cannot wait for a program: {error}")))
}

fn program(command: &Command) -> String {
    let path = Path::new(command.get_program());
    path.file_name()
        .unwrap_or(path.as_os_str())
        .to_string_lossy()
        .into_owned()
}
