//! Processes that a test starts, kills, pauses and resumes.
//!
//! # Promise
//! A kill is a real SIGKILL and a pause a real SIGSTOP. No process outlives its handle. What a
//! process says on stdout can be waited for; what it logs stands in a file of its own.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;

use crate::wait;

/// How long words of a process that has ended may still be under way.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How a process of ours is started.
#[derive(Debug, Clone)]
pub struct Launcher {
    program: PathBuf,
    before: Vec<String>,
}

impl Launcher {
    /// The program itself is the actor.
    pub fn program(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            before: Vec::new(),
        }
    }

    /// The program becomes an actor when these arguments come first.
    #[must_use]
    pub fn after(mut self, arguments: &[&str]) -> Self {
        self.before
            .extend(arguments.iter().map(|a| (*a).to_owned()));
        self
    }

    /// Starts an actor. Its log is kept under its label in `logs`.
    pub fn start(&self, label: &str, logs: &Path, arguments: &[String]) -> Process {
        let path = logs.join(format!("{label}.log"));
        let log = std::fs::File::create(&path).expect("the log cannot be written");
        let mut child = Command::new(&self.program)
            .args(&self.before)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|e| panic!("{} cannot be started: {e}", self.program.display()));
        let said = Arc::new(watch::Sender::new(Vec::new()));
        let stdout = child.stdout.take().expect("stdout is piped");
        tokio::spawn(listen(stdout, Arc::clone(&said)));
        let pid = child
            .id()
            .and_then(|id| Pid::from_raw(id.cast_signed()))
            .expect("it runs");
        Process {
            label: label.to_owned(),
            child,
            pid,
            said,
            log: path,
        }
    }
}

async fn listen(stdout: impl AsyncRead + Unpin, said: Arc<watch::Sender<Vec<String>>>) {
    let mut lines = BufReader::new(stdout).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        said.send_modify(|all| all.push(line));
    }
}

/// A running process.
#[derive(Debug)]
pub struct Process {
    /// Its name.
    pub label: String,
    child: Child,
    pid: Pid,
    said: Arc<watch::Sender<Vec<String>>>,
    log: PathBuf,
}

impl Process {
    /// Waits for a line that begins with `word`, and answers the rest of it.
    ///
    /// # Panics
    /// When the process ends, or takes too long, before it has said so.
    pub async fn says(&mut self, word: &str) -> String {
        match self.listen_for(word).await {
            Some(rest) => rest,
            None => panic!("{} did not say {word:?}:\n{}", self.label, self.log()),
        }
    }

    /// Waits for a line that begins with `word`. Answers false when the process ends before.
    pub async fn has_said(&mut self, word: &str) -> bool {
        self.listen_for(word).await.is_some()
    }

    async fn listen_for(&mut self, word: &str) -> Option<String> {
        let (begun, mut ended) = (Instant::now(), None);
        while begun.elapsed() < wait::PATIENCE {
            let found = self
                .said
                .borrow()
                .iter()
                .find_map(|line| line.strip_prefix(word))
                .map(str::to_owned);
            if let Some(rest) = found {
                return Some(rest.trim().to_owned());
            }
            // Its last words may still be under way when it is already gone.
            if !self.runs() && ended.get_or_insert_with(Instant::now).elapsed() > LAST_WORDS {
                return None;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        None
    }

    /// The rest of the last line so far that began with `word`.
    pub fn last(&self, word: &str) -> Option<String> {
        let said = self.said.borrow();
        let found = said.iter().rev().find_map(|line| line.strip_prefix(word));
        found.map(|rest| rest.trim().to_owned())
    }

    /// Ends it without warning.
    pub async fn kill(&mut self) {
        self.signal(Signal::KILL);
        let _ = self.child.wait().await;
    }

    /// Freezes it, and returns when it stands still, or has ended by itself.
    pub async fn pause(&mut self) {
        self.signal(Signal::STOP);
        let begun = Instant::now();
        while self.runs() && !self.stands_still() {
            assert!(
                begun.elapsed() < wait::PATIENCE,
                "{} cannot be frozen",
                self.label
            );
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn stands_still(&self) -> bool {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::Pid(self.pid), options).ok().flatten();
        status.is_some_and(|status| status.stopped())
    }

    /// Lets it go on.
    pub fn resume(&mut self) {
        self.signal(Signal::CONT);
    }

    /// Asks it to end.
    pub fn terminate(&mut self) {
        self.signal(Signal::TERM);
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When it does not end in time.
    pub async fn ends(&mut self) -> ExitStatus {
        let ended = tokio::time::timeout(wait::PATIENCE, self.child.wait()).await;
        let Ok(Ok(status)) = ended else {
            panic!("{} does not end:\n{}", self.label, self.log())
        };
        status
    }

    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn signal(&self, signal: Signal) {
        if self.child.id().is_some() {
            // It may have ended by itself at this moment.
            let _ = kill_process(self.pid, signal);
        }
    }
}
