//! The service behind the gateway: a program in Python that counts what it does.

use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::client::{Answer, ask};
use crate::home::until;

pub struct Upstream {
    child: Child,
    pub address: String,
}

impl Upstream {
    /// Starts it on any port; its effects are remembered in this directory.
    pub fn start(directory: &Path) -> Self {
        Self::start_at(directory, "0")
    }

    /// Kills it where it stands, and starts it again at the same address.
    pub fn killed(self, directory: &Path) -> Self {
        let port = self.address.rsplit(':').next().unwrap().to_owned();
        drop(self);
        Self::start_at(directory, &port)
    }

    fn start_at(directory: &Path, port: &str) -> Self {
        let script = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../counterfoil-http/tests/gateway/upstream.py"
        );
        let file: PathBuf = directory.join("effects");
        let mut child = Command::new("python3")
            .args([script, port])
            .arg(file)
            .stdout(Stdio::piped())
            .spawn()
            .expect("these tests need python3");
        let mut line = String::new();
        let out = child.stdout.take().unwrap();
        BufReader::new(out).read_line(&mut line).unwrap();
        let address = format!("127.0.0.1:{}", line.trim());
        assert!(TcpStream::connect(&address).is_ok(), "no service");
        Self { child, address }
    }

    pub fn get(&self, path: &str) -> Answer {
        ask(&self.address, "GET", path, &[], b"")
    }

    pub fn state(&self) -> Value {
        self.get("/control/state").json()
    }

    pub fn calls(&self) -> u64 {
        self.state()["calls"].as_u64().unwrap()
    }

    pub fn effects(&self) -> usize {
        self.state()["effects"].as_array().unwrap().len()
    }

    pub fn go(&self) {
        self.get("/control/go");
    }

    #[track_caller]
    pub fn waiting(&self, n: u64) {
        until("a request that stands still", || {
            (self.state()["waiting"] == n).then_some(())
        });
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
