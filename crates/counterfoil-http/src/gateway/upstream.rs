//! A service behind the gateway: its address, and the connections to it.
//!
//! # Promise
//! A connection is used for one request at a time, and again only when the answer before was read
//! to its end. One that was closed meanwhile is not used. Connections in use are bounded, and so
//! are those that wait.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Body;
use counterfoil_engine::pipeline::policy::bulkhead::Size;
use counterfoil_engine::pipeline::{Limits, LimitsError, UPSTREAM};
use http::HeaderValue;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;

use super::wire::{Line, Wire};

/// A connection that has waited for longer is not used: many services close them after 5 s, and
/// may do so at this very moment.
const IDLE: Duration = Duration::from_secs(4);
/// Connections that wait, for each service.
const IDLE_MOST: usize = 64;
/// The largest head of an answer.
const HEAD_BYTES: usize = 64 * 1024;

/// How a service is reached.
///
/// | setting | default | what it is |
/// |---|---|---|
/// | `connect_timeout` | 3 s | to find the address and connect, or to wait for a free connection |
/// | `timeout` | 30 s | silence after the last byte of the request, until the answer begins |
/// | `idle_timeout` | 5 min | silence between two pieces of an answer |
/// | `connections` | 512 | at one time |
/// | `limits` | those of [`Limits`], 512 calls and 512 waiting, attempts not cut | see [`resilient`](super::resilient) |
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamSettings {
    /// To find the address and connect, or to wait for a free connection.
    pub connect_timeout: Duration,
    /// Silence after the last byte of the request, until the answer begins.
    pub timeout: Duration,
    /// Silence between two pieces of an answer.
    pub idle_timeout: Duration,
    /// Connections in use at one time.
    pub connections: usize,
    /// How often calls are made again, and when none are made. `attempt` is for reads that may be
    /// made again; the longest time leaves them to `timeout`.
    pub limits: Limits,
}

impl Default for UpstreamSettings {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(3),
            timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(300),
            connections: 512,
            limits: Limits {
                // A slow read is no failed one.
                attempt: Duration::MAX,
                bulkhead: Size {
                    limit: 512,
                    queue: 512,
                },
                ..Limits::default()
            },
        }
    }
}

