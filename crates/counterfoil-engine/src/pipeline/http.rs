//! Requests and answers of HTTP.

use std::time::{Duration, SystemTime};

use counterfoil_core::policy::class::Failure;
use counterfoil_core::policy::{Class, Effect, retry_after};
use http::{HeaderMap, Request, Response, header};

use super::classify::Classify;
use super::error::{CallError, Report};
use super::spent;

/// HTTP: statuses as [`Class::of_status`] says, every error is one of the network, and a write may
/// be repeated when it carries an `Idempotency-Key` or a condition (`If-Match` and the like).
///
/// An answer that is marked as [`spent`] is not asked for again.
///
/// A caller that knows better puts an [`Effect`] into the extensions of the request. A
/// [`Report`] stands in the extensions of the answer. What comes after the head of an answer is not
/// looked at.
#[derive(Debug, Clone, Copy, Default)]
pub struct Http;

/// The time for all attempts of one request, in its extensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Within(pub Duration);

impl<B, R, E> Classify<Request<B>, Response<R>, E> for Http
where
    B: Clone,
{
    fn class(&self, result: Result<&Response<R>, &E>) -> Class {
        match result {
            Ok(answer) => {
                let after = asked(answer.headers());
                Class::of_status(answer.status().as_u16(), after)
            }
            Err(_) => Class::Failed(Failure::Network),
        }
    }

    fn effect(&self, request: &Request<B>) -> Effect {
        if let Some(effect) = request.extensions().get::<Effect>() {
            return *effect;
        }
        let headers = request.headers();
        let conditional = [
            header::IF_MATCH,
            header::IF_NONE_MATCH,
            header::IF_UNMODIFIED_SINCE,
        ];
        Effect::of_method(
            request.method().as_str(),
            headers.contains_key("idempotency-key"),
            conditional.iter().any(|name| headers.contains_key(name)),
        )
    }

    fn again(&self, request: &Request<B>) -> Option<Request<B>> {
        Some(request.clone())
    }

    fn deadline(&self, request: &Request<B>) -> Option<Duration> {
        request.extensions().get::<Within>().map(|within| within.0)
    }

    fn spent(&self, result: Result<&Response<R>, &E>) -> bool {
        result.is_ok_and(|answer| spent::is_marked(answer.headers()))
    }

    fn finished(&self, result: Result<&mut Response<R>, &CallError<E>>, report: Report) {
        if let Ok(answer) = result {
            answer.extensions_mut().insert(report);
        }
    }
}

fn asked(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(header::RETRY_AFTER)?.to_str().ok()?;
    retry_after::parse(text, SystemTime::now())
}
