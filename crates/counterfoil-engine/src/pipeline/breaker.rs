//! Nobody calls a dependency whose breaker is open.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use counterfoil_core::policy::breaker::{Admission, Ticket};
use pin_project_lite::pin_project;
use tower::{Layer, Service};

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
    S: Service<Req, Error = CallError<E>>,
    C: Classify<Req, S::Response, E>,
{
    type Response = S::Response;
    type Error = CallError<E>;
    type Future = Broken<S::Future, C, Req, E>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let refused = match self.dependency.admit() {
            Admission::Go(ticket) => {
                return Broken::Called {
                    call: self.inner.call(request),
                    ticket,
                    dependency: Arc::clone(&self.dependency),
                    classify: self.classify.clone(),
                    of: PhantomData,
                };
            }
            Admission::Open { retry_after } => CallError::Open { retry_after },
            Admission::Throttled { retry_after } => CallError::Throttled { retry_after },
        };
        Broken::Refused {
            error: Some(refused),
        }
    }
}

pin_project! {
    /// The future of [`Break`].
    #[project = Project]
    pub enum Broken<F, C, Req, E> {
        /// The breaker lets nobody through.
        #[doc(hidden)]
        Refused { error: Option<CallError<E>> },
        /// A call under way.
        #[doc(hidden)]
        Called {
            #[pin]
            call: F,
            ticket: Ticket,
            dependency: Arc<Dependency>,
            classify: C,
            of: PhantomData<fn(Req)>,
        },
    }
}

impl<F, C, Req, T, E> Future for Broken<F, C, Req, E>
where
    F: Future<Output = Result<T, CallError<E>>>,
    C: Classify<Req, T, E>,
{
    type Output = Result<T, CallError<E>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            Project::Refused { error } => match error.take() {
                Some(error) => Poll::Ready(Err(error)),
                // It was answered before.
                None => Poll::Pending,
            },
            Project::Called {
                call,
                ticket,
                dependency,
                classify,
                ..
            } => {
                let result = ready!(call.poll(cx));
                if let Some(class) = class_of(classify, &result, PhantomData::<Req>) {
                    dependency.record(*ticket, class);
                }
                Poll::Ready(result)
            }
        }
    }
}
