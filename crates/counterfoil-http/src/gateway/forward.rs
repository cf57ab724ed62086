//! The call to a service, which knows whether anything was sent.
//!
//! # Promise
//! [`ForwardError::NotSent`] is proven: no byte of the request was handed to a socket, and none
//! will be. Everything else that is no answer is [`ForwardError::Unanswered`]. A request is sent
//! at most once; a connection that turns out to be closed before anything was sent is exchanged
//! for another one, which the service cannot notice.
//! # When it is dropped
//! The connection is closed, and with it the request.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use counterfoil_engine::pipeline::spent;
use http::header::{CONTENT_LENGTH, TRAILER, TRANSFER_ENCODING};
use http::{HeaderName, HeaderValue, StatusCode, Uri, Version};
use http_body::Body as _;
use tower::Service;

use super::connection::{Connection, Outgoing};
use super::headers::{self, Origin, Peer};
use super::lent::{Held, Lent, Room, Seat};
use super::memory::Lot;
use super::route::Route;
use super::upstream::Upstream;
use crate::guard::answer::Leave;
use crate::{Problem, Recording};

/// Why there is no answer.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ForwardError {
    /// Nothing of the request has reached the service: it may be sent again freely.
    #[error("the service `{upstream}` cannot be reached: {why}")]
    NotSent {
        /// The service.
        upstream: String,
        /// What happened.
        why: String,
    },
    /// The request, or a part of it, was sent: it may have taken effect.
    #[error("the service `{upstream}` has not answered: {why}")]
    Unanswered {
        /// The service.
        upstream: String,
        /// What happened.
        why: String,
        /// Whether it was silent for too long; otherwise the connection ended.
        silent: bool,
    },
    /// Nothing was sent, because whatever is wrapped around the call has decided so: a breaker, a
    /// budget.
    #[error("not now: {why}")]
    NotNow {
        /// What has decided.
        why: String,
        /// When to come again.
        after: Duration,
    },
    /// This, after it was tried again as often as is allowed. Whoever calls is told, so that it does
    /// not try again on top of it.
    #[error(transparent)]
    Spent(Box<ForwardError>),
}

impl ForwardError {
    /// Whether it is proven that nothing has reached the service.
    pub fn nothing_sent(&self) -> bool {
        match self {
            ForwardError::Unanswered { .. } => false,
            ForwardError::NotSent { .. } | ForwardError::NotNow { .. } => true,
            ForwardError::Spent(last) => last.nothing_sent(),
        }
    }

    /// What came of the last attempt.
    pub(super) fn last(self) -> Self {
        match self {
            ForwardError::Spent(last) => last.last(),
            other => other,
        }
    }
}

type Answering = Pin<Box<dyn Future<Output = Result<Response, ForwardError>> + Send>>;

/// A call to a service, with whatever is wrapped around it. A clone is the same call.
#[derive(Clone)]
pub struct Step {
    call: Arc<dyn Fn(Request) -> Answering + Send + Sync>,
}

impl Step {
    /// Calls the service of this route, with nothing around it.
    pub fn forward(route: &Route) -> Self {
        let forward = Forward {
            upstream: Arc::clone(&route.upstream),
            preserve_host: route.preserve_host,
            telling: route.telling().into(),
        };
        Self::of(move |request| Box::pin(forward.clone().send(request)))
    }

    /// Calls a clone of this service for each request, when it is ready.
    pub fn new<S>(service: S) -> Self
    where
        S: Service<Request, Response = Response, Error = ForwardError>,
        S: Clone + Send + Sync + 'static,
        S::Future: Send,
    {
        Self::of(move |request| Box::pin(tower::ServiceExt::oneshot(service.clone(), request)))
    }

    /// One box for each call, and nothing else.
    pub(super) fn of(call: impl Fn(Request) -> Answering + Send + Sync + 'static) -> Self {
        Self {
            call: Arc::new(call),
        }
    }

    pub(super) fn run(&self, request: Request) -> Answering {
        (self.call)(request)
    }
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Step").finish_non_exhaustive()
    }
}

