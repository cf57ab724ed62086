//! `cargo xtask test`: every test, with real servers.
//!
//! # Promise
//! The last line is `N passed, N failed, N skipped` and tells the truth: a test that skips itself
//! is not passed, and a binary that dies without a result is failed. The exit code is 0 only when
//! nothing failed.

pub(crate) mod matrix;
mod skips;
mod summary;
mod tally;

use std::io::{BufRead, BufReader, IsTerminal, PipeReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::args::TestOptions;
use crate::cargo;
use crate::process::batch;
use crate::servers::{self, Fleet};
use crate::stop::Stop;
use skips::Skips;
use tally::Tally;

/// How long output may still come after cargo has ended: a process that a test left behind can
/// hold it open for ever.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Runs the tests.
pub(crate) fn run(options: &TestOptions) -> Result<u8, Stop> {
    let fleet = Fleet::start(&options.servers)?;
    let mut tally = Tally::default();
    for base in cargo::TESTS {
        if !options.matrix {
            let mut command = cargo::test(base, options);
            fleet.equip(&mut command);
            let what = format!("cargo {}", base.join(" "));
            tally = follow_run(&mut command, &what, &fleet.file("skips"), tally)?;
        }
        tally = matrix::run(base, options, &fleet, tally)?;
    }
    if servers::are_mandatory()
        && let Err(stop) = fleet.require_all()
    {
        tally.fail(format!("{stop} (CI is set)"));
    }
    let presence = fleet.presence().to_vec();
    // Stop the servers first, so that nothing is said after the last line.
    drop(fleet);
    print!("{}", summary::text(&presence, &tally));
    Ok(u8::from(tally.failed() > 0))
}

/// Runs a command that runs tests, and counts them. Those that skip say so in the file.
fn follow_run(
    command: &mut Command,
    what: &str,
    skips: &Path,
    tally: Tally,
) -> Result<Tally, Stop> {
    command.env("COUNTERFOIL_TEST_SKIPS", skips);
    if std::io::stdout().is_terminal() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    // One pipe for both: the name of a binary comes on stderr, its result on stdout, and only
    // their order says what belongs together.
    let failed = |error| Stop::failed(format!("cannot make a pipe: {error}"));
    let (reader, writer) = std::io::pipe().map_err(failed)?;
    command.stdout(writer.try_clone().map_err(failed)?);
    command.stderr(writer);

    let failed_before = tally.failed();
    let (sender, receiver) = mpsc::channel();
    let skips = Skips::of(skips.to_owned());
    thread::spawn(move || follow(reader, tally, skips, &sender));
    let status = batch(command)?;
    // The pipe ends when its last writer does, and the command holds two.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut tally = last(&receiver);
    if !status.success() && tally.failed() == failed_before {
        tally.fail(format!("{what} ended with {status}"));
    }
    Ok(tally)
}

/// Shows the output as it comes, and sends the tally whenever it changes.
fn follow(reader: PipeReader, mut tally: Tally, mut skips: Skips, sender: &mpsc::Sender<Tally>) {
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    let _ = sender.send(tally.clone());
    while reader
        .read_until(b'\n', &mut line)
        .is_ok_and(|read| read > 0)
    {
        let mut stdout = std::io::stdout().lock();
        let _ = stdout.write_all(&line).and_then(|()| stdout.flush());
        if tally.read(&String::from_utf8_lossy(&line), || skips.new_ones()) {
            let _ = sender.send(tally.clone());
        }
        line.clear();
    }
}

/// The tally when the output ends.
fn last(progress: &mpsc::Receiver<Tally>) -> Tally {
    let mut last = Tally::default();
    loop {
        match progress.recv_timeout(LAST_WORDS) {
            Ok(tally) => last = tally,
            Err(mpsc::RecvTimeoutError::Disconnected) => return last,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                eprintln!("xtask: a test left a process behind that holds its output open");
                return last;
            }
        }
    }
}
