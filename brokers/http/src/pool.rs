//! Connections that wait for the next message.
//!
//! # Promise
//! At most as many wait as requests may run at one time, and none lives longer than
//! [`MAX_AGE`] and one request: a change of address or certificate is noticed within a minute, and
//! an endpoint without messages holds no sockets.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

use crate::connect::{ConnectError, Dialer};

/// A connection older than this takes no new request.
const MAX_AGE: Duration = Duration::from_secs(60);
/// Shorter than the five seconds after which common servers hang up: sending into a connection
/// that closes at that moment costs an attempt.
const MAX_IDLE: Duration = Duration::from_secs(4);
/// After a whole answer, a connection is ready again at once or not worth waiting for.
const SETTLING: Duration = Duration::from_millis(20);

/// The request as it is sent.
pub(crate) type Outgoing = Request<Full<Bytes>>;

/// The connections of one endpoint.
pub(crate) struct Pool {
    dialer: Dialer,
    idle: Mutex<Vec<Connection>>,
    max_idle: usize,
    /// The longest that a connection may be in use after it was taken.
    longest_use: Duration,
}

/// One connection, held by whoever uses it.
pub(crate) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    driver: AbortHandle,
    born: Instant,
    used: Instant,
    /// It has carried a request before.
    pub(crate) reused: bool,
}

/// Why a request got no answer.
pub(crate) enum SendError {
    /// Nothing of it was sent: here it is back.
    Unsent(Box<Outgoing>, hyper::Error),
    /// The receiver may have all of it.
    Broken(hyper::Error),
}

impl Pool {
    pub(crate) fn new(dialer: Dialer, max_idle: usize, longest_use: Duration) -> Self {
        Self {
            dialer,
            idle: Mutex::default(),
            max_idle,
            longest_use,
        }
    }

    /// A waiting connection, or a new one.
    pub(crate) async fn take(&self) -> Result<Connection, ConnectError> {
        // A turn of the runtime, so that a connection whose end has arrived in the meantime shows
        // it. Sent into such a connection, a message would be unconfirmed.
        tokio::task::yield_now().await;
        match self.take_idle() {
            Some(connection) => Ok(connection),
            None => self.open().await,
        }
    }

    /// Keeps a connection whose answer was read to the end.
    pub(crate) async fn give_back(&self, mut connection: Connection) {
        // The connection's own task has to notice the end of the answer first.
        if !matches!(
            timeout(SETTLING, connection.sender.ready()).await,
            Ok(Ok(()))
        ) {
            return;
        }
        connection.used = Instant::now();
        connection.reused = true;
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(Connection::is_fit);
        if idle.len() < self.max_idle {
            idle.push(connection);
        }
    }

    fn take_idle(&self) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(Connection::is_fit);
        idle.pop()
    }

    async fn open(&self) -> Result<Connection, ConnectError> {
        let stream = self.dialer.dial().await?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(ConnectError::Unsent)?;
        let born = Instant::now();
        // Whatever happens, the socket is gone after this time.
        let driver = tokio::spawn(timeout(MAX_AGE + self.longest_use, connection));
        Ok(Connection {
            sender,
            driver: driver.abort_handle(),
            born,
            used: born,
            reused: false,
        })
    }
}

impl Connection {
    /// Sends a request and waits for the head of the answer.
    pub(crate) async fn send(
        &mut self,
        request: Outgoing,
    ) -> Result<Response<Incoming>, SendError> {
        self.sender
            .try_send_request(request)
            .await
            .map_err(|mut failed| match failed.take_message() {
                Some(request) => SendError::Unsent(Box::new(request), failed.into_error()),
                None => SendError::Broken(failed.into_error()),
            })
    }

    fn is_fit(&self) -> bool {
        self.sender.is_ready() && self.born.elapsed() < MAX_AGE && self.used.elapsed() < MAX_IDLE
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}
