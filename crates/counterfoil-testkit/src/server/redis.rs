//! A Redis of a test's own, to freeze, kill and empty.
//!
//! # Promise
//! It listens on a free port of 127.0.0.1 and does not outlive its handle. A kill is a real SIGKILL
//! and a pause a real SIGSTOP. After a restart its address is the same; it is empty, unless it was
//! started as one that keeps what it has confirmed.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::{current_test, skipped};

/// Long enough for a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(30);
/// What Redis says when it can be asked.
const READY: &str = "Ready to accept connections";
/// Below the range from which systems take ports for outgoing connections: such a port could be
/// gone again before Redis binds it.
const PORTS: std::ops::Range<u16> = 20_000..30_000;

/// A Redis that belongs to one test.
#[derive(Debug)]
pub struct PrivateRedis {
    port: u16,
    child: Child,
    directory: TempDir,
    keeps: bool,
}

impl PrivateRedis {
    /// Starts one. Absent when `redis-server` is not in `PATH`: skip the test.
    ///
    /// # Panics
    /// When there is no `redis-server` and `CI` is `true`, or when it does not start.
    pub async fn start() -> Option<Self> {
        Self::begin(false).await
    }

    /// Starts one that has everything that it confirmed after a kill and a restart.
    ///
    /// # Panics
    /// The same as [`Self::start`].
    pub async fn start_durable() -> Option<Self> {
        Self::begin(true).await
    }

    async fn begin(keeps: bool) -> Option<Self> {
        let directory = tempfile::tempdir().expect("no temporary directory");
        for _ in 0..20 {
            let port = free_port();
            match launch(&directory, port, keeps).await {
                Ok(Some(child)) => {
                    return Some(Self {
                        port,
                        child,
                        directory,
                        keeps,
                    });
                }
                // Somebody else was faster at this port.
                Ok(None) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    skipped(&current_test(), "redis-server is not in PATH");
                    return None;
                }
                Err(error) => panic!("redis-server cannot be started: {error}"),
            }
        }
        panic!("redis-server does not start on any port");
    }

    /// Its address.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Ends it without warning.
    pub async fn kill(&mut self) {
        self.child.kill().await.expect("Redis cannot be killed");
    }

    /// Starts it again at the same address.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn restart(&mut self) {
        self.kill().await;
        self.child = launch(&self.directory, self.port, self.keeps)
            .await
            .expect("redis-server cannot be started")
            .expect("redis-server does not start again");
    }

    /// Freezes it: the system still accepts connections in its name, and nobody answers.
    ///
    /// # Panics
    /// When it does not stand still.
    pub async fn pause(&self) {
        let pid = self.pid();
        kill_process(pid, Signal::STOP).expect("Redis cannot be frozen");
        let still = tokio::task::spawn_blocking(move || {
            waitid(
                WaitId::Pid(pid),
                WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT,
            )
        });
        timeout(PATIENCE, still)
            .await
            .expect("Redis does not stand still")
            .expect("the wait ended badly")
            .expect("Redis cannot be waited for");
    }

    /// Lets it go on.
    pub fn resume(&self) {
        kill_process(self.pid(), Signal::CONT).expect("Redis cannot be resumed");
    }

    /// Forgets everything.
    pub async fn flush(&self) {
        assert_eq!(self.say("FLUSHALL").await, "+OK");
    }

    /// Says one command, its words separated by spaces, and returns the first line of the answer.
    ///
    /// # Panics
    /// When there is no answer.
    pub async fn say(&self, command: &str) -> String {
        let answer = async {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).await?;
            stream
                .write_all(format!("{command}\r\n").as_bytes())
                .await?;
            let mut line = String::new();
            BufReader::new(stream).read_line(&mut line).await?;
            std::io::Result::Ok(line.trim_end().to_owned())
        };
        timeout(PATIENCE, answer)
            .await
            .expect("Redis does not answer")
            .expect("Redis cannot be asked")
    }

    fn pid(&self) -> Pid {
        let id = self.child.id().expect("Redis was killed");
        Pid::from_raw(id.cast_signed()).expect("a process has a number")
    }
}

pub(super) fn free_port() -> u16 {
    std::iter::repeat_with(|| fastrand::u16(PORTS))
        .take(1_000)
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .expect("no free port on 127.0.0.1")
}

/// A Redis that answers, or nothing when it ended at once.
async fn launch(directory: &TempDir, port: u16, keeps: bool) -> std::io::Result<Option<Child>> {
    let keep = if keeps { "yes" } else { "no" };
    let mut child = Command::new("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .args(["--daemonize", "no", "--save", "", "--appendonly", keep])
        .args(["--appendfsync", "always"])
        .arg("--dir")
        .arg(directory.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let mut said = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
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
        .expect("redis-server does not get ready")?;
    // Nobody may stop listening to it: it would wait when the pipe is full.
    tokio::spawn(async move { while let Ok(Some(_)) = said.next_line().await {} });
    Ok(ready.then_some(child))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_answers_again_after_a_pause_and_is_empty_after_a_restart() {
        let Some(mut redis) = PrivateRedis::start().await else {
            return;
        };
        let url = redis.url();

        redis.pause().await;
        redis.resume();
        assert_eq!(redis.say("SET a 1").await, "+OK");
        redis.kill().await;
        redis.restart().await;

        assert_eq!(redis.say("EXISTS a").await, ":0");
        assert_eq!(redis.url(), url);
    }

    #[tokio::test]
    async fn a_durable_one_has_everything_after_a_restart() {
        let Some(mut redis) = PrivateRedis::start_durable().await else {
            return;
        };

        assert_eq!(redis.say("SET a 1").await, "+OK");
        redis.restart().await;

        assert_eq!(redis.say("EXISTS a").await, ":1");
    }
}
