//! A server process that belongs to this run.
//!
//! # Promise
//! It ends when the [`Daemon`] is dropped: first by its own stop signal, and if that does not help
//! in time, by force.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::interrupt;
use crate::process::{Signal, Target, send};
use crate::stop::Stop;

const POLL: Duration = Duration::from_millis(50);
const START_DEADLINE: Duration = Duration::from_secs(60);
const STOP_DEADLINE: Duration = Duration::from_secs(20);
const LOG_LINES_SHOWN: usize = 15;

/// A running server process.
#[derive(Debug)]
pub(crate) struct Daemon {
    title: &'static str,
    child: Child,
    stop: Signal,
    log: PathBuf,
}

impl Daemon {
    /// Starts the command in the background, with its output in `server.log` of the directory.
    ///
    /// Call it from the main thread: on Linux the server dies with the thread that started it.
    pub(crate) fn spawn(
        title: &'static str,
        stop: Signal,
        directory: &Path,
        mut command: Command,
    ) -> Result<Self, Stop> {
        interrupt::check()?;
        let failed = |error| Stop::failed(format!("cannot start {title}: {error}"));
        let log = directory.join("server.log");
        let file = File::create(&log).map_err(failed)?;
        let child = command
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(file.try_clone().map_err(failed)?)
            .stderr(file)
            // Ctrl-C must not reach it before the tests have ended.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        Ok(Self {
            title,
            child,
            stop,
            log,
        })
    }

    /// Waits until the probe succeeds; its quiet failures mean "not yet".
    pub(crate) fn wait_until_ready(&mut self, mut probe: impl FnMut() -> bool) -> Result<(), Stop> {
        let begin = Instant::now();
        loop {
            interrupt::check()?;
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(self.failed(&format!("ended with {status}")));
            }
            if probe() {
                return Ok(());
            }
            if begin.elapsed() > START_DEADLINE {
                return Err(self.failed(&format!("no answer in {START_DEADLINE:?}")));
            }
            thread::sleep(POLL);
        }
    }

    fn failed(&self, what: &str) -> Stop {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        let tail = &lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..];
        Stop::failed(format!("{} {what}\n{}", self.title, tail.join("\n")))
    }

    fn ended_within(&mut self, deadline: Duration) -> bool {
        let begin = Instant::now();
        while begin.elapsed() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return true;
            }
            thread::sleep(POLL);
        }
        false
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        // Its own process only: it takes its helper processes down in good order.
        send(self.stop, Target::Process(self.child.id()));
        if !self.ended_within(STOP_DEADLINE) {
            eprintln!("xtask: {} does not stop, killing it", self.title);
            send(Signal::Kill, Target::Group(self.child.id()));
            let _ = self.child.wait();
        }
    }
}

/// Runs a command quietly and says whether it succeeded.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
