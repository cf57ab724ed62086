//! One connection to a service, which runs in the task of the request that uses it.
//!
//! # Promise
//! A connection is used for one request at a time. While a request uses it, whoever waits for the
//! answer moves the connection on too: nothing is handed from task to task. When a service answers
//! before it has got the whole request, the connection goes on by itself, because whoever reads the
//! answer may read it slowly, and the request has to arrive nevertheless.
//! # When it is dropped
//! It is closed, and not a byte more is sent.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use axum::body::Body;
use bytes::Bytes;
use futures_util::task::AtomicWaker;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::AbortHandle;

use super::forward::Space;
use super::hands;
use super::wire::{Line, Wire};

/// The largest head of an answer.
const HEAD_BYTES: usize = 64 * 1024;
/// How often a connection is moved on before others get their turn.
const ROUNDS: usize = 8;

type Inner = Pin<Box<http1::Connection<TokioIo<Wire>, Outgoing>>>;

/// A connection to a service.
#[derive(Debug)]
pub(super) struct Connection {
    sender: http1::SendRequest<Outgoing>,
    motor: Motor,
    /// What was sent.
    pub(super) line: Arc<Line>,
    /// The thread on which it was opened.
    pub(super) home: usize,
    /// To be open.
    _permit: Option<OwnedSemaphorePermit>,
}

/// What moves a connection on.
#[derive(Debug)]
enum Motor {
    /// Whoever uses it.
    Here {
        inner: Option<Inner>,
        relay: Arc<Relay>,
        waker: Waker,
    },
    /// A task of its own.
    Away(AbortHandle),
}

impl Connection {
    /// A new connection over this stream.
    pub(super) async fn open(
        stream: TcpStream,
        permit: Option<OwnedSemaphorePermit>,
    ) -> io::Result<Self> {
        let (line, wire) = Wire::new(stream);
        let (sender, inner) = http1::Builder::new()
            .max_buf_size(HEAD_BYTES)
            .handshake(TokioIo::new(wire))
            .await
            .map_err(io::Error::other)?;
        let relay = Arc::new(Relay::default());
        Ok(Self {
            sender,
            motor: Motor::Here {
                inner: Some(Box::pin(inner)),
                waker: Waker::from(Arc::clone(&relay)),
                relay,
            },
            line,
            home: hands::mine(),
            _permit: permit,
        })
    }

    /// Whether it can take a request.
    pub(super) fn is_ready(&self) -> bool {
        self.sender.is_ready()
    }

    /// Waits until it can take a request. An error: it never will.
    pub(super) async fn ready(&mut self) -> Result<(), hyper::Error> {
        let Self { sender, motor, .. } = self;
        poll_fn(|cx| motor.run(cx, |cx| sender.poll_ready(cx))).await
    }

    /// Sends a request, and waits for the head of its answer.
    pub(super) async fn send(
        &mut self,
        request: http::Request<Outgoing>,
    ) -> Result<http::Response<Incoming>, TrySendError<http::Request<Outgoing>>> {
        let mut sending = std::pin::pin!(self.sender.try_send_request(request));
        poll_fn(|cx| self.motor.run(cx, |cx| sending.as_mut().poll(cx))).await
    }

    /// The next piece of an answer.
    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
        body: &mut Incoming,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        use http_body::Body as _;
        self.motor.run(cx, |cx| Pin::new(&mut *body).poll_frame(cx))
    }

    /// Lets it go on by itself from now on.
    pub(super) fn let_go(&mut self) {
        let Motor::Here { inner, .. } = &mut self.motor else {
            return;
        };
        if let Some(inner) = inner.take() {
            let task = tokio::spawn(async move {
                if let Err(error) = inner.await {
                    tracing::debug!(%error, "a connection to a service ended badly");
                }
            });
            self.motor = Motor::Away(task.abort_handle());
        }
    }

    /// Nobody waits for it from now on.
    pub(super) fn rest(&self) {
        if let Motor::Here { relay, .. } = &self.motor {
            relay.task.take();
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.line.seal();
        if let Motor::Away(task) = &self.motor {
            task.abort();
        }
    }
}

impl Motor {
    /// Waits for something that comes from the connection, and moves it on meanwhile.
    fn run<T>(
        &mut self,
        cx: &mut Context<'_>,
        mut wanted: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        let Motor::Here {
            inner,
            relay,
            waker,
        } = self
        else {
            return wanted(cx);
        };
        relay.task.register(cx.waker());
        relay.busy.store(true, Ordering::SeqCst);
        let mut here = Context::from_waker(waker);
        let mut result = wanted(&mut here);
        for _ in 0..ROUNDS {
            if result.is_ready() {
                break;
            }
            relay.woken.store(false, Ordering::SeqCst);
            if let Some(connection) = inner
                && let Poll::Ready(ended) = connection.as_mut().poll(&mut here)
            {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection to a service ended badly");
                }
                *inner = None;
            }
            result = wanted(&mut here);
            if !relay.woken.load(Ordering::SeqCst) {
                break;
            }
        }
        relay.busy.store(false, Ordering::SeqCst);
        // Whoever was woken since the last look was told that we are at it.
        if result.is_pending() && relay.woken.load(Ordering::SeqCst) {
            cx.waker().wake_by_ref();
        }
        result
    }
}

/// Wakes whoever uses a connection, unless it is at it anyway.
#[derive(Debug, Default)]
struct Relay {
    task: AtomicWaker,
    busy: AtomicBool,
    woken: AtomicBool,
}

impl Wake for Relay {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        if !self.busy.load(Ordering::SeqCst) {
            self.task.wake();
        }
    }
}

/// The body of a request on its way to a service.
#[derive(Debug)]
pub(super) struct Outgoing {
    body: Body,
    /// Given back when the body is gone.
    _space: Option<Space>,
    _taken: Option<Taken>,
}

/// Says that nothing more of a body will be asked for.
#[derive(Debug)]
struct Taken(Arc<AtomicBool>);

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Whether the whole body of a request was taken.
#[derive(Debug, Clone)]
pub(super) struct Progress(Option<Arc<AtomicBool>>);

impl Progress {
    /// Whether nothing more of the body will be asked for.
    pub(super) fn is_over(&self) -> bool {
        let flag = self.0.as_ref();
        flag.is_none_or(|flag| flag.load(Ordering::Acquire))
    }
}

impl Outgoing {
    /// A body that takes this memory, and how far it has come.
    pub(super) fn new(body: Body, space: Option<Space>) -> (Self, Progress) {
        use http_body::Body as _;
        let flag = (!body.is_end_stream()).then(Arc::<AtomicBool>::default);
        let outgoing = Self {
            body,
            _space: space,
            _taken: flag.clone().map(Taken),
        };
        (outgoing, Progress(flag))
    }
}

impl http_body::Body for Outgoing {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
