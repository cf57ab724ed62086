//! The service behind the gateway: a program in Python.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::client::{self, Answer};

/// A service that can be killed and started again on the same port.
pub(crate) struct Upstream {
    child: Option<Child>,
    pub(crate) port: u16,
    directory: TempDir,
}

impl Upstream {
    pub(crate) fn start() -> Self {
        let mut upstream = Self {
            child: None,
            port: 0,
            directory: tempfile::tempdir().unwrap(),
        };
        upstream.run();
        upstream
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("effects")
    }

    /// Starts it again after [`Upstream::kill`].
    pub(crate) fn run(&mut self) {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/gateway/upstream.py");
        let mut child = Command::new("python3")
            .arg(script)
            .arg(self.port.to_string())
            .arg(self.file())
            .stdout(Stdio::piped())
            .spawn()
            .expect("these tests need python3");
        let mut line = String::new();
        let out = child.stdout.take().unwrap();
        BufReader::new(out).read_line(&mut line).unwrap();
        self.port = line.trim().parse().expect("the service did not start");
        self.child = Some(child);
    }

    pub(crate) fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        client::get(([127, 0, 0, 1], self.port).into(), path).await
    }

    pub(crate) async fn state(&self) -> Value {
        self.get("/control/state").await.json()
    }

    pub(crate) async fn calls(&self) -> u64 {
        self.state().await["calls"].as_u64().unwrap()
    }

    pub(crate) async fn effects(&self) -> usize {
        self.state().await["effects"].as_array().unwrap().len()
    }

    /// One request that stands still goes on.
    pub(crate) async fn go(&self) {
        self.get("/control/go").await;
    }

    /// Until so many requests stand still.
    pub(crate) async fn waiting(&self, n: u64) {
        self.until(|state| state["waiting"] == n).await;
    }

    pub(crate) async fn until(&self, fits: impl Fn(&Value) -> bool) -> Value {
        until("another state of the service", async || {
            Some(self.state().await).filter(&fits)
        })
        .await
    }
}

/// Polls until the answer is there.
pub(crate) async fn until<T>(what: &str, look: impl AsyncFn() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "still not: {what}"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
