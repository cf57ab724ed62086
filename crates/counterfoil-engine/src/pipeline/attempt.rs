//! One attempt is cut off in time.

use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, timeout};
use tower::{Layer, Service};

use super::CallFuture;
use super::error::CallError;

tokio::task_local! {
    /// The end of the time for all attempts, while the first one runs.
    pub(super) static FIRST_UNTIL: Instant;
}

/// Cuts off an attempt that takes too long.
///
/// The first attempt of a [`Retry`](super::Retry) is cut at the deadline of all attempts if that
/// comes earlier, so that a dependency that hangs is seen to hang however short the deadline is.
#[derive(Debug, Clone, Copy)]
pub struct AttemptTimeoutLayer {
    limit: Duration,
}

impl AttemptTimeoutLayer {
    /// Cuts off an attempt after this time.
    pub fn new(limit: Duration) -> Self {
        Self { limit }
    }
}

impl<S> Layer<S> for AttemptTimeoutLayer {
    type Service = AttemptTimeout<S>;

    fn layer(&self, inner: S) -> Self::Service {
        AttemptTimeout {
            inner,
            limit: self.limit,
        }
    }
}

/// The service of [`AttemptTimeoutLayer`].
#[derive(Debug, Clone)]
pub struct AttemptTimeout<S> {
    inner: S,
    limit: Duration,
}

impl<S, Req> Service<Req> for AttemptTimeout<S>
where
    S: Service<Req>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = CallError<S::Error>;
    type Future = CallFuture<S::Response, Self::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(CallError::Call)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let left = FIRST_UNTIL
            .try_with(|until| until.saturating_duration_since(Instant::now()))
            .unwrap_or(self.limit);
        let after = self.limit.min(left);
        let call = self.inner.call(request);
        Box::pin(async move {
            match timeout(after, call).await {
                Ok(result) => result.map_err(CallError::Call),
                Err(_) => Err(CallError::Timeout { after }),
            }
        })
    }
}
