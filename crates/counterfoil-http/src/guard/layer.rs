//! The layer, and the way of a request through it.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use counterfoil::guard::{Ended, Entered, GuardError, Open};
use counterfoil::{Database, Guard};
use http::request::Parts;
use tower::{Layer, Service};

use super::answer::{self, Effects, Recording};
use super::front::{Asked, Front, Sort};
use super::policy::Policy;
use super::{leased, to_the_end};
use crate::Problem;
use crate::around::{Around, Surrounded, call};
use counterfoil::Slot;

/// The name of the caller, as authentication may leave it in a request's extensions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller(pub String);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Transactional,
    Leased,
}

/// A layer that still has to be told whose requests are whose.
pub struct NeedsCaller<D: Database> {
    guard: Guard<D>,
    mode: Mode,
}

impl<D: Database> NeedsCaller<D> {
    /// The caller as this function sees it. A request for which it answers `None` is refused.
    pub fn caller<F>(self, whose: F) -> GuardLayer<D>
    where
        F: Fn(&Parts) -> Option<String> + Send + Sync + 'static,
    {
        GuardLayer {
            inner: Arc::new(Inner {
                guard: self.guard,
                mode: self.mode,
                front: Front {
                    policy: Policy::default(),
                    caller: Arc::new(whose),
                    quota: Arc::default(),
                },
            }),
        }
    }

    /// The caller is the [`Caller`] that authentication has left in the request's extensions.
    pub fn caller_from_extensions(self) -> GuardLayer<D> {
        self.caller(|parts| parts.extensions.get::<Caller>().map(|c| c.0.clone()))
    }

    /// There is only one caller: all keys are in one scope.
    pub fn one_caller(self) -> GuardLayer<D> {
        self.caller(|_| Some(String::new()))
    }
}

/// Every request takes effect once for its key.
pub struct GuardLayer<D: Database> {
    inner: Arc<Inner<D>>,
}

struct Inner<D: Database> {
    guard: Guard<D>,
    mode: Mode,
    front: Front,
}

impl<D: Database> Clone for GuardLayer<D> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
        }
    }
}

impl<D: Database> GuardLayer<D> {
    /// Claim, business rows and answer commit in one transaction, which handlers take as
    /// [`crate::Tx`].
    pub fn transactional(guard: Guard<D>) -> NeedsCaller<D> {
        NeedsCaller {
            guard,
            mode: Mode::Transactional,
        }
    }

    /// The handler may do anything. After a crash the request is uncertain, and does not run again
    /// before that is settled.
    pub fn leased(guard: Guard<D>) -> NeedsCaller<D> {
        NeedsCaller {
            guard,
            mode: Mode::Leased,
        }
    }

    /// What is guarded, and how.
    #[must_use]
    pub fn policy(self, policy: Policy) -> Self {
        Self {
            inner: Arc::new(Inner {
                guard: self.inner.guard.clone(),
                mode: self.inner.mode,
                front: Front {
                    policy,
                    caller: Arc::clone(&self.inner.front.caller),
                    quota: Arc::clone(&self.inner.front.quota),
                },
            }),
        }
    }
}

impl<S, D: Database> Layer<S> for GuardLayer<D> {
    type Service = GuardService<S, D>;

    fn layer(&self, inner: S) -> Self::Service {
        Surrounded::new(inner, self.clone())
    }
}

/// The service that [`GuardLayer`] makes.
pub type GuardService<S, D> = Surrounded<S, GuardLayer<D>>;

impl<D: Database> Around for GuardLayer<D> {
    async fn handle<S>(self, inner: S, request: Request) -> Response
    where
        S: Service<Request, Response = Response, Error = Infallible> + Send + 'static,
        S::Future: Send,
    {
        let asked = match self.inner.front.sort(request).await {
            Sort::Passes(request) => return call(inner, request).await,
            Sort::Unguarded(request) => return self.unguarded(inner, request).await,
            Sort::Refused(response) => return response,
            Sort::Guarded(asked) => *asked,
        };
        // From here on to the end, even if the caller goes away: a claim that was just made must
        // not be left behind.
        match self.inner.mode {
            Mode::Transactional => {
                to_the_end(Box::pin(self.transactional_call(inner, asked))).await
            }
            Mode::Leased => {
                let (warden, front) = (self.inner.guard.warden(), &self.inner.front);
                let run = leased::run(warden.clone(), front.clone(), inner, asked);
                to_the_end(Box::pin(run)).await
            }
        }
    }
}

