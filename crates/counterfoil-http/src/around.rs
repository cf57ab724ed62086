//! The service that every layer of this crate makes.
//!
//! # Promise
//! The service that was polled ready is the one that is called, at most once.
//! # When it is dropped
//! As the layer says.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::extract::Request;
use axum::response::Response;
use tower::Service;

/// A layer that answers requests, by itself or through the service inside.
pub trait Around: Clone + Send + 'static {
    /// Answers one request.
    fn handle<S>(self, inner: S, request: Request) -> impl Future<Output = Response> + Send
    where
        S: Service<Request, Response = Response, Error = Infallible> + Send + 'static,
        S::Future: Send;
}

/// A service with a layer around it.
#[derive(Clone)]
pub struct Surrounded<S, L> {
    inner: S,
    layer: L,
}

impl<S, L> Surrounded<S, L> {
    pub(crate) fn new(inner: S, layer: L) -> Self {
        Self { inner, layer }
    }
}

impl<S, L> Service<Request> for Surrounded<S, L>
where
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    L: Around,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let fresh = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, fresh);
        let layer = self.layer.clone();
        Box::pin(async move { Ok(layer.handle(inner, request).await) })
    }
}

/// The answer of a service that cannot fail. Calls that it makes belong to the trace of the request.
pub(crate) async fn call<S>(mut inner: S, request: Request) -> Response
where
    S: Service<Request, Response = Response, Error = Infallible>,
{
    #[cfg(feature = "client")]
    let trace = crate::client::Trace::of(request.headers());
    let answer = async { inner.call(request).await };
    #[cfg(feature = "client")]
    let answer = crate::client::Trace::follow(trace, answer);
    match answer.await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}
