//! Callers' connections, and their bounds.
//!
//! # Promise
//! Connections, the heads of requests, and the silence in the middle of a request or an answer are
//! bounded; who sends or reads too slowly is cut off ([`super::pace`]), and one peer does not have more
//! than its share ([`super::peers`]). HTTP/1.1 and HTTP/2 with prior knowledge come to the same port. A request that is under
//! way when the gateway stops is answered, within the time that it is given for that.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::extract::Request;
use axum::response::IntoResponse as _;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};

use super::desk::Gateway;
use super::framing::{Framing, Verdict, Verdicts};
use super::hands::Place;
use super::headers::Peer;
use super::pace::{GRACE, Pace, RATE};
use super::patient::{PATIENCE, Patient};
use super::peers::{Peers, until_read};
use super::reader::watched;
use super::silence::Silence;

/// Connections at one time; more wait in the backlog.
const CONNECTIONS: usize = 4_096;
/// A request's head has arrived by then, and an idle connection is closed.
const HEAD: Duration = Duration::from_secs(15);
/// The largest head of a request.
const HEAD_BYTES: usize = 64 * 1024;
/// Before so many bytes were read it is not known which HTTP it is, and hyper sets no limit.
const PREFACE: usize = 24;
/// HTTP/2: requests at one time on a connection, and what each may send before it is read.
const STREAMS: u32 = 128;
const WINDOW: u32 = 128 * 1024;
/// What all of them on one connection may: much on the first so many connections, which is for proxies,
/// and as little as HTTP/2 allows on others. So unread uploads take less than 400 MiB together.
const WIDE: u32 = 8 * WINDOW;
const WIDE_CONNECTIONS: usize = 128;
const NARROW: u32 = 65_535;

/// Answers requests until `stop`, then finishes those under way, within `goodbye`.
pub async fn serve(
    listener: TcpListener,
    gateway: Gateway,
    stop: impl Future<Output = ()>,
    goodbye: Duration,
) {
    let (wide, narrow) = (builder(WIDE), builder(NARROW));
    let peers = Peers::default();
    let (graceful, room) = (
        GracefulShutdown::new(),
        Arc::new(Semaphore::new(CONNECTIONS)),
    );
    let mut stop = std::pin::pin!(stop);
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &room) => accepted,
            () = &mut stop => break,
        };
        let Some((stream, peer, permit)) = accepted else {
            continue;
        };
        let ticket = match gateway.peer_limits(peer.ip()) {
            None => None,
            Some(limits) => match peers.connect(peer.ip(), limits) {
                Some(ticket) => Some(Arc::new(ticket)),
                // Closed without a word: a word would cost more.
                None => continue,
            },
        };
        let http = match CONNECTIONS - room.available_permits() <= WIDE_CONNECTIONS {
            true => &wide,
            false => &narrow,
        };
        let place = Place::next();
        // Sockets and timers belong to the thread that serves the caller.
        let _inside = place.runtime().enter();
        let stream = match stream.into_std().and_then(TcpStream::from_std) {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!(%error, "cannot serve a connection");
                continue;
            }
        };
        let verdicts = Verdicts::default();
        let io = TokioIo::new(Caller::new(stream, verdicts.clone()));
        let (gateway, peer) = (gateway.clone(), Peer::new(peer));
        let service = service_fn(move |request: http::Request<Incoming>| {
            let many = request.version() >= http::Version::HTTP_2;
            let verdict = (!many).then(|| verdicts.next());
            let (gateway, peer, ticket) = (gateway.clone(), peer.clone(), ticket.clone());
            async move {
                let clear = || verdict.as_ref().is_none_or(Verdict::is_clear);
                let request: Request = request.map(|body| upload(body, verdict.as_ref()));
                let answer = match (clear(), ticket) {
                    (false, _) => Gateway::doubtful(),
                    (true, None) => gateway.answer(request, peer).await,
                    (true, Some(ticket)) => match ticket.request().await {
                        Ok(permit) => until_read(gateway.answer(request, peer).await, permit),
                        Err(problem) => problem.into_response(),
                    },
                };
                Ok::<_, Infallible>(match many {
                    true => answer.map(watched),
                    false if clear() => answer,
                    // Whatever came of it: its end was not where it seemed to be.
                    false => Gateway::doubtful(),
                })
            }
        });
        let connection = graceful.watch(http.serve_connection(io, service).into_owned());
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(error, "a caller's connection ended badly");
            }
            drop((permit, place));
        });
    }
    drop(listener);
    if tokio::time::timeout(goodbye, graceful.shutdown())
        .await
        .is_err()
    {
        tracing::warn!("some requests at the gateway were still under way and are cut off");
    }
}

