//! A service behind the gateway: its address, and the connections to it.
//!
//! # Promise
//! A connection is used for one request at a time, and again only when the answer before was read
//! to its end. One that was closed meanwhile is not used. Connections in use are bounded, and so
//! are those that wait, in number and in time. A call that has a place among the calls of its service
//! ([`resilient`](super::resilient)) is within the bounds already, and is not counted twice.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use counterfoil_engine::pipeline::policy::bulkhead::Size;
use counterfoil_engine::pipeline::{Limits, LimitsError, UPSTREAM};
use http::HeaderValue;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::connection::Connection;
use super::hands;

/// A connection that has waited for longer is not used: many services close them after 5 s, and
/// may do so at this very moment.
const IDLE: Duration = Duration::from_secs(4);
/// Connections that wait, for each service.
const IDLE_MOST: usize = 64;

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
    /// For each thread of the gateway.
    idle: Box<[Mutex<Idle>]>,
    room: Arc<Semaphore>,
    /// One for each connection that may still be opened.
    open: Arc<Semaphore>,
}

/// Connections that wait.
#[derive(Debug, Default)]
struct Idle {
    /// With the moment since when; the longest one first.
    connections: VecDeque<(Instant, Connection)>,
    /// Whether somebody closes those that wait for too long.
    tended: bool,
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
        let most = settings.connections.min(Semaphore::MAX_PERMITS);
        Ok(Self {
            name: name.to_owned(),
            // Names are looked up without the brackets that a URL needs.
            host: host.trim_matches(['[', ']']).to_owned(),
            port: parsed.port().unwrap_or(80),
            authority: HeaderValue::from_str(&authority).map_err(|_| wrong())?,
            idle: (0..hands::numbers()).map(|_| Mutex::default()).collect(),
            room: Arc::new(Semaphore::new(most)),
            open: Arc::new(Semaphore::new(most)),
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

    /// Leave to use a connection, for a call that has no place.
    pub(super) async fn place(&self) -> Option<OwnedSemaphorePermit> {
        let place = Arc::clone(&self.room).acquire_owned();
        let place = tokio::time::timeout(self.settings.connect_timeout, place).await;
        place.ok()?.ok()
    }

    /// A connection that waits and that nobody has closed. One of another thread is taken only when
    /// no more may be open.
    pub(super) fn waiting(&self) -> Option<Connection> {
        let (mine, all) = (hands::mine(), self.idle.len());
        let here = self.waiting_at(mine);
        if here.is_some() || self.open.available_permits() > 0 {
            return here;
        }
        (mine + 1..mine + all).find_map(|home| self.waiting_at(home % all))
    }

    fn waiting_at(&self, home: usize) -> Option<Connection> {
        loop {
            let (since, connection) = self.idle(home).connections.pop_back()?;
            let fresh = since.elapsed() < IDLE;
            if fresh && connection.is_ready() && connection.line.is_quiet() {
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
        // Without a permit it is one too many for a moment: another one is about to wait or to end.
        let open = Arc::clone(&self.open).try_acquire_owned().ok();
        Connection::open(stream, open).await
    }

    /// Keeps a connection whose answer was read to its end, once it is ready for another request.
    pub(super) fn keep(self: &Arc<Self>, mut connection: Connection) {
        if connection.is_ready() {
            return self.lay_aside(connection);
        }
        let upstream = Arc::clone(self);
        tokio::spawn(async move {
            // A service that has answered early may never read the rest of the request.
            let ready = tokio::time::timeout(upstream.settings.timeout, connection.ready());
            if matches!(ready.await, Ok(Ok(()))) {
                upstream.lay_aside(connection);
            }
        });
    }

    fn lay_aside(self: &Arc<Self>, connection: Connection) {
        connection.rest();
        let home = connection.home;
        let mut idle = self.idle(home);
        if idle.connections.len() < IDLE_MOST {
            idle.connections.push_back((Instant::now(), connection));
        }
        if !std::mem::replace(&mut idle.tended, true) {
            tokio::spawn(tend(Arc::downgrade(self), home));
        }
    }

    /// Closes connections that have waited for too long. Answers whether some are left.
    fn close_stale(&self, home: usize) -> bool {
        let mut idle = self.idle(home);
        let stale = |(since, _): &(Instant, Connection)| since.elapsed() >= IDLE;
        while idle.connections.front().is_some_and(stale) {
            idle.connections.pop_front();
        }
        idle.tended = !idle.connections.is_empty();
        idle.tended
    }

    fn idle(&self, home: usize) -> std::sync::MutexGuard<'_, Idle> {
        self.idle[home]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes connections that wait for too long, until none is left: nobody else would notice that the
/// service has closed them.
async fn tend(upstream: Weak<Upstream>, home: usize) {
    loop {
        tokio::time::sleep(IDLE / 2).await;
        let Some(upstream) = upstream.upgrade() else {
            return;
        };
        if !upstream.close_stale(home) {
            return;
        }
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

    #[tokio::test]
    async fn connections_that_wait_for_too_long_are_closed() {
        use tokio::io::AsyncReadExt as _;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let upstream = Upstream::new("x", &url, UpstreamSettings::default()).unwrap();
        let upstream = Arc::new(upstream);
        let mut connection = upstream.connect().await.unwrap();
        let (mut service, _) = listener.accept().await.unwrap();
        connection.ready().await.unwrap();
        tokio::time::pause();

        upstream.keep(connection);
        let closed = tokio::time::timeout(2 * IDLE, service.read_u8()).await;

        assert!(closed.unwrap().is_err());
        assert!(upstream.idle(0).connections.is_empty());
        tokio::time::sleep(IDLE).await;
        assert!(!upstream.idle(0).tended);
    }

    #[tokio::test]
    async fn a_connection_of_another_thread_is_taken_before_one_too_many_is_opened_and_goes_home_again()
     {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let settings = UpstreamSettings {
            connections: 1,
            ..UpstreamSettings::default()
        };
        let upstream = Arc::new(Upstream::new("x", &url, settings).unwrap());
        let elsewhere = hands::Place::next();
        let opener = Arc::clone(&upstream);
        let opened = elsewhere.runtime().spawn(async move {
            let mut connection = opener.connect().await.unwrap();
            connection.ready().await.unwrap();
            opener.keep(connection);
            hands::mine()
        });
        let home = opened.await.unwrap();
        let (_service, _) = listener.accept().await.unwrap();

        let connection = upstream.waiting().unwrap();
        assert!(upstream.waiting().is_none());
        upstream.keep(connection);

        assert!(home > 0);
        assert_eq!(upstream.idle(home).connections.len(), 1);
        assert!(upstream.idle(0).connections.is_empty());
    }
}
