//! The one place where a call is made again.
//!
//! # Promise
//! The call ends by its deadline, unless its attempts may outlast it: then no attempt begins after it.
//! Between two attempts the breaker is asked first, then the budget: while the breaker is not closed
//! there are no retries, and when the budget is spent the caller gets the last result now. A wait
//! that the dependency asks for is honoured, or the call is given up.
//!
//! The result is that of the last attempt that was made. A retry that is turned away without a call
//! gives its token back, and changes nothing: so [`CallError::not_called`] is said only when the
//! dependency was called in no attempt. For this the result of the attempt before is kept while the
//! next one runs.

use std::future::poll_fn;
use std::marker::PhantomData;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use counterfoil_core::policy::attempts::{Attempts, GiveUp, Next};
use counterfoil_core::policy::breaker::State;
use counterfoil_core::policy::budget::Taken;
use counterfoil_core::policy::class::{Class, Effect};
use tokio::time::{Instant, timeout_at};
use tower::{Layer, Service};

use super::CallFuture;
use super::attempt::FIRST_UNTIL;
use super::classify::{Classify, class_of, is_spent};
use super::dependency::Dependency;
use super::error::{CallError, Ended, Report};
use super::meter;

/// Makes calls again, inside the limits of the dependency.
#[derive(Clone)]
pub struct RetryLayer<C> {
    dependency: Arc<Dependency>,
    classify: C,
    seed: Option<u64>,
}

impl<C> RetryLayer<C> {
    /// Retries of this dependency.
    pub fn new(dependency: Arc<Dependency>, classify: C) -> Self {
        Self {
            dependency,
            classify,
            seed: None,
        }
    }

    /// Draws the same waits for every call. For tests.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }
}

impl<S, C: Clone> Layer<S> for RetryLayer<C> {
    type Service = Retry<S, C>;

    fn layer(&self, inner: S) -> Self::Service {
        Retry {
            inner,
            dependency: Arc::clone(&self.dependency),
            classify: self.classify.clone(),
            seed: self.seed,
        }
    }
}

/// The service of [`RetryLayer`].
#[derive(Clone)]
pub struct Retry<S, C> {
    inner: S,
    dependency: Arc<Dependency>,
    classify: C,
    seed: Option<u64>,
}

impl<S, C, Req, E> Service<Req> for Retry<S, C>
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
        // The clone that was found ready is the one that is called.
        let spare = self.inner.clone();
        let service = std::mem::replace(&mut self.inner, spare);
        let effect = self.classify.effect(&request);
        let limits = self.dependency.limits();
        let within = self.classify.deadline(&request).unwrap_or(limits.deadline);
        let outlasts = self.classify.outlasts(&request);
        let most = match effect {
            Effect::Read => limits.backoff.max_attempts(),
            Effect::Write { .. } => limits.backoff.max_attempts().min(limits.write_attempts),
        };
        let seed = self.seed.unwrap_or_else(|| fastrand::u64(..));
        let backoff = limits.backoff.with_max_attempts(most);
        let run = Run {
            service,
            effect,
            within,
            outlasts,
            until: Instant::now() + within,
            attempts: Attempts::begin(backoff, within, seed, self.dependency.now()),
            made: 0,
            taken: None,
            dependency: Arc::clone(&self.dependency),
            classify: self.classify.clone(),
        };
        Box::pin(run.run(request))
    }
}

/// One call with all its attempts.
struct Run<S, C> {
    service: S,
    effect: Effect,
    within: Duration,
    outlasts: bool,
    until: Instant,
    attempts: Attempts,
    made: u32,
    /// The retry that is being made.
    taken: Option<Taken>,
    dependency: Arc<Dependency>,
    classify: C,
}

impl<S, C> Run<S, C> {
    async fn run<Req, E>(mut self, mut request: Req) -> Result<S::Response, CallError<E>>
    where
        S: Service<Req, Error = CallError<E>>,
        C: Classify<Req, S::Response, E>,
    {
        let mut before = None;
        loop {
            let again = match self.effect.repeatable() {
                true => self.classify.again(&request),
                false => None,
            };
            let result = self.attempt(request).await;
            if result.as_ref().is_err_and(CallError::not_called) {
                if let Some(taken) = self.taken.take() {
                    self.dependency.give_back(taken);
                }
                return self.end(before.unwrap_or(result), Ended::TurnedAway);
            }
            self.made += 1;
            let class = class_of(&self.classify, &result, PhantomData::<Req>);
            if class == Some(Class::Success) {
                self.dependency.succeeded();
            }
            let ended = match (class, again) {
                (None, _) if matches!(result, Err(CallError::Deadline { .. })) => Ended::Deadline,
                (None, _) => Ended::TurnedAway,
                (Some(class), _) if !class.can_pass_later() => Ended::Answered,
                _ if is_spent(&self.classify, &result, PhantomData::<Req>) => Ended::Elsewhere,
                (Some(_), None) => Ended::NotRepeatable,
                (Some(class), Some(again)) => match self.next(class.asked()).await {
                    Some(ended) => ended,
                    None => {
                        request = again;
                        before = Some(result);
                        continue;
                    }
                },
            };
            return self.end(result, ended);
        }
    }

    fn end<Req, E>(
        &self,
        mut result: Result<S::Response, CallError<E>>,
        ended: Ended,
    ) -> Result<S::Response, CallError<E>>
    where
        S: Service<Req, Error = CallError<E>>,
        C: Classify<Req, S::Response, E>,
    {
        let report = Report {
            attempts: self.made,
            ended,
        };
        self.classify
            .finished(result.as_mut().map_err(|error| &*error), report);
        result
    }

    async fn attempt<Req, E>(&mut self, request: Req) -> Result<S::Response, CallError<E>>
    where
        S: Service<Req, Error = CallError<E>>,
    {
        let service = &mut self.service;
        let call = async move {
            poll_fn(|cx| service.poll_ready(cx)).await?;
            service.call(request).await
        };
        if self.outlasts {
            return call.await;
        }
        let late = Err(CallError::Deadline {
            within: self.within,
        });
        if self.made == 0 {
            // Its own limit comes a moment before, so that the breaker hears of it.
            let grace = self.until + Duration::from_millis(1);
            return FIRST_UNTIL
                .scope(self.until, timeout_at(grace, call))
                .await
                .unwrap_or(late);
        }
        timeout_at(self.until, call).await.unwrap_or(late)
    }

    /// Waits for the next attempt, or says why there is none.
    async fn next(&mut self, asked: Option<Duration>) -> Option<Ended> {
        let wait = match self.attempts.failed_at(asked, self.dependency.now()) {
            Next::Wait(wait) => wait,
            Next::GiveUp(GiveUp::Deadline) => return Some(Ended::Deadline),
            Next::GiveUp(GiveUp::AskedTooMuch) => return Some(Ended::AskedTooMuch),
            Next::GiveUp(GiveUp::Attempts) => return Some(Ended::Attempts),
        };
        if self.dependency.state() != State::Closed {
            return Some(Ended::TurnedAway);
        }
        // Whoever waits now and finds nothing left would have waited in vain.
        if !self.dependency.retry_in_sight() {
            return Some(Ended::BudgetSpent);
        }
        tokio::time::sleep(wait).await;
        if self.dependency.state() != State::Closed {
            return Some(Ended::TurnedAway);
        }
        self.taken = self.dependency.take_retry();
        if self.taken.is_none() {
            return Some(Ended::BudgetSpent);
        }
        if asked.is_some() {
            meter::retry_after_honored(self.dependency.name());
        }
        None
    }
}