fn builder(window: u32) -> auto::Builder<TokioExecutor> {
    let mut http = auto::Builder::new(TokioExecutor::new());
    http.http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(HEAD_BYTES);
    http.http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(window)
        .max_send_buf_size(64 * 1024)
        .max_header_list_size(64 * 1024)
        .keep_alive_interval(PATIENCE)
        .keep_alive_timeout(HEAD);
    http
}

/// The next connection, when there is room for it.
async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> Option<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let place = Arc::clone(room).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, peer)) => {
            let _ = stream.set_nodelay(true);
            Some((stream, peer, place))
        }
        Err(error) => {
            // Out of file descriptors, or a caller that has already gone.
            tracing::debug!(%error, "cannot accept a connection");
            sleep(Duration::from_millis(50)).await;
            None
        }
    }
}

/// A caller's connection: what it sends is followed, and its writes make progress or fail.
struct Caller {
    stream: Patient,
    framing: Framing,
    read: usize,
    silent: Pin<Box<Sleep>>,
}

impl Caller {
    fn new(stream: TcpStream, verdicts: Verdicts) -> Self {
        Self {
            stream: Patient::new(stream),
            framing: Framing::new(verdicts),
            read: 0,
            silent: Box::pin(sleep(HEAD)),
        }
    }
}

impl AsyncRead for Caller {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(cx, buffer) else {
            if self.read < PREFACE {
                ready!(self.silent.as_mut().poll(cx));
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            return Poll::Pending;
        };
        let bytes = &buffer.filled()[before..];
        self.read = self.read.saturating_add(bytes.len());
        self.framing.read(bytes);
        Poll::Ready(read)
    }
}

impl AsyncWrite for Caller {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The body of a caller, as the services take it. Most have none.
fn upload(incoming: Incoming, verdict: Option<&Verdict>) -> axum::body::Body {
    match incoming.is_end_stream() {
        true => axum::body::Body::empty(),
        false => axum::body::Body::new(Upload::new(incoming, verdict)),
    }
}

/// The caller has stopped in the middle of its request.
#[derive(Debug, thiserror::Error)]
#[error("the caller was silent for {PATIENCE:?} in the middle of its request")]
struct Silent;

/// The caller sends too little.
#[derive(Debug, thiserror::Error)]
#[error("the caller sent less than {RATE} bytes a second for {GRACE:?}")]
struct Slow;

/// The caller has sent a chunk of which nobody can say where it ends.
#[derive(Debug, thiserror::Error)]
#[error("where the caller's request ends can be read in two ways")]
struct Doubtful;

/// The body of a request, which makes progress or fails.
struct Upload {
    body: Incoming,
    silence: Silence,
    pace: Pace,
    /// Of a body in chunks: the others end where their head says.
    verdict: Option<Verdict>,
}

impl Upload {
    fn new(body: Incoming, verdict: Option<&Verdict>) -> Self {
        let chunked = body.size_hint().exact().is_none();
        Self {
            body,
            silence: Silence::new(PATIENCE),
            pace: Pace::default(),
            verdict: verdict.filter(|_| chunked).cloned(),
        }
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::BoxError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            self.silence.ended();
            if self.verdict.as_ref().is_some_and(|v| !v.is_clear()) {
                return Poll::Ready(Some(Err(Doubtful.into())));
            }
            if let Some(Ok(frame)) = &frame
                && let Some(data) = frame.data_ref()
            {
                self.pace.moved(data.len());
            }
            return Poll::Ready(frame.map(|f| f.map_err(Into::into)));
        }
        if self.pace.poll_slow(cx).is_ready() {
            return Poll::Ready(Some(Err(Slow.into())));
        }
        ready!(self.silence.poll(cx));
        Poll::Ready(Some(Err(Silent.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
