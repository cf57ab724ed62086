//! A NATS of a test's own, to freeze, kill and restart.
//!
//! # Promise
//! It listens on a free port of 127.0.0.1, has JetStream, writes everything to its disk before it
//! answers, and does not outlive its handle. A kill is a real SIGKILL and a pause a real SIGSTOP.
//! After a restart it has its messages, and its address is the same.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::{current_test, skipped};

/// Long enough for a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(30);
/// What NATS says when it can be asked.
const READY: &str = "Server is ready";
/// Below the range from which systems take ports for outgoing connections.
const PORTS: std::ops::Range<u16> = 20_000..30_000;

/// A NATS that belongs to one test.
#[derive(Debug)]
pub struct PrivateNats {
    port: u16,
    /// Absent after a kill.
    child: Option<Child>,
    directory: TempDir,
}

impl PrivateNats {
    /// Starts one without credentials. Absent when there is no `nats-server`: skip the test.
    ///
    /// # Panics
    /// When there is no `nats-server` and `CI` is `true`, or when it does not start.
    pub async fn start() -> Option<Self> {
        Self::start_with("").await
    }

    /// The same with more lines in its file of settings.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    pub async fn start_with(settings: &str) -> Option<Self> {
        let directory = tempfile::tempdir().expect("no temporary directory");
        for _ in 0..20 {
            let port = free_port();
            write_settings(&directory, port, settings);
            match launch(&directory).await {
                Ok(Some(child)) => {
                    return Some(Self {
                        port,
                        child: Some(child),
                        directory,
                    });
                }
                // Somebody else was faster at this port.
                Ok(None) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    skipped(&current_test(), "there is no nats-server");
                    return None;
                }
                Err(error) => panic!("nats-server cannot be started: {error}"),
            }
        }
        panic!("nats-server does not start on any port");
    }

    /// Its address.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Ends it without warning.
    pub async fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().await.expect("NATS cannot be killed");
        }
    }

    /// Starts it again at the same address, with its messages.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn restart(&mut self) {
        self.kill().await;
        let child = launch(&self.directory)
            .await
            .expect("nats-server cannot be started")
            .expect("nats-server does not start again");
        self.child = Some(child);
    }

    /// Freezes it: the system still accepts connections in its name, and nobody answers.
    ///
    /// # Panics
    /// When it does not stand still.
    pub async fn pause(&self) {
        let pid = self.pid();
        kill_process(pid, Signal::STOP).expect("NATS cannot be frozen");
        let still = tokio::task::spawn_blocking(move || {
            waitid(
                WaitId::Pid(pid),
                WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT,
            )
        });
        timeout(PATIENCE, still)
            .await
            .expect("NATS does not stand still")
            .expect("the wait ended badly")
            .expect("NATS cannot be waited for");
    }

    /// Lets it go on.
    pub fn resume(&self) {
        kill_process(self.pid(), Signal::CONT).expect("NATS cannot be resumed");
    }

    fn pid(&self) -> Pid {
        let id = self.child.as_ref().and_then(Child::id);
        let id = id.expect("NATS was killed");
        Pid::from_raw(id.cast_signed()).expect("a process has a number")
    }
}

fn free_port() -> u16 {
    std::iter::repeat_with(|| fastrand::u16(PORTS))
        .take(1_000)
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .expect("no free port on 127.0.0.1")
}

fn write_settings(directory: &TempDir, port: u16, more: &str) {
    let text = format!(
        "listen: \"127.0.0.1:{port}\"\n\
         jetstream {{ store_dir: \"{}\", sync_interval: always }}\n{more}\n",
        directory.path().join("store").display()
    );
    std::fs::write(directory.path().join("nats.conf"), text).expect("no file of settings");
}

/// Where `cargo xtask` keeps it, or else the one in `PATH`.
fn program() -> PathBuf {
    let given = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let cache = given("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| given("HOME").map(|home| PathBuf::from(home).join(".cache")));
    let kept = cache.and_then(|cache| {
        let entries = std::fs::read_dir(cache.join("counterfoil")).ok()?;
        let named = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default();
            name.to_string_lossy().starts_with("nats-server-")
        };
        let mut all: Vec<PathBuf> = entries.flatten().map(|e| e.path()).filter(named).collect();
        all.sort();
        let programs = all
            .into_iter()
            .rev()
            .map(|path| path.join("bin/nats-server"));
        programs.into_iter().find(|program| program.is_file())
    });
    kept.unwrap_or_else(|| PathBuf::from("nats-server"))
}

/// A NATS that answers, or nothing when it ended at once.
async fn launch(directory: &TempDir) -> std::io::Result<Option<Child>> {
    let mut child = Command::new(program())
        .arg("-c")
        .arg(directory.path().join("nats.conf"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut said = BufReader::new(child.stderr.take().expect("stderr is piped")).lines();
    let ready = async {
        while let Some(line) = said.next_line().await? {
            if line.contains(READY) {
                return Ok(true);
            }
        }
        std::io::Result::Ok(false)
    };
    let ready = timeout(PATIENCE, ready)
        .await
        .expect("nats-server does not get ready")?;
    // Nobody may stop listening to it: it would wait when the pipe is full.
    tokio::spawn(async move { while let Ok(Some(_)) = said.next_line().await {} });
    Ok(ready.then_some(child))
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpStream;

    use super::*;

    async fn greets(nats: &PrivateNats) -> bool {
        let mut greeting = [0; 4];
        let read = async {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, nats.port)).await?;
            stream.read_exact(&mut greeting).await
        };
        let read = timeout(PATIENCE, read).await.expect("NATS does not answer");
        read.is_ok() && greeting == *b"INFO"
    }

    #[tokio::test]
    async fn it_answers_again_after_a_pause_and_after_a_restart() {
        let Some(mut nats) = PrivateNats::start().await else {
            return;
        };
        let url = nats.url();
        assert!(greets(&nats).await);

        nats.pause().await;
        nats.resume();
        assert!(greets(&nats).await);
        nats.kill().await;
        assert!(!greets(&nats).await);
        nats.restart().await;

        assert!(greets(&nats).await);
        assert_eq!(nats.url(), url);
    }
}
