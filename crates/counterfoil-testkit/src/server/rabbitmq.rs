//! A RabbitMQ of a test's own, to freeze, kill and start again.
//!
//! # Promise
//! It listens on free ports of 127.0.0.1 and does not outlive its handle. A kill is a real SIGKILL
//! and a pause a real SIGSTOP. What it has confirmed is there after a restart, and its address is the
//! same.
//!
//! It takes seconds to start: a test that does not disturb its server uses the common one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use super::redis::free_port;
use super::{current_test, skipped};

/// Long enough for a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between two looks at a file.
const LOOK: Duration = Duration::from_millis(50);
/// What RabbitMQ says when clients can come.
const READY: &str = "Server startup complete";
/// What Debian has in PATH changes the user and hides the output; this is behind it.
const BEHIND: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";

/// A RabbitMQ that belongs to one test.
#[derive(Debug)]
pub struct PrivateRabbitMq {
    ports: Ports,
    settings: String,
    child: Child,
    /// The port mapper of Erlang, without which no node starts.
    _mapper: Child,
    directory: TempDir,
}

#[derive(Debug, Clone, Copy)]
struct Ports {
    amqp: u16,
    mapper: u16,
    nodes: u16,
}

impl PrivateRabbitMq {
    /// Starts one. Absent when it is not installed: skip the test.
    ///
    /// # Panics
    /// When it is not installed and `CI` is `true`, or when it does not start.
    pub async fn start() -> Option<Self> {
        Self::start_with("").await
    }

    /// Starts one with more lines in its `rabbitmq.conf`.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    pub async fn start_with(settings: &str) -> Option<Self> {
        let Some(program) = program() else {
            let reason = "RabbitMQ is not installed: cargo xtask servers --with rabbitmq";
            skipped(&current_test(), reason);
            return None;
        };
        let directory = tempfile::tempdir().expect("no temporary directory");
        for _ in 0..20 {
            let ports = Ports {
                amqp: free_port(),
                mapper: free_port(),
                nodes: free_port(),
            };
            let mapper = Command::new("epmd")
                .args(["-port", &ports.mapper.to_string()])
                .args(["-address", "127.0.0.1"])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .kill_on_drop(true)
                .spawn()
                .expect("epmd cannot be started");
            // Nothing when somebody else was faster at one of the ports.
            if let Some(child) = launch(&program, directory.path(), ports, settings).await {
                return Some(Self {
                    ports,
                    settings: settings.to_owned(),
                    child,
                    _mapper: mapper,
                    directory,
                });
            }
        }
        panic!("RabbitMQ does not start on any port");
    }

    /// Its address.
    pub fn url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f", self.ports.amqp)
    }

    /// Ends it without warning.
    ///
    /// # Panics
    /// When that is not possible.
    pub async fn kill(&mut self) {
        self.child.kill().await.expect("RabbitMQ cannot be killed");
    }

    /// Starts it again at the same address, with everything that it has confirmed.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn restart(&mut self) {
        self.kill().await;
        let program = program().expect("RabbitMQ was there");
        let mut attempts = 0;
        self.child = loop {
            let directory = self.directory.path();
            match launch(&program, directory, self.ports, &self.settings).await {
                Some(child) => break child,
                // The port mapper may not have noticed yet that the last one is gone.
                None if attempts < 5 => attempts += 1,
                None => panic!("RabbitMQ does not start again"),
            }
        };
    }

    /// Waits until these quorum queues survive a kill. RabbitMQ writes the names of new ones down some
    /// seconds late, and one that it does not find there is empty after a restart, and stands still.
    ///
    /// # Panics
    /// When they are not written down in time.
    pub async fn until_kept(&self, queues: &[String]) {
        let quorum = self.directory.path().join("data/private@localhost/quorum");
        let names = quorum.join("private@localhost/names.dets");
        let kept = async {
            loop {
                let written = fs::read(&names).unwrap_or_default();
                let is_there = |name: &String| {
                    let name = format!("%2F_{name}");
                    let mut places = written.windows(name.len());
                    places.any(|place| place == name.as_bytes())
                };
                if queues.iter().all(is_there) {
                    return;
                }
                sleep(LOOK).await;
            }
        };
        let kept = timeout(PATIENCE, kept).await;
        kept.expect("RabbitMQ does not write down its queues");
    }

    /// Freezes it: the system still accepts connections in its name, and nobody answers.
    ///
    /// # Panics
    /// When it does not stand still.
    pub async fn pause(&self) {
        let pid = self.pid();
        kill_process(pid, Signal::STOP).expect("RabbitMQ cannot be frozen");
        let still = tokio::task::spawn_blocking(move || {
            waitid(
                WaitId::Pid(pid),
                WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT,
            )
        });
        timeout(PATIENCE, still)
            .await
            .expect("RabbitMQ does not stand still")
            .expect("the wait ended badly")
            .expect("RabbitMQ cannot be waited for");
    }

    /// Lets it go on.
    ///
    /// # Panics
    /// When that is not possible.
    pub fn resume(&self) {
        kill_process(self.pid(), Signal::CONT).expect("RabbitMQ cannot be resumed");
    }

    fn pid(&self) -> Pid {
        let id = self.child.id().expect("RabbitMQ was killed");
        Pid::from_raw(id.cast_signed()).expect("a process has a number")
    }
}

