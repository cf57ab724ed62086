//! Callers that go away in the middle.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;

/// Polls something so often and then drops it, as a caller does that goes away at that point.
/// `None` when it was not ready by then.
pub async fn after_polls<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    std::future::poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
