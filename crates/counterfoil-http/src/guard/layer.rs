//! The layer, and the way of a request through it.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as Poller, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use counterfoil::guard::{Context, Ended, Entered, Found, GuardError, Lease, Open, State};
use counterfoil::{Database, Guard};
use counterfoil_core::guard::{Fingerprint, Key};
use http::request::Parts;
use tower::{Layer, Service};

use super::answer::{self, Effects, Recording};
use super::body;
use super::header_key::{self, HeaderKey};
use super::policy::Policy;
use super::tx::Slot;
use crate::Problem;

/// Tells whose request it is: a stable name, never a credential.
type CallerFn = dyn Fn(&Parts) -> Option<String> + Send + Sync;

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
                policy: Policy::default(),
                caller: Arc::new(whose),
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
    policy: Policy,
    caller: Arc<CallerFn>,
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
                policy,
                caller: Arc::clone(&self.inner.caller),
            }),
        }
    }
}

impl<S, D: Database> Layer<S> for GuardLayer<D> {
    type Service = GuardService<S, D>;

    fn layer(&self, inner: S) -> Self::Service {
        GuardService {
            inner,
            layer: self.clone(),
        }
    }
}

/// The service that [`GuardLayer`] makes.
pub struct GuardService<S, D: Database> {
    inner: S,
    layer: GuardLayer<D>,
}

impl<S: Clone, D: Database> Clone for GuardService<S, D> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            layer: self.layer.clone(),
        }
    }
}

impl<S, D> Service<Request> for GuardService<S, D>
where
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    D: Database,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Poller<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        // The service that was polled ready is the one that must be called.
        let fresh = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, fresh);
        let layer = self.layer.clone();
        Box::pin(async move { Ok(layer.handle(inner, request).await) })
    }
}

/// A request that may go on to its record.
struct Asked {
    key: Key,
    fingerprint: Fingerprint,
    request: Request,
}

impl<D: Database> GuardLayer<D> {
    async fn handle<S>(self, inner: S, request: Request) -> Response
    where
        S: Service<Request, Response = Response, Error = Infallible> + Send + 'static,
        S::Future: Send,
    {
        if !self.inner.policy.methods.contains(request.method()) {
            return call(inner, request).await;
        }
        let policy = &self.inner.policy;
        let key = match header_key::read(request.headers(), &policy.header, policy.strict_syntax) {
            Ok(HeaderKey::Given(key)) => key,
            Ok(HeaderKey::Absent) if policy.required => {
                return self.refuse(Problem::key_missing(policy.header.as_str()));
            }
            Ok(HeaderKey::Absent) => return self.unguarded(inner, request).await,
            Err(problem) => return self.refuse(problem),
        };
        let asked = match self.ask(key, request).await {
            Ok(asked) => asked,
            Err(problem) => return self.refuse(problem),
        };
        // From here on to the end, even if the caller goes away: a claim that was just made must
        // not be left behind.
        match self.inner.mode {
            Mode::Transactional => to_the_end(self.transactional_call(inner, asked)).await,
            Mode::Leased => to_the_end(self.leased_call(inner, asked)).await,
        }
    }

    fn refuse(&self, problem: Problem) -> Response {
        problem.help(&self.inner.policy.help).into_response()
    }

    async fn ask(&self, key: String, request: Request) -> Result<Asked, Problem> {
        let policy = &self.inner.policy;
        let (parts, body) = request.into_parts();
        let scope = (self.inner.caller)(&parts).ok_or_else(Problem::caller_unknown)?;
        let key = Key::new(scope, &*policy.business_type, key)
            .map_err(|e| Problem::key_malformed(format!("{e}.")))?;
        let bytes = body::read(&parts.headers, body, policy.max_body).await?;
        let fingerprint = body::fingerprint(&parts, &bytes, policy).await?;
        let mut request = Request::from_parts(parts, Body::from(bytes));
        request.extensions_mut().insert(key.clone());
        Ok(Asked {
            key,
            fingerprint,
            request,
        })
    }

    /// What somebody is told who does not run.
    fn instead<T>(&self, entered: Entered<T>) -> Response {
        match entered {
            Entered::Fresh(_) => Problem::internal("This cannot happen.").into_response(),
            Entered::Replay(found) => self.replay(&found),
            Entered::InProgress(after) => self.refuse(Problem::in_progress(after)),
            Entered::Conflict => self.refuse(Problem::conflict()),
            Entered::Uncertain(_) => self.refuse(Problem::uncertain(Duration::from_secs(10))),
            Entered::Later(after) => self.refuse(Problem::later(after)),
        }
    }

    fn replay(&self, found: &Found) -> Response {
        if self.inner.policy.plain_duplicate {
            return self.refuse(Problem::new(
                http::StatusCode::CONFLICT,
                "duplicate",
                "The request is a duplicate",
                "A request with this key was completed before.",
            ));
        }
        answer::replay(found)
    }