/// An upstream that cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UpstreamError {
    /// Not a URL.
    #[error("`{0}` is not an address such as http://127.0.0.1:8000")]
    Url(String),
    /// TLS.
    #[error(
        "https is not supported towards services: let the gateway run beside the service and use http://, or put a local proxy between that speaks TLS"
    )]
    Https,
    /// Something else than HTTP.
    #[error("the scheme `{0}` is not supported: use http://")]
    Scheme(String),
    /// More than an address.
    #[error("an upstream is an address only: leave out user, path, query and fragment")]
    MoreThanAnAddress,
    /// A limit of zero.
    #[error("`{0}` must be greater than zero")]
    Zero(&'static str),
    /// Limits that cannot be.
    #[error(transparent)]
    Limits(#[from] LimitsError),
}

/// A service behind the gateway.
#[derive(Debug)]
pub struct Upstream {
    name: String,
    host: String,
    port: u16,
    authority: HeaderValue,
    settings: UpstreamSettings,
    idle: Mutex<VecDeque<Connection>>,
    room: Arc<Semaphore>,
}

impl Upstream {
    /// A service under a name of ours.
    pub fn new(name: &str, url: &str, settings: UpstreamSettings) -> Result<Self, UpstreamError> {
        let parsed = url::Url::parse(url).map_err(|_| UpstreamError::Url(url.to_owned()))?;
        match parsed.scheme() {
            "http" => {}
            "https" => return Err(UpstreamError::Https),
            other => return Err(UpstreamError::Scheme(other.to_owned())),
        }
        let bare = parsed.username().is_empty() && parsed.password().is_none();
        if !bare || parsed.path() != "/" || parsed.query().or(parsed.fragment()).is_some() {
            return Err(UpstreamError::MoreThanAnAddress);
        }
        for (name, zero) in [
            ("connect-timeout", settings.connect_timeout.is_zero()),
            ("timeout", settings.timeout.is_zero()),
            ("idle-timeout", settings.idle_timeout.is_zero()),
            ("connections", settings.connections == 0),
        ] {
            if zero {
                return Err(UpstreamError::Zero(name));
            }
        }
        settings.limits.validate()?;
        let wrong = || UpstreamError::Url(url.to_owned());
        let host = parsed.host_str().ok_or_else(wrong)?;
        let authority = match parsed.port() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        };
        Ok(Self {
            name: name.to_owned(),
            // Names are looked up without the brackets that a URL needs.
            host: host.trim_matches(['[', ']']).to_owned(),
            port: parsed.port().unwrap_or(80),
            authority: HeaderValue::from_str(&authority).map_err(|_| wrong())?,
            idle: Mutex::default(),
            room: Arc::new(Semaphore::new(
                settings.connections.min(Semaphore::MAX_PERMITS),
            )),
            settings,
        })
    }

    /// Our name for it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its name among the dependencies of a process.
    pub fn destination(&self) -> String {
        format!("{UPSTREAM}{}", self.name)
    }

    /// Its address, as it stands in a Host header.
    pub fn authority(&self) -> &HeaderValue {
        &self.authority
    }

    /// How it is reached.
    pub fn settings(&self) -> &UpstreamSettings {
        &self.settings
    }

    /// Leave to use a connection.
    pub(super) async fn place(&self) -> Option<OwnedSemaphorePermit> {
        let place = Arc::clone(&self.room).acquire_owned();
        let place = tokio::time::timeout(self.settings.connect_timeout, place).await;
        place.ok()?.ok()
    }

    /// A connection that waits and that nobody has closed.
    pub(super) fn waiting(&self) -> Option<Connection> {
        loop {
            let connection = self.idle().pop_back()?;
            let fresh = connection.since.elapsed() < IDLE;
            if fresh && connection.sender.is_ready() && connection.line.is_quiet() {
                return Some(connection);
            }
        }
    }

    /// A new connection.
    pub(super) async fn connect(&self) -> std::io::Result<Connection> {
        let stream = TcpStream::connect((self.host.as_str(), self.port));
        let stream = tokio::time::timeout(self.settings.connect_timeout, stream)
            .await
            .map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))??;
        let _ = stream.set_nodelay(true);
        let line = Line::new(stream);
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(HEAD_BYTES)
            .handshake(TokioIo::new(Wire(Arc::clone(&line))))
            .await
            .map_err(std::io::Error::other)?;
        let task = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to a service ended badly");
            }
        });
        Ok(Connection {
            sender,
            line,
            task: task.abort_handle(),
            since: Instant::now(),
        })
    }

    /// Keeps a connection whose answer was read to its end, once it is ready for another request.
    pub(super) fn keep(self: &Arc<Self>, mut connection: Connection) {
        let upstream = Arc::clone(self);
        tokio::spawn(async move {
            if connection.sender.ready().await.is_ok() {
                connection.since = Instant::now();
                let mut idle = upstream.idle();
                idle.retain(|c| c.since.elapsed() < IDLE && !c.sender.is_closed());
                if idle.len() < IDLE_MOST {
                    idle.push_back(connection);
                }
            }
        });
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, VecDeque<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection to a service. When it is dropped it is closed.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) sender: http1::SendRequest<Body>,
    pub(super) line: Arc<Line>,
    task: AbortHandle,
    since: Instant,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.line.seal();
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_is_a_plain_address() {
        let new = |url: &str| Upstream::new("a", url, UpstreamSettings::default());

        assert_eq!(new("http://shop:8000").unwrap().authority(), "shop:8000");
        assert_eq!(new("http://[::1]:8000/").unwrap().host, "::1");
        assert_eq!(new("http://shop").unwrap().port, 80);
        assert_eq!(new("https://shop").unwrap_err(), UpstreamError::Https);
        assert!(matches!(new("ftp://shop"), Err(UpstreamError::Scheme(_))));
        assert!(matches!(new("shop"), Err(UpstreamError::Url(_))));
        for url in [
            "http://a:b@shop",
            "http://shop/v1",
            "http://shop?x",
            "http://shop#x",
        ] {
            assert_eq!(
                new(url).unwrap_err(),
                UpstreamError::MoreThanAnAddress,
                "{url}"
            );
        }
    }
}
