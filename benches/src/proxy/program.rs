//! Programs that run beside the bench.

use std::ffi::OsStr;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;

const START: Duration = Duration::from_secs(30);
const STOP: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(20);

/// A program that is told to end when this is dropped.
pub struct Program {
    name: &'static str,
    child: Child,
}

impl Program {
    /// Starts a program, with what it says in a file of the directory.
    pub fn start<A: AsRef<OsStr>>(
        name: &'static str,
        program: &Path,
        args: &[A],
        directory: &Path,
    ) -> anyhow::Result<Self> {
        let log = File::create(directory.join(format!("{name}.log")))?;
        // A thousand callers are more files than a shell usually allows.
        let script = "ulimit -S -n 8192 2>/dev/null; exec \"$0\" \"$@\"";
        let child = Command::new("sh")
            .args(["-c", script])
            .arg(program)
            .args(args)
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        Ok(Self { name, child })
    }

    /// Waits until somebody listens at an address.
    pub fn wait_for(&mut self, address: SocketAddr, directory: &Path) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            let ended = self.child.try_wait()?;
            if ended.is_none() && TcpStream::connect(address).is_ok() {
                return Ok(());
            }
            if ended.is_some() || begun.elapsed() > START {
                let log = directory.join(format!("{}.log", self.name));
                let said = std::fs::read_to_string(log).unwrap_or_default();
                anyhow::bail!("{} does not listen at {address}\n{said}", self.name);
            }
            std::thread::sleep(POLL);
        }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its memory in MB: now (`VmRSS`), or at its highest (`VmHWM`).
    pub fn memory_mb(&self, field: &str) -> f64 {
        crate::memory_of(&format!("/proc/{}/status", self.id()), field)
    }

    /// The sockets that it has open.
    pub fn sockets(&self) -> usize {
        let files = std::fs::read_dir(format!("/proc/{}/fd", self.id()));
        let links = files.into_iter().flatten().flatten();
        links
            .filter_map(|file| std::fs::read_link(file.path()).ok())
            .filter(|link| link.to_string_lossy().starts_with("socket:"))
            .count()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Not by force: nginx would leave its workers behind.
        let script = format!("kill -s TERM {}", self.id());
        let _ = Command::new("sh").args(["-c", &script]).status();
        let begun = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if begun.elapsed() > STOP {
                eprintln!("{} does not end and is killed", self.name);
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(POLL);
        }
    }
}

/// A port of loopback that nobody listens on.
pub fn free_port() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}