    /// What is there in the place of a claim that was lost.
    fn lost(&self, there: Option<&Found>) -> Response {
        match there.map(|f| (f, f.state())) {
            Some((found, State::Succeeded | State::Failed | State::Retryable)) => {
                self.replay(found)
            }
            Some((_, State::Uncertain)) => self.refuse(Problem::uncertain(Duration::from_secs(10))),
            _ => self.refuse(Problem::in_progress(Duration::from_secs(1))),
        }
    }

    fn unavailable(&self, error: &GuardError) -> Response {
        tracing::error!(
            error = %one_line(error),
            "the guard's records cannot be read or written"
        );
        self.refuse(Problem::unavailable())
    }

    async fn transactional_call<S>(self, inner: S, asked: Asked) -> Response
    where
        S: Service<Request, Response = Response, Error = Infallible> + Send + 'static,
        S::Future: Send,
    {
        let open = match self.inner.guard.enter(&asked.key, &asked.fingerprint).await {
            Ok(Entered::Fresh(open)) => open,
            Ok(other) => return self.instead(other),
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
        let recording = answer::judge(&response, &self.inner.policy, Effects::RolledBack);
        let Ok((response, snapshot)) =
            answer::capture(response, self.inner.policy.max_answer).await
        else {
            let broken = Problem::internal("The answer could not be read: nothing was committed.");
            return self.rolled_back(open, broken.into_response()).await;
        };
        let Some(end) = answer::end(recording, snapshot) else {
            return self.rolled_back(open, response).await;
        };
        match open.end(end).await {
            Ok(Ended::Recorded(_)) => response,
            Ok(Ended::Lost(there)) => self.lost(there.as_deref()),
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

    async fn leased_call<S>(self, inner: S, asked: Asked) -> Response
    where
        S: Service<Request, Response = Response, Error = Infallible> + Send + 'static,
        S::Future: Send,
    {
        let guard = &self.inner.guard;
        let lease = match guard.enter_leased(&asked.key, &asked.fingerprint).await {
            Ok(Entered::Fresh(lease)) => lease,
            Ok(other) => return self.instead(other),
            Err(error) => return self.unavailable(&error),
        };
        self.run_leased(inner, asked, lease).await
    }

    async fn run_leased<S>(self, inner: S, asked: Asked, lease: Lease) -> Response
    where
        S: Service<Request, Response = Response, Error = Infallible> + Send + 'static,
        S::Future: Send,
    {
        let context = Context::new(asked.key, lease.fence(), lease.attempt());
        let response = self.timed(context.scope(call(inner, asked.request))).await;
        let Some(response) = response else {
            return self.settled(lease.doubt().await, Problem::timed_out().into_response());
        };
        let recording = answer::judge(&response, &self.inner.policy, Effects::Anywhere);
        let Ok((response, snapshot)) =
            answer::capture(response, self.inner.policy.max_answer).await
        else {
            let broken = Problem::internal("The answer could not be read.");
            return self.settled(lease.doubt().await, broken.into_response());
        };
        let Some(end) = answer::end(recording, snapshot) else {
            let settled = match recording {
                Recording::Uncertain => lease.doubt().await,
                _ => lease.release().await,
            };
            return self.settled(settled, response);
        };
        match lease.end(end).await {
            Ok(Ended::Recorded(_)) => response,
            Ok(Ended::Lost(there)) => self.lost(there.as_deref()),
            // It has happened, and the caller shall know. The record becomes uncertain.
            Err(error) => {
                tracing::error!(
                    error = error.one_line(),
                    "cannot record that a request took effect"
                );
                response
            }
        }
    }

    /// The answer, whether the record could be changed or not: its lease runs out by itself.
    fn settled(
        &self,
        settled: counterfoil_core::store::Result<bool>,
        response: Response,
    ) -> Response {
        if let Err(error) = settled {
            tracing::error!(
                error = error.one_line(),
                "cannot settle a record of the guard"
            );
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
        let recording = answer::judge(&response, &self.inner.policy, Effects::RolledBack);
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

/// Runs to the end even if the caller goes away, which is bounded by the time that a duplicate
/// waits and by the time that a handler takes. A panic is an error of the server; what the
/// request held is given up as it unwinds.
async fn to_the_end(work: impl Future<Output = Response> + Send + 'static) -> Response {
    match tokio::spawn(work).await {
        Ok(response) => response,
        Err(_) => Problem::internal("The handler ended badly.").into_response(),
    }
}

async fn call<S>(mut inner: S, request: Request) -> Response
where
    S: Service<Request, Response = Response, Error = Infallible>,
{
    match inner.call(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

fn one_line(error: &GuardError) -> String {
    match error {
        GuardError::Store(error) => error.one_line(),
        other => other.to_string(),
    }
}
