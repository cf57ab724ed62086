//! What a pipeline has to know about requests and answers.

use std::marker::PhantomData;
use std::time::Duration;

use counterfoil_core::policy::class::Failure;
use counterfoil_core::policy::{Class, Effect};

use super::error::{CallError, Report};

/// What a pipeline has to know about the requests and answers of a service.
///
/// [`Http`](super::Http) is the one for HTTP.
pub trait Classify<Req, Res, E>: Clone + Send + Sync + 'static {
    /// What came of a call.
    fn class(&self, result: Result<&Res, &E>) -> Class;

    /// What the request does at the other side. A write without key and condition, if nobody says
    /// otherwise.
    fn effect(&self, request: &Req) -> Effect {
        let _ = request;
        Effect::Write {
            keyed: false,
            conditional: false,
        }
    }

    /// A copy for another attempt; absent when there is none to be had.
    fn again(&self, request: &Req) -> Option<Req> {
        let _ = request;
        None
    }

    /// The time for all attempts of this request; absent for the usual one.
    fn deadline(&self, request: &Req) -> Option<Duration> {
        let _ = request;
        None
    }

    /// Whether an attempt that has begun may go on past the deadline, because nobody would know what
    /// came of it if it were cut off. Then the deadline only says when no further one begins.
    fn outlasts(&self, request: &Req) -> bool {
        let _ = request;
        false
    }

    /// Whether somebody nearer to the dependency has tried again already, so that this result stands;
    /// see [`spent`](super::spent).
    fn spent(&self, result: Result<&Res, &E>) -> bool {
        let _ = result;
        false
    }

    /// Whether the time that a call takes says something about the dependency, and may be too long
    /// for its breaker. It does not while somebody else may take their time with the request.
    fn timed(&self) -> bool {
        true
    }

    /// The call is over, after all its attempts.
    fn finished(&self, result: Result<&mut Res, &CallError<E>>, report: Report) {
        let _ = (result, report);
    }
}

/// Whether a result that came through layers of ours was asked for again by somebody else.
pub(super) fn is_spent<Req, Res, E, C: Classify<Req, Res, E>>(
    classify: &C,
    result: &Result<Res, CallError<E>>,
    _: PhantomData<Req>,
) -> bool {
    match result {
        Ok(answer) => classify.spent(Ok(answer)),
        Err(CallError::Call(error)) => classify.spent(Err(error)),
        Err(_) => false,
    }
}

/// The class of a result that came through layers of ours. Absent when the dependency was not
/// called, or nothing is known about it.
pub(super) fn class_of<Req, Res, E, C: Classify<Req, Res, E>>(
    classify: &C,
    result: &Result<Res, CallError<E>>,
    _: PhantomData<Req>,
) -> Option<Class> {
    match result {
        Ok(answer) => Some(classify.class(Ok(answer))),
        Err(CallError::Call(error)) => Some(classify.class(Err(error))),
        Err(CallError::Timeout { .. }) => Some(Class::Failed(Failure::Timeout)),
        Err(_) => None,
    }
}