impl Service<Request> for Step {
    type Response = Response;
    type Error = ForwardError;
    type Future = Answering;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ForwardError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Answering {
        self.run(request)
    }
}

/// Wraps something around the calls of a route: retries, a breaker, a budget.
pub type Wrap = Arc<dyn Fn(&Route, Step) -> Step + Send + Sync>;

/// When to come again if all connections are in use.
pub(super) const CROWDED: Duration = Duration::from_secs(1);

/// The memory of a guarded request, until it was sent for the last time.
#[derive(Debug, Clone)]
pub(super) struct Space {
    pub(super) _lot: Arc<Lot>,
}

/// Says of a request that it is our own: its headers are those that the service gets.
#[derive(Clone)]
pub(super) struct AsItIs;

#[derive(Debug, Clone)]
struct Forward {
    upstream: Arc<Upstream>,
    preserve_host: bool,
    telling: Arc<[HeaderName]>,
}

impl Forward {
    /// The request as the service gets it.
    fn outward(&self, request: Request) -> Request {
        let (mut parts, body) = request.into_parts();
        let origin = match parts.extensions.remove::<Origin>() {
            Some(origin) => origin,
            None if parts.extensions.remove::<AsItIs>().is_some() => {
                return Request::from_parts(parts, body);
            }
            None => Origin {
                peer: Peer::new(([0, 0, 0, 0], 0).into()),
                trusted: false,
                authority: self.upstream.authority().clone(),
            },
        };
        let host = match self.preserve_host {
            true => origin.authority.clone(),
            false => self.upstream.authority().clone(),
        };
        headers::outward(&mut parts.headers, &origin, host, &self.telling);
        let target = parts.uri.path_and_query().cloned();
        parts.uri = target.map_or_else(|| Uri::from_static("/"), Uri::from);
        parts.version = Version::HTTP_11;
        // hyper leaves out the body of a GET unless it is told how it is framed, and what trails a
        // body fits into chunks only.
        let unknown =
            !parts.headers.contains_key(CONTENT_LENGTH) && body.size_hint().exact().is_none();
        if !body.is_end_stream() && (unknown || parts.headers.contains_key(TRAILER)) {
            parts.headers.remove(CONTENT_LENGTH);
            let chunked = HeaderValue::from_static("chunked");
            parts.headers.insert(TRANSFER_ENCODING, chunked);
        }
        Request::from_parts(parts, body)
    }

    async fn send(self, request: Request) -> Result<Response, ForwardError> {
        let request = self.outward(request);
        exchange(&self.upstream, request).await
    }
}

/// Sends a request to a service, and gives its answer as it comes.
pub(super) async fn exchange(
    upstream: &Arc<Upstream>,
    mut request: Request,
) -> Result<Response, ForwardError> {
    let not_sent = |why: String| ForwardError::NotSent {
        upstream: upstream.name().to_owned(),
        why,
    };
    let space = request.extensions_mut().remove::<Space>();
    let leave = match request.extensions_mut().remove::<Seat>() {
        Some(seat) => Room::Place(seat),
        // The service is not to blame: this is our own ceiling.
        None => Room::Connection(upstream.place().await.ok_or_else(|| ForwardError::NotNow {
            why: format!("all connections to `{}` are in use", upstream.name()),
            after: CROWDED,
        })?),
    };
    let (parts, body) = request.into_parts();
    let (body, progress) = Outgoing::new(body, space);
    let mut request = http::Request::from_parts(parts, body);
    loop {
        let waiting = upstream.waiting();
        let used = waiting.is_some();
        let mut connection = match waiting {
            Some(connection) => connection,
            None => upstream
                .connect()
                .await
                .map_err(|e| not_sent(e.to_string()))?,
        };
        let before = connection.line.count();
        match attempt(upstream, &mut connection, request).await {
            Ok(response) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                return Err(ForwardError::Unanswered {
                    upstream: upstream.name().to_owned(),
                    why: "it switches protocols, and nobody has asked it to".into(),
                    silent: false,
                });
            }
            Ok(response) => {
                // The rest of the request must not wait for somebody who reads the answer.
                if !progress.is_over() {
                    connection.let_go();
                }
                let held = Held {
                    connection,
                    upstream: Arc::clone(upstream),
                    leave,
                };
                return Ok(inward(response, held));
            }
            Err(failed) => {
                let sent = connection.line.seal() != before;
                match failed.back {
                    Some(back) if used && !sent => request = *back,
                    _ if !sent => return Err(not_sent(failed.why)),
                    _ => {
                        return Err(ForwardError::Unanswered {
                            upstream: upstream.name().to_owned(),
                            why: failed.why,
                            silent: failed.silent,
                        });
                    }
                }
            }
        }
    }
}

