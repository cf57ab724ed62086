//! The body of an answer, and the connection that it comes from.
//!
//! # Promise
//! The connection is kept for the next request when the body was read to its end, and closed when
//! it was not. Until then the call has its place: an answer that is still coming is a call under way.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use counterfoil_engine::pipeline::Place;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::OwnedSemaphorePermit;

use super::connection::Connection;
use super::silence::Silence;
use super::upstream::Upstream;

/// The service has stopped in the middle of its answer.
#[derive(Debug, thiserror::Error)]
#[error("the service was silent for {0:?} in the middle of its answer")]
struct Silent(Duration);

/// The body of an answer.
pub(super) struct Lent {
    body: Incoming,
    silence: Silence,
    patience: Duration,
    held: Option<Held>,
}

/// What is given back at the end.
pub(super) struct Held {
    pub(super) connection: Connection,
    pub(super) upstream: Arc<Upstream>,
    pub(super) leave: Room,
}

/// Leave to use a connection. It is only held.
pub(super) enum Room {
    /// A place among the calls of the service.
    Place(#[expect(dead_code, reason = "held")] Seat),
    /// One of its connections, for a call without a place.
    Connection(#[expect(dead_code, reason = "held")] OwnedSemaphorePermit),
}

/// The place of a call, which goes with its request.
#[derive(Clone)]
pub(super) struct Seat {
    pub(super) _place: Arc<Place>,
}

impl Held {
    fn give_back(self) {
        self.upstream.keep(self.connection);
        drop(self.leave);
    }
}

impl Lent {
    pub(super) fn new(body: Incoming, held: Held) -> Self {
        let patience = held.upstream.settings().idle_timeout;
        let mut lent = Self {
            body,
            silence: Silence::new(patience),
            patience,
            held: Some(held),
        };
        // Nobody reads a body that is over before it begins.
        lent.end_if_over();
        lent
    }

    fn end_if_over(&mut self) {
        if self.body.is_end_stream()
            && let Some(held) = self.held.take()
        {
            held.give_back();
        }
    }
}

impl Body for Lent {
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::BoxError>>> {
        let this = &mut *self;
        let frame = match &mut this.held {
            Some(held) => held.connection.poll_frame(cx, &mut this.body),
            None => Pin::new(&mut this.body).poll_frame(cx),
        };
        let Poll::Ready(frame) = frame else {
            ready!(self.silence.poll(cx));
            self.held = None;
            return Poll::Ready(Some(Err(Silent(self.patience).into())));
        };
        self.silence.ended();
        match &frame {
            None => {
                if let Some(held) = self.held.take() {
                    held.give_back();
                }
            }
            Some(Ok(_)) => self.end_if_over(),
            Some(Err(_)) => self.held = None,
        }
        Poll::Ready(frame.map(|f| f.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