fn program() -> Option<PathBuf> {
    let behind = PathBuf::from(BEHIND);
    if behind.is_file() {
        return Some(behind);
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .find(|d| d.join("rabbitmq-server").is_file() && d.join("rabbitmq-env").is_file())
        .map(|directory| directory.join("rabbitmq-server"))
}

/// A RabbitMQ that answers, or nothing when it ended at once.
async fn launch(program: &Path, directory: &Path, ports: Ports, settings: &str) -> Option<Child> {
    let at = |name: &str| directory.join(name);
    let amqp = ports.amqp;
    let settings = format!(
        "listeners.tcp.1 = 127.0.0.1:{amqp}\nloopback_users = none\n\
         raft.wal_max_size_bytes = 16000000\n{settings}\n"
    );
    fs::write(at("rabbitmq.conf"), settings).expect("no settings");
    fs::write(at("rabbitmq-env.conf"), "").expect("no settings");
    fs::write(at("enabled_plugins"), "[].\n").expect("no settings");
    let mut child = Command::new(program)
        .current_dir(directory)
        .env("HOME", directory)
        .env("ERL_EPMD_ADDRESS", "127.0.0.1")
        .env("ERL_EPMD_PORT", ports.mapper.to_string())
        // The script becomes the server: its signals are ours.
        .env("detached", "true")
        .env("RABBITMQ_NODENAME", "private@localhost")
        .env("RABBITMQ_DIST_PORT", ports.nodes.to_string())
        .env(
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
            "-kernel inet_dist_use_interface {127,0,0,1}",
        )
        .env("RABBITMQ_CONFIG_FILE", at("rabbitmq.conf"))
        .env("RABBITMQ_CONF_ENV_FILE", at("rabbitmq-env.conf"))
        .env("RABBITMQ_ENABLED_PLUGINS_FILE", at("enabled_plugins"))
        .env("RABBITMQ_MNESIA_BASE", at("data"))
        .env("RABBITMQ_LOG_BASE", at("log"))
        .env("RABBITMQ_LOGS", "-")
        .env("RABBITMQ_GENERATED_CONFIG_DIR", at("config"))
        .env("RABBITMQ_PID_FILE", at("pid"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("RabbitMQ cannot be started");
    let mut said = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
    let ready = async {
        while let Ok(Some(line)) = said.next_line().await {
            if line.contains(READY) {
                return true;
            }
        }
        false
    };
    let ready = timeout(PATIENCE, ready).await;
    // Nobody may stop listening to it: it would wait when the pipe is full.
    tokio::spawn(async move { while let Ok(Some(_)) = said.next_line().await {} });
    ready.expect("RabbitMQ does not get ready").then_some(child)
}
