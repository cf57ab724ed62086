//! Nobody calls a dependency whose breaker is open.

use std::future::{Future, Ready, ready};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Context, Poll};

use counterfoil_core::policy::breaker::Ticket;
use futures_util::future::Either;
use pin_project_lite::pin_project;
use tower::{Layer, Service};

use super::classify::{Classify, class_of};
use super::dependency::Dependency;
use super::error::CallError;

/// Asks the dependency's breaker before each call, and tells it what came of it and how long it
/// took. Whatever makes a call wait belongs outside.
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
    type Future = Either<Ready<Result<S::Response, Self::Error>>, Told<S::Future, C, Req>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        match CallError::admitted(self.dependency.admit()) {
            Ok(ticket) => Either::Right(Told {
                call: self.inner.call(request),
                ticket,
                dependency: Arc::clone(&self.dependency),
                classify: self.classify.clone(),
                of: PhantomData,
            }),
            Err(refused) => Either::Left(ready(Err(refused))),
        }
    }
}

pin_project! {
    /// A call of which the breaker is told what came of it.
    pub struct Told<F, C, Req> {
        #[pin]
        call: F,
        ticket: Ticket,
        dependency: Arc<Dependency>,
        classify: C,
        of: PhantomData<fn(Req)>,
    }
}

impl<F, C, Req, T, E> Future for Told<F, C, Req>
where
    F: Future<Output = Result<T, CallError<E>>>,
    C: Classify<Req, T, E>,
{
    type Output = Result<T, CallError<E>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let result = task::ready!(this.call.poll(cx));
        if let Some(class) = class_of(this.classify, &result, PhantomData::<Req>) {
            let ticket = match this.classify.timed() {
                true => *this.ticket,
                false => this.ticket.untimed(),
            };
            this.dependency.record(ticket, class);
        }
        Poll::Ready(result)
    }
}
