//! A server that speaks SQS, of a test's own, to freeze and kill.
//!
//! # Promise
//! It listens on a free port of 127.0.0.1, keeps its queues and messages in a temporary directory,
//! and does not outlive its handle. A kill is a real SIGKILL and a pause a real SIGSTOP. After a
//! restart its queues and messages are there again, also those that somebody had received, at the
//! same address. It forgets then which groups of a FIFO queue were busy.

use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use super::{current_test, skipped};

/// Long enough for a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(50);
/// Below the range from which systems take ports for outgoing connections.
const PORTS: std::ops::Range<u16> = 20_000..30_000;
/// Where `cargo xtask` keeps the server, below the cache directory of the user.
const DIRECTORY: &str = "counterfoil/elasticmq-1.7.1";

/// A server that belongs to one test.
#[derive(Debug)]
pub struct PrivateSqs {
    port: u16,
    child: Child,
    library: PathBuf,
    directory: TempDir,
}

impl PrivateSqs {
    /// Starts one. Absent when `cargo xtask servers --with sqs` has never fetched it: skip the test.
    ///
    /// # Panics
    /// When it is not there and `CI` is `true`, or when it does not start.
    pub async fn start() -> Option<Self> {
        let Some(library) = library() else {
            let reason =
                "ElasticMQ is not in the cache: run cargo xtask servers --with sqs -- true";
            skipped(&current_test(), reason);
            return None;
        };
        let directory = tempfile::tempdir().expect("no temporary directory");
        for _ in 0..20 {
            let port = free_port();
            if let Some(child) = launch(&library, &directory, port).await {
                return Some(Self {
                    port,
                    child,
                    library,
                    directory,
                });
            }
        }
        panic!("ElasticMQ does not start on any port");
    }

    /// Its address.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Ends it without warning.
    pub async fn kill(&mut self) {
        self.child.kill().await.expect("ElasticMQ cannot be killed");
    }

    /// Starts it again with what it had, at the same address.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn restart(&mut self) {
        self.kill().await;
        self.child = launch(&self.library, &self.directory, self.port)
            .await
            .expect("ElasticMQ does not start again");
    }

    /// Freezes it: the system still accepts connections in its name, and nobody answers.
    ///
    /// # Panics
    /// When it does not stand still.
    pub async fn pause(&self) {
        let pid = self.pid();
        kill_process(pid, Signal::STOP).expect("ElasticMQ cannot be frozen");
        let still = tokio::task::spawn_blocking(move || {
            waitid(
                WaitId::Pid(pid),
                WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT,
            )
        });
        timeout(PATIENCE, still)
            .await
            .expect("ElasticMQ does not stand still")
            .expect("the wait ended badly")
            .expect("ElasticMQ cannot be waited for");
    }

    /// Lets it go on.
    pub fn resume(&self) {
        kill_process(self.pid(), Signal::CONT).expect("ElasticMQ cannot be resumed");
    }

    fn pid(&self) -> Pid {
        let id = self.child.id().expect("ElasticMQ was killed");
        Pid::from_raw(id.cast_signed()).expect("a process has a number")
    }
}

fn library() -> Option<PathBuf> {
    let given = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let cache = given("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| given("HOME").map(|home| PathBuf::from(home).join(".cache")))?;
    Some(cache.join(DIRECTORY)).filter(|library| library.is_dir())
}

fn free_port() -> u16 {
    std::iter::repeat_with(|| fastrand::u16(PORTS))
        .take(1_000)
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .expect("no free port on 127.0.0.1")
}

/// A server that answers, or nothing when it ended at once.
async fn launch(library: &std::path::Path, directory: &TempDir, port: u16) -> Option<Child> {
    let settings = directory.path().join("elasticmq.conf");
    let data = directory.path().join("data");
    let text = format!(
        "include classpath(\"application.conf\")\n\
         node-address {{ protocol = http, host = \"127.0.0.1\", port = {port}, context-path = \"\" }}\n\
         rest-sqs {{ enabled = true, bind-port = {port}, bind-hostname = \"127.0.0.1\", sqs-limits = strict }}\n\
         rest-stats.enabled = false\n\
         pekko.loglevel = ERROR\n\
         messages-storage {{ enabled = true, driver-class-name = \"org.h2.Driver\", username = \"sa\", \
         password = \"\", prune-data-on-init = false, \
         uri = \"jdbc:h2:file:{data};WRITE_DELAY=0\" }}\n",
        data = data.display()
    );
    tokio::fs::write(&settings, text)
        .await
        .expect("the settings of ElasticMQ cannot be written");
    let mut child = Command::new("java")
        .args(["-XX:+UseSerialGC", "-Xmx512m"])
        .arg(format!("-Dconfig.file={}", settings.display()))
        .arg("-cp")
        .arg(library.join("*"))
        .arg("org.elasticmq.server.Main")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("java cannot be started");
    let deadline = Instant::now() + PATIENCE;
    while !answers(port).await.unwrap_or(false) {
        assert!(Instant::now() < deadline, "ElasticMQ does not get ready");
        if matches!(child.try_wait(), Ok(Some(_))) {
            return None;
        }
        sleep(LOOK).await;
    }
    Some(child)
}

/// Whether it gives a list of its queues.
async fn answers(port: u16) -> std::io::Result<bool> {
    let ask = async {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        let question =
            b"GET /?Action=ListQueues HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(question).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer.starts_with("HTTP/1.1 200") && answer.contains("ListQueuesResponse"))
    };
    match timeout(Duration::from_secs(2), ask).await {
        Ok(answer) => answer,
        Err(_) => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It answers, however busy the machine is.
    async fn in_the_end(port: u16) {
        let deadline = Instant::now() + PATIENCE;
        while !answers(port).await.unwrap_or(false) {
            assert!(Instant::now() < deadline, "ElasticMQ does not answer");
            sleep(LOOK).await;
        }
    }

    #[tokio::test]
    async fn it_answers_again_after_a_pause_and_after_a_restart() {
        let Some(mut sqs) = PrivateSqs::start().await else {
            return;
        };
        let url = sqs.url();

        sqs.pause().await;
        assert!(!answers(sqs.port).await.unwrap_or(false));
        sqs.resume();
        in_the_end(sqs.port).await;
        sqs.kill().await;
        assert!(answers(sqs.port).await.is_err());
        sqs.restart().await;

        in_the_end(sqs.port).await;
        assert_eq!(sqs.url(), url);
    }
}