struct Failed {
    /// The request, if it was not begun.
    back: Option<Box<http::Request<Outgoing>>>,
    why: String,
    silent: bool,
}

/// One request on one connection, until its answer begins.
async fn attempt(
    upstream: &Upstream,
    connection: &mut Connection,
    request: http::Request<Outgoing>,
) -> Result<http::Response<hyper::body::Incoming>, Failed> {
    let (line, patience) = (Arc::clone(&connection.line), upstream.settings().timeout);
    let mut sending = std::pin::pin!(connection.send(request));
    let mut until = tokio::time::Instant::now() + patience;
    loop {
        match tokio::time::timeout_at(until, sending.as_mut()).await {
            Ok(Ok(response)) => return Ok(response),
            Ok(Err(mut error)) => {
                return Err(Failed {
                    back: error.take_message().map(Box::new),
                    why: one_line(error.error()),
                    silent: false,
                });
            }
            Err(_) => {
                // While the request is still being sent nobody is silent.
                let later = tokio::time::Instant::from_std(line.last()) + patience;
                if later <= until {
                    return Err(Failed {
                        back: None,
                        why: format!("silent for {patience:?}"),
                        silent: true,
                    });
                }
                until = later;
            }
        }
    }
}

fn one_line(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// An answer as the caller gets it.
fn inward(response: http::Response<hyper::body::Incoming>, held: Held) -> Response {
    let (mut parts, body) = response.into_parts();
    // With both, the encoding holds, and the length may be anything.
    if parts.headers.contains_key(TRANSFER_ENCODING) {
        parts.headers.remove(CONTENT_LENGTH);
    }
    headers::strip(&mut parts.headers);
    parts.version = Version::HTTP_11;
    parts.extensions = http::Extensions::new();
    Response::from_parts(parts, Body::new(Lent::new(body, held)))
}

/// A call whose errors are answers, which say how they are to be recorded.
#[derive(Clone)]
pub(super) struct Answered(pub(super) Step);

impl Answered {
    pub(super) async fn answer(&self, mut request: Request) -> Response {
        let leave = request.extensions_mut().remove::<Leave>();
        let answer = self.0.run(request).await;
        let mut answer = answer.unwrap_or_else(|error| explain(&error));
        // Whoever copies the answer asks for its memory.
        if let Some(leave) = leave {
            answer.extensions_mut().insert(leave);
        }
        answer
    }
}

impl Service<Request> for Answered {
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let this = self.clone();
        Box::pin(async move { Ok(this.answer(request).await) })
    }
}

/// Counts a call that was not answered, and names its kind.
pub(super) fn count(error: &ForwardError) -> &'static str {
    let label = match error {
        ForwardError::NotSent { .. } => "not-sent",
        ForwardError::Unanswered { .. } => "unanswered",
        ForwardError::NotNow { .. } => "not-now",
        ForwardError::Spent(last) => return count(last),
    };
    metrics::counter!("counterfoil_gateway_failures_total", "kind" => label).increment(1);
    label
}

