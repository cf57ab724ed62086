//! A ceiling on the calls at one time.

use std::sync::Arc;
use std::task::{Context, Poll};

use tower::{Layer, Service};

use super::CallFuture;
use super::dependency::Dependency;
use super::error::CallError;

/// Lets so many calls through at a time as the dependency's bulkhead has places. Others wait in
/// the order in which they came; who comes when the queue is full gets [`CallError::Full`]. Who
/// comes while the breaker admits nobody does not wait, and is told so.
#[derive(Clone)]
pub struct BulkheadLayer {
    dependency: Arc<Dependency>,
}

impl BulkheadLayer {
    /// The bulkhead of this dependency.
    pub fn new(dependency: Arc<Dependency>) -> Self {
        Self { dependency }
    }
}

impl<S> Layer<S> for BulkheadLayer {
    type Service = Confine<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Confine {
            inner,
            dependency: Arc::clone(&self.dependency),
        }
    }
}

/// The service of [`BulkheadLayer`].
#[derive(Clone)]
pub struct Confine<S> {
    inner: S,
    dependency: Arc<Dependency>,
}

impl<S, Req, E> Service<Req> for Confine<S>
where
    S: Service<Req, Error = CallError<E>> + Clone + Send + 'static,
    S::Future: Send,
    S::Response: Send,
    Req: Send + 'static,
    E: Send + 'static,
{
    type Response = S::Response;
    type Error = CallError<E>;
    type Future = CallFuture<S::Response, Self::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        // The clone that was found ready is the one that is called.
        let spare = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, spare);
        let dependency = Arc::clone(&self.dependency);
        Box::pin(async move {
            if let Some(refusal) = dependency.refusal() {
                return Err(refusal);
            }
            let Some(_place) = dependency.enter().await else {
                return Err(CallError::Full);
            };
            inner.call(request).await
        })
    }
}
