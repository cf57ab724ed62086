//! The body of an answer over HTTP/2, where a reader that does not read blocks no socket.
//!
//! # Promise
//! A reader that takes nothing for [`PATIENCE`], although there is something to take, loses the
//! answer: what it held back, a connection to the service above all, is free, and its stream ends
//! with an error. Others on the same connection notice nothing. Time in which the service is waited
//! for does not count.
//!
//! Over HTTP/1.1 the whole connection is stuck then, and [`super::patient`] ends it.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

use super::pace::{GRACE, RATE};
use super::patient::PATIENCE;

/// The reader was away for too long.
#[derive(Debug, thiserror::Error)]
#[error("the caller did not read its answer for {PATIENCE:?}, or too slowly")]
struct Unread;

/// A body whose reader is watched.
pub(super) struct Watched {
    shared: Arc<Shared>,
    watch: AbortHandle,
}

struct Shared(Mutex<State>);

struct State {
    /// Nothing when it was taken from the reader.
    body: Option<Body>,
    /// Since when the reader has not come for more.
    away: Option<Instant>,
    /// How long it was away, and how many bytes it took, since they were last looked at together.
    waited: Duration,
    taken: u64,
}

impl State {
    /// The reader is there. Answers whether it is too slow.
    fn back(&mut self) -> bool {
        if let Some(away) = self.away.take() {
            self.waited += away.elapsed();
        }
        if self.waited < GRACE {
            return false;
        }
        let slow = self.taken < RATE * self.waited.as_secs();
        (self.waited, self.taken) = (Duration::ZERO, 0);
        slow
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The same body, watched unless there is nothing to read.
pub(super) fn watched(body: Body) -> Body {
    if body.is_end_stream() {
        return body;
    }
    let shared = Arc::new(Shared(Mutex::new(State {
        body: Some(body),
        away: Some(Instant::now()),
        waited: Duration::ZERO,
        taken: 0,
    })));
    let watch = tokio::spawn(watch(Arc::downgrade(&shared))).abort_handle();
    Body::new(Watched { shared, watch })
}

async fn watch(shared: Weak<Shared>) {
    loop {
        let next = {
            let Some(shared) = shared.upgrade() else {
                return;
            };
            let mut state = shared.state();
            let until = state.away.unwrap_or_else(Instant::now) + PATIENCE;
            if until <= Instant::now() {
                let body = state.body.take();
                drop(state);
                drop(body);
                tracing::debug!(error = %Unread, "an answer was given up");
                return;
            }
            until
        };
        sleep_until(next).await;
    }
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::BoxError>>> {
        let mut state = self.shared.state();
        if state.back() {
            let body = state.body.take();
            drop(state);
            drop(body);
            return Poll::Ready(Some(Err(Unread.into())));
        }
        let Some(body) = &mut state.body else {
            return Poll::Ready(Some(Err(Unread.into())));
        };
        let frame = ready!(Pin::new(body).poll_frame(cx));
        state.away = Some(Instant::now());
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            state.taken += data.len() as u64;
        }
        Poll::Ready(frame.map(|f| f.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        let state = self.shared.state();
        state.body.as_ref().is_some_and(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let state = self.shared.state();
        state.body.as_ref().map(Body::size_hint).unwrap_or_default()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use http_body_util::BodyExt as _;
    use tokio::sync::oneshot;

    use super::*;

    /// Two pieces, a pause before the second, and a word when it is dropped.
    fn body(pause: Duration) -> (Body, oneshot::Receiver<()>) {
        let (kept, dropped) = oneshot::channel::<()>();
        let pieces = stream::unfold((0, kept), move |(n, kept)| async move {
            if n == 1 {
                tokio::time::sleep(pause).await;
            }
            let piece = Ok::<_, axum::BoxError>(Bytes::from_static(b"piece"));
            (n < 2).then_some((piece, (n + 1, kept)))
        });
        (watched(Body::from_stream(pieces)), dropped)
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_stays_away_loses_the_answer() {
        let (mut body, dropped) = body(Duration::ZERO);
        let begun = Instant::now();

        assert!(body.frame().await.unwrap().is_ok());
        assert!(dropped.await.is_err(), "what was held is free");

        assert!(begun.elapsed() >= PATIENCE);
        assert!(body.frame().await.unwrap().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_never_comes_loses_the_answer() {
        let (body, dropped) = body(Duration::ZERO);

        assert!(dropped.await.is_err());

        assert!(body.collect().await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_takes_too_little_loses_the_answer() {
        let pieces = stream::repeat_with(|| Ok::<_, axum::BoxError>(Bytes::from_static(b"piece")));
        let mut body = watched(Body::from_stream(pieces));

        let mut read = 0;
        while let Some(Ok(_)) = body.frame().await {
            read += 1;
            assert!(read < 100, "it is still given");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }

        assert!(read >= 10, "{read}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_waits_for_the_service_keeps_the_answer() {
        let (body, _dropped) = body(10 * PATIENCE);

        let whole = body.collect().await.unwrap().to_bytes();

        assert_eq!(whole, "piecepiece");
    }
}
