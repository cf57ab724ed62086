//! Requests per second of an HTTP endpoint on loopback.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

/// Requests per second, and the 99th percentile in milliseconds.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Requests per second.
    pub rps: f64,
    /// The 99th percentile in milliseconds.
    pub p99_ms: f64,
}

/// A server for one router, until it is dropped.
pub struct Served {
    address: SocketAddr,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Served {
    /// Serves on a free port of loopback.
    pub async fn start(router: Router) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let task = tokio::spawn(async move {
            // It ends with the process or with the drop.
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self { address, task })
    }

    /// What a path gives as a cookie.
    pub async fn cookie(&self, path: &'static str) -> anyhow::Result<String> {
        let mut sender = connect(self.address).await?;
        let request = http::Request::post(path)
            .header("host", "localhost")
            .body(Full::new(Bytes::new()))?;
        let response = sender.send_request(request).await?;
        let cookie = response
            .headers()
            .get("set-cookie")
            .and_then(|v| v.to_str().ok()?.split(';').next());
        cookie
            .map(str::to_owned)
            .ok_or_else(|| anyhow::anyhow!("{path} gave no cookie"))
    }

    /// Posts to a path over some connections for a while. The key of each request comes from its
    /// number: `keys` of them in turn, or a new one each time.
    pub async fn post(
        &self,
        path: &'static str,
        keys: Option<u64>,
        cookie: &str,
        connections: usize,
        time: Duration,
    ) -> anyhow::Result<Load> {
        let numbers = Arc::new(AtomicU64::new(0));
        let run: u64 = u64::try_from(
            std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)?
                .as_nanos()
                % 1_000_000_000_000,
        )?;
        let mut workers = tokio::task::JoinSet::new();
        let begun = Instant::now();
        for _ in 0..connections {
            let numbers = Arc::clone(&numbers);
            let (address, cookie) = (self.address, cookie.to_owned());
            workers.spawn(async move {
                let mut sender = connect(address).await?;
                let mut times = Vec::new();
                while begun.elapsed() < time {
                    let n = numbers.fetch_add(1, Ordering::Relaxed);
                    let key = match keys {
                        Some(keys) => format!("\"{}-{}\"", &path[1..], n % keys),
                        None => format!("\"{run}-{n}\""),
                    };
                    let request = http::Request::post(path)
                        .header("host", "localhost")
                        .header("content-type", "application/json")
                        .header("idempotency-key", key)
                        .header("cookie", &cookie)
                        .body(Full::new(Bytes::from_static(b"{\"amount\":7}")))?;
                    let sent = Instant::now();
                    let response = sender.send_request(request).await?;
                    let status = response.status();
                    response.into_body().collect().await?;
                    anyhow::ensure!(status.is_success(), "{path} answered {status}");
                    times.push(sent.elapsed());
                }
                anyhow::Ok(times)
            });
        }
        let mut times = Vec::new();
        while let Some(done) = workers.join_next().await {
            times.extend(done??);
        }
        #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
        let rps = times.len() as f64 / begun.elapsed().as_secs_f64();
        Ok(Load {
            rps,
            p99_ms: crate::percentile(&mut times, 0.99),
        })
    }
}

async fn connect(address: SocketAddr) -> anyhow::Result<SendRequest<Full<Bytes>>> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}
