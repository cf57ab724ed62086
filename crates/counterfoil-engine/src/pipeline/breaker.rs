//! Nobody calls a dependency whose breaker is open.

use std::marker::PhantomData;
use std::sync::Arc;
use std::task::{Context, Poll};

use counterfoil_core::policy::breaker::Admission;
use tower::{Layer, Service};

use super::CallFuture;
use super::classify::{Classify, class_of};
use super::dependency::Dependency;
use super::error::CallError;

/// Asks the dependency's breaker before each call, and tells it what came of it.
#[derive(Clone)]
pub struct BreakerLayer<C> {
    dependency: Arc<Dependency>,
    classify: C,
}

impl<C> BreakerLayer<C> {
    /// The breaker of this dependency.
    pub fn new(dependency: Arc<Dependency>, classify: C) -> Self {
        Self {
            dependency,
            classify,
        }
    }
}

impl<S, C: Clone> Layer<S> for BreakerLayer<C> {
    type Service = Break<S, C>;

    fn layer(&self, inner: S) -> Self::Service {
        Break {
            inner,
            dependency: Arc::clone(&self.dependency),
            classify: self.classify.clone(),
        }
    }
}

/// The service of [`BreakerLayer`].
#[derive(Clone)]
pub struct Break<S, C> {
    inner: S,
    dependency: Arc<Dependency>,
    classify: C,
}

impl<S, C, Req, E> Service<Req> for Break<S, C>
where
    S: Service<Req, Error = CallError<E>> + Clone + Send + 'static,
    S::Future: Send,
    S::Response: Send,
    C: Classify<Req, S::Response, E>,
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
        let ticket = match self.dependency.admit() {
            Admission::Go(ticket) => ticket,
            Admission::Open { retry_after } => {
                return Box::pin(std::future::ready(Err(CallError::Open { retry_after })));
            }
            Admission::Throttled { retry_after } => {
                return Box::pin(std::future::ready(Err(CallError::Throttled {
                    retry_after,
                })));
            }
        };
        // The clone that was found ready is the one that is called.
        let spare = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, spare);
        let (dependency, classify) = (Arc::clone(&self.dependency), self.classify.clone());
        Box::pin(async move {
            let result = inner.call(request).await;
            let of = PhantomData::<Req>;
            if let Some(class) = class_of(&classify, &result, of) {
                dependency.record(ticket, class);
            }
            result
        })
    }
}
