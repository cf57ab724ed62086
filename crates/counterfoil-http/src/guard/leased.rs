//! The leased mode as a layer: claim, call, record.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use counterfoil::guard::{Context, Ended, Entered, Lease};
use counterfoil_engine::guard::Warden;
use http::request::Parts;
use tower::{Layer, Service};

use super::answer::{self, Effects, Recording};
use super::front::{Asked, Front, Sort};
use super::policy::Policy;
use super::to_the_end;
use crate::Problem;
use crate::around::{Around, Surrounded, call};

/// The leased mode over any records: [`crate::GuardLayer::leased`] without a type for the database.
///
/// Answers carry the [`Key`](counterfoil_core::guard::Key) and the [`Recording`] in their
/// extensions, for layers outside.
#[derive(Clone)]
pub struct LeasedLayer {
    inner: Arc<(Warden, Front)>,
}

impl LeasedLayer {
    /// Requests of the callers that this function names, by this policy.
    pub fn new<F>(warden: Warden, policy: Policy, caller: F) -> Self
    where
        F: Fn(&Parts) -> Option<String> + Send + Sync + 'static,
    {
        let front = Front {
            policy,
            caller: Arc::new(caller),
            quota: Arc::default(),
        };
        Self {
            inner: Arc::new((warden, front)),
        }
    }
}

impl Around for LeasedLayer {
    async fn handle<S>(self, inner: S, request: Request) -> Response
    where
        S: Service<Request, Response = Response, Error = Infallible> + Send + 'static,
        S::Future: Send,
    {
        let (warden, front) = &*self.inner;
        match front.sort(request).await {
            Sort::Passes(request) | Sort::Unguarded(request) => call(inner, request).await,
            Sort::Refused(response) => response,
            Sort::Guarded(asked) => {
                let (warden, front) = (warden.clone(), front.clone());
                to_the_end(Box::pin(run(warden, front, inner, *asked))).await
            }
        }
    }
}

impl<S> Layer<S> for LeasedLayer {
    type Service = LeasedService<S>;

    fn layer(&self, inner: S) -> LeasedService<S> {
        Surrounded::new(inner, self.clone())
    }
}

/// The service that [`LeasedLayer`] makes.
pub type LeasedService<S> = Surrounded<S, LeasedLayer>;

/// One guarded request, from its claim to the record of its answer.
pub(super) async fn run<S>(warden: Warden, front: Front, inner: S, asked: Asked) -> Response
where
    S: Service<Request, Response = Response, Error = Infallible> + Send + 'static,
    S::Future: Send,
{
    let key = asked.key.clone();
    let mut response = match warden.enter_leased(&asked.key, &asked.fingerprint).await {
        Ok(Entered::Fresh(lease)) => owned(&warden, &front, inner, asked, lease).await,
        Ok(other) => front.instead(other),
        // The guard has said it, once.
        Err(_) => front.refuse(Problem::unavailable()),
    };
    response.extensions_mut().insert(key);
    response
}

async fn owned<S>(warden: &Warden, front: &Front, inner: S, asked: Asked, lease: Lease) -> Response
where
    S: Service<Request, Response = Response, Error = Infallible> + Send + 'static,
    S::Future: Send,
{
    let key = asked.key.clone();
    let context = Context::new(asked.key, lease.fence(), lease.attempt());
    let work = context.scope(call(inner, asked.request));
    let response = match warden.the_rules().timeout {
        Some(limit) => tokio::time::timeout(limit, work).await.ok(),
        None => Some(work.await),
    };
    let Some(response) = response else {
        return doubt(lease, Problem::timed_out()).await;
    };
    let recording = answer::judge(&response, &front.policy, Effects::Anywhere);
    let Ok((mut response, snapshot)) = answer::capture(response, &front.policy).await else {
        return doubt(lease, Problem::internal("The answer could not be read.")).await;
    };
    response.extensions_mut().insert(recording);
    let Some(end) = front.end(recording, snapshot, key.scope()) else {
        let settled = match recording {
            Recording::Uncertain => lease.doubt().await,
            _ => lease.release().await,
        };
        return Front::settled(settled, response);
    };
    match lease.end(end).await {
        Ok(Ended::Recorded(_) | Ended::Pending) => response,
        Ok(Ended::Lost(there)) => front.lost(there.as_deref()),
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

async fn doubt(lease: Lease, problem: Problem) -> Response {
    let mut response = problem.into_response();
    response.extensions_mut().insert(Recording::Uncertain);
    Front::settled(lease.doubt().await, response)
}