impl<D: Database> GuardLayer<D> {
    fn refuse(&self, problem: Problem) -> Response {
        self.inner.front.refuse(problem)
    }

    fn unavailable(&self, error: &GuardError) -> Response {
        self.inner.front.unavailable(&one_line(error))
    }

    async fn transactional_call<S>(self, inner: S, asked: Asked) -> Response
    where
        S: Service<Request, Response = Response, Error = Infallible> + Send + 'static,
        S::Future: Send,
    {
        let open = match self.inner.guard.enter(&asked.key, &asked.fingerprint).await {
            Ok(Entered::Fresh(open)) => open,
            Ok(other) => return self.inner.front.instead(other),
            // The guard has said it, once.
            Err(GuardError::Store(_)) => return self.refuse(Problem::unavailable()),
            Err(error) => return self.unavailable(&error),
        };
        self.run_in_tx(inner, asked.request, open).await
    }

    async fn run_in_tx<S>(self, inner: S, mut request: Request, mut open: Open<D>) -> Response
    where
        S: Service<Request, Response = Response, Error = Infallible> + Send + 'static,
        S::Future: Send,
    {
        let slot = Slot::<D>::new(open.take_tx());
        request.extensions_mut().insert(slot.clone());
        let context = open.context();
        let response = self.timed(context.scope(call(inner, request))).await;
        let Some(tx) = slot.take() else {
            return self.refuse(Problem::internal(
                "The handler has kept its transaction: nothing was committed.",
            ));
        };
        open.give_back(tx);
        let Some(response) = response else {
            return self
                .rolled_back(open, Problem::timed_out().into_response())
                .await;
        };
        let recording = answer::judge(&response, &self.inner.front.policy, Effects::RolledBack);
        let Ok((response, snapshot)) = answer::capture(response, &self.inner.front.policy).await
        else {
            let broken = Problem::internal("The answer could not be read: nothing was committed.");
            return self.rolled_back(open, broken.into_response()).await;
        };
        let caller = open.key().scope();
        let Some(end) = self.inner.front.end(recording, snapshot, caller) else {
            return self.rolled_back(open, response).await;
        };
        match open.end(end).await {
            Ok(Ended::Recorded(_) | Ended::Pending) => response,
            Ok(Ended::Lost(there)) => self.inner.front.lost(there.as_deref()),
            Err(GuardError::Store(counterfoil::StoreError::Doomed(why))) => {
                tracing::error!(
                    why,
                    "a handler has swallowed an error of the database: nothing was committed"
                );
                self.refuse(Problem::internal(
                    "An error of the database was overlooked: nothing was committed.",
                ))
            }
            Err(error) => self.unavailable(&error),
        }
    }

    /// The answer after a rollback. If even that fails the connection is gone, and with it the
    /// transaction.
    async fn rolled_back(&self, open: Open<D>, response: Response) -> Response {
        if let Err(error) = open.abandon().await {
            tracing::debug!(error = %one_line(&error), "a rollback was not answered");
        }
        response
    }

    /// A request without a key, where that is allowed. In transactional mode it gets a transaction
    /// all the same.
    async fn unguarded<S>(&self, inner: S, mut request: Request) -> Response
    where
        S: Service<Request, Response = Response, Error = Infallible> + Send + 'static,
        S::Future: Send,
    {
        if self.inner.mode == Mode::Leased {
            return call(inner, request).await;
        }
        let guard = &self.inner.guard;
        let tx = match guard.unguarded().await {
            Ok(tx) => tx,
            Err(error) => return self.unavailable(&error),
        };
        let slot = Slot::<D>::new(Some(tx));
        request.extensions_mut().insert(slot.clone());
        let response = call(inner, request).await;
        let Some(tx) = slot.take() else {
            return self.refuse(Problem::internal(
                "The handler has kept its transaction: nothing was committed.",
            ));
        };
        let recording = answer::judge(&response, &self.inner.front.policy, Effects::RolledBack);
        if recording != Recording::Succeeded {
            drop(tx);
            return response;
        }
        match guard.commit(tx).await {
            Ok(()) => response,
            Err(error) => self.unavailable(&error),
        }
    }

    /// The answer, or nothing when it takes longer than the rules allow.
    async fn timed(&self, work: impl Future<Output = Response>) -> Option<Response> {
        match self.inner.guard.rules().timeout {
            Some(limit) => tokio::time::timeout(limit, work).await.ok(),
            None => Some(work.await),
        }
    }
}

fn one_line(error: &GuardError) -> String {
    match error {
        GuardError::Store(error) => error.one_line(),
        other => other.to_string(),
    }
}
