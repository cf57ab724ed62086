//! The calls of one destination: many callers, one call; then retries, breaker, ceiling.

use std::sync::Arc;
use std::task::{Context, Poll};

use counterfoil_engine::pipeline::{
    AttemptTimeoutLayer, BreakerLayer, BulkheadLayer, CallError, CallFuture, Coalesce,
    CoalesceLayer, Dependency, Ended, RetryLayer,
};
use tower::{Layer as _, Service, ServiceExt as _};

use super::answer::Answer;
use super::attempt::{Attempt, Call, Trail};
use super::error::{Error, Failed, Lost};
use super::judge::{Health, Judge};

type SameFn = fn(&Call) -> Option<String>;

/// Calls of one destination, of which equal ones at the same time are one.
pub(super) type Calls = Coalesce<Tried, SameFn, Answer, CallError<Error>>;

pub(super) fn calls(name: &str, dependency: &Arc<Dependency>, attempt: Attempt) -> Calls {
    let same: SameFn = |call| call.same.clone();
    CoalesceLayer::new(dependency.name(), same).layer(Tried {
        name: Arc::from(name),
        dependency: Arc::clone(dependency),
        attempt,
    })
}

/// One call with all its attempts.
#[derive(Clone)]
pub(super) struct Tried {
    name: Arc<str>,
    dependency: Arc<Dependency>,
    attempt: Attempt,
}

impl Tried {
    async fn run(self, call: Call) -> Result<Answer, Error> {
        let (key, within, trail) = (call.key.clone(), call.within, Arc::clone(&call.trail));
        let judge = Judge {
            keyed: key.is_some(),
            trail: Arc::clone(&trail),
        };
        let dependency = || Arc::clone(&self.dependency);
        let timed = AttemptTimeoutLayer::new(call.attempt).layer(self.attempt.clone());
        // Nothing is known about a destination when the fault is ours: its breaker hears nothing.
        let fair = timed.map_err(ours);
        let guarded = BreakerLayer::new(dependency(), Health).layer(fair);
        let confined = BulkheadLayer::new(dependency()).layer(guarded);
        let retried = RetryLayer::new(dependency(), judge).layer(confined);
        match retried.oneshot(call).await {
            Ok(answer) => {
                let ended = trail.ended().unwrap_or(Ended::Answered);
                Ok(answer.after(trail.attempts(), ended))
            }
            Err(error) => {
                let failed = failed(&self.name, key, &trail);
                Err(Error::of(error, failed, trail.ended(), within))
            }
        }
    }
}

/// An upload that failed is no answer of the destination.
fn ours(error: CallError<Lost>) -> CallError<Lost> {
    match error {
        CallError::Call(Lost::Upload) => CallError::Abandoned,
        other => other,
    }
}

pub(super) fn failed(name: &str, key: Option<String>, trail: &Trail) -> Failed {
    Failed {
        destination: name.to_owned(),
        key,
        attempts: trail.attempts(),
        possibly_sent: trail.sent(),
    }
}

impl Service<Call> for Tried {
    type Response = Answer;
    type Error = CallError<Error>;
    type Future = CallFuture<Answer, CallError<Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: Call) -> Self::Future {
        let tried = self.clone();
        Box::pin(async move { tried.run(call).await.map_err(CallError::Call) })
    }
}