fn explain(error: &ForwardError) -> Response {
    let (problem, recording) = match error {
        ForwardError::NotSent { .. } => (Problem::unreachable(), Recording::Released),
        ForwardError::Unanswered { silent, .. } => {
            (Problem::unanswered(*silent), Recording::Uncertain)
        }
        ForwardError::NotNow { after, .. } => (Problem::not_now(*after), Recording::Released),
        ForwardError::Spent(last) => {
            let mut response = explain(last);
            spent::mark(response.headers_mut());
            return response;
        }
    };
    let label = count(error);
    tracing::warn!(%error, kind = label, "a request was not answered by its service");
    let mut response = problem.into_response();
    response.extensions_mut().insert(recording);
    response
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::super::upstream::UpstreamSettings;
    use super::*;

    async fn service() -> (TcpListener, Arc<Upstream>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let upstream = Upstream::new("x", &url, UpstreamSettings::default()).unwrap();
        (listener, Arc::new(upstream))
    }

    fn ask() -> Request {
        let body = Body::from("hello");
        http::Request::post("/")
            .header("host", "x")
            .body(body)
            .unwrap()
    }

    #[tokio::test]
    async fn a_write_that_fails_before_the_first_byte_has_sent_nothing() {
        let (_listener, upstream) = service().await;
        let connection = upstream.connect().await.unwrap();
        let line = Arc::clone(&connection.line);
        upstream.keep(connection);
        let connection = loop {
            match upstream.waiting() {
                Some(connection) => break connection,
                None => tokio::task::yield_now().await,
            }
        };
        upstream.keep(connection);
        tokio::task::yield_now().await;
        line.mute();

        let error = exchange(&upstream, ask()).await.unwrap_err();

        assert!(error.nothing_sent(), "{error}");
        assert_eq!(line.count(), 0);
    }

    #[tokio::test]
    async fn a_connection_that_was_closed_after_an_answer_is_not_used_again() {
        let (listener, upstream) = service().await;
        for round in 0..20 {
            let exchange = tokio::spawn({
                let upstream = Arc::clone(&upstream);
                async move {
                    let response = exchange(&upstream, ask()).await?;
                    Ok::<_, ForwardError>(axum::body::to_bytes(response.into_body(), 10).await)
                }
            });
            let accepted = tokio::time::timeout(Duration::from_secs(10), listener.accept());
            let (mut stream, _) = accepted.await.expect("no new connection").unwrap();
            let mut head = [0; 1024];
            assert!(stream.read(&mut head).await.unwrap() > 0);
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
            stream.write_all(answer).await.unwrap();

            assert_eq!(exchange.await.unwrap().unwrap().unwrap(), "ok", "{round}");
            // It did not say so in its answer.
            drop(stream);
        }
    }

    #[tokio::test]
    async fn the_rest_of_a_request_arrives_although_nobody_reads_the_answer() {
        const PIECES: usize = 64;
        const PIECE: usize = 256 * 1024;
        let (listener, upstream) = service().await;
        let asked = tokio::spawn({
            let upstream = Arc::clone(&upstream);
            async move {
                let piece = || Ok::<_, Infallible>(bytes::Bytes::from(vec![b'x'; PIECE]));
                let pieces = futures_util::stream::iter((0..PIECES).map(move |_| piece()));
                let request = http::Request::post("/")
                    .header("host", "x")
                    .header("content-length", PIECES * PIECE)
                    .body(Body::from_stream(pieces));
                exchange(&upstream, request.unwrap()).await
            }
        });
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut buffer = vec![0; 64 * 1024];
        let mut read = stream.read(&mut buffer).await.unwrap();
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhe";
        stream.write_all(answer).await.unwrap();
        let response = asked.await.unwrap().unwrap();

        let whole = async {
            while read < PIECES * PIECE {
                let more = stream.read(&mut buffer).await.unwrap();
                assert!(more > 0, "closed after {read} bytes");
                read += more;
            }
        };
        let whole = tokio::time::timeout(Duration::from_secs(20), whole).await;
        assert!(whole.is_ok(), "stuck");
        stream.write_all(b"llo").await.unwrap();

        let body = axum::body::to_bytes(response.into_body(), 10).await;
        assert_eq!(body.unwrap(), "hello");
    }
}
