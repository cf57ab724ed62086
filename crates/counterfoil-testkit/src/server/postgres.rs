//! A PostgreSQL of a test's own, with replicas that can be promoted.
//!
//! # Promise
//! It listens on a free port of 127.0.0.1 and does not outlive its handle. A kill is a real one: what
//! was not written to the log is gone. A replica follows asynchronously, until it is cut off.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, geteuid, kill_process};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::redis::free_port;
use super::{current_test, skipped};

/// Long enough for a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(60);
/// Where Debian keeps the programs of the server: not in `PATH`, and one directory for each version.
const VERSIONS: &str = "/usr/lib/postgresql";

/// A PostgreSQL that belongs to one test.
#[derive(Debug)]
pub struct PrivatePostgres {
    programs: Programs,
    port: u16,
    child: Child,
    directory: TempDir,
}

/// The programs of the server, and who may run them.
#[derive(Debug, Clone)]
struct Programs {
    directory: PathBuf,
    /// The server does not run as root.
    user: Option<(u32, u32)>,
}

impl PrivatePostgres {
    /// Starts one. Absent when PostgreSQL is not installed: skip the test.
    ///
    /// # Panics
    /// When it is not installed and `CI` is `true`, or when it does not start.
    pub async fn start() -> Option<Self> {
        let Some(programs) = Programs::find() else {
            skipped(&current_test(), "the programs of PostgreSQL are not here");
            return None;
        };
        let directory = programs.directory_of_its_own();
        let data = directory.path().join("data");
        let mut initdb = programs.command("initdb");
        initdb.args(["-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]);
        run(initdb.args(["-U", "postgres", "-D"]).arg(&data)).await;
        Some(Self::launch(programs, directory).await)
    }

    /// Starts a replica that follows this one.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn replica(&self) -> Self {
        let directory = self.programs.directory_of_its_own();
        let data = directory.path().join("data");
        let mut copy = self.programs.command("pg_basebackup");
        copy.args(["-h", "127.0.0.1", "-p", &self.port.to_string()]);
        copy.args(["-U", "postgres", "-R", "-X", "stream", "--no-sync"]);
        run(copy.args(["--checkpoint", "fast", "-D"]).arg(&data)).await;
        Self::launch(self.programs.clone(), directory).await
    }

    async fn launch(programs: Programs, directory: TempDir) -> Self {
        let port = free_port();
        let mut server = programs.command("postgres");
        server.arg("-D").arg(directory.path().join("data"));
        let sockets = format!("unix_socket_directories={}", directory.path().display());
        for setting in ["listen_addresses=127.0.0.1", "wal_level=replica", &sockets] {
            server.args(["-c", setting]);
        }
        server.args(["-c", &format!("port={port}")]);
        let child = server
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("postgres cannot be started");
        let started = Self {
            programs,
            port,
            child,
            directory,
        };
        started.until_ready().await;
        started
    }

    async fn until_ready(&self) {
        let ready = async {
            loop {
                let mut ask = self.programs.command("pg_isready");
                ask.args(["-q", "-U", "postgres", "-p", &self.port.to_string()]);
                // Through its own socket: another server's port cannot answer for it.
                ask.arg("-h").arg(self.directory.path());
                if ask.status().await.is_ok_and(|status| status.success()) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(PATIENCE, ready)
            .await
            .expect("PostgreSQL does not start");
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The address of its first database.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// Ends it at once, as a crash would: nothing more is written, and nobody is told.
    pub async fn crash(&mut self) {
        let id = self.child.id().expect("PostgreSQL has ended");
        let pid = Pid::from_raw(id.cast_signed()).expect("a process has a number");
        // The processes of its clients end with it.
        kill_process(pid, Signal::QUIT).expect("PostgreSQL cannot be ended");
        timeout(PATIENCE, self.child.wait())
            .await
            .expect("PostgreSQL does not end")
            .expect("PostgreSQL cannot be waited for");
    }

    /// Makes a replica the primary.
    ///
    /// # Panics
    /// When it cannot be promoted.
    pub async fn promote(&self) {
        let mut promote = self.programs.command("pg_ctl");
        let data = self.directory.path().join("data");
        run(promote.args(["promote", "-w", "-D"]).arg(data)).await;
    }
}

impl Programs {
    fn find() -> Option<Self> {
        let versions = std::fs::read_dir(VERSIONS).ok()?.flatten();
        let mut versions: Vec<(u32, PathBuf)> = versions
            .filter_map(|entry| {
                let version = entry.file_name().to_str()?.parse().ok()?;
                Some((version, entry.path().join("bin")))
            })
            .filter(|(_, bin)| bin.join("pg_basebackup").exists())
            .collect();
        versions.sort();
        let user = if geteuid().is_root() {
            Some(account("postgres")?)
        } else {
            None
        };
        Some(Self {
            directory: versions.pop()?.1,
            user,
        })
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.directory.join(program));
        if let Some((user, group)) = self.user {
            command.uid(user).gid(group);
        }
        command.current_dir("/");
        command
    }

    fn directory_of_its_own(&self) -> TempDir {
        let directory = tempfile::tempdir().expect("no temporary directory");
        if let Some((user, group)) = self.user {
            std::os::unix::fs::chown(directory.path(), Some(user), Some(group))
                .expect("the directory cannot be given away");
        }
        directory
    }
}

/// The numbers of a user and of its group.
fn account(name: &str) -> Option<(u32, u32)> {
    let all = std::fs::read_to_string(Path::new("/etc/passwd")).ok()?;
    let line = all
        .lines()
        .find(|line| line.split(':').next() == Some(name))?;
    let mut numbers = line.split(':').skip(2);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

async fn run(command: &mut Command) {
    let done = timeout(PATIENCE, command.stdin(Stdio::null()).output())
        .await
        .expect("a program of PostgreSQL does not end")
        .expect("a program of PostgreSQL cannot be started");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{command:?}: {said}");
}
