//! What may be tried again, and what counts against a destination.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use counterfoil_engine::pipeline::policy::class::Failure;
use counterfoil_engine::pipeline::policy::retry_after;
use counterfoil_engine::pipeline::{CallError, Class, Classify, Effect, Report, spent};
use http::{StatusCode, header};

use super::answer::Answer;
use super::attempt::{Call, Carried, Trail};
use super::error::Lost;

/// Whether one call may be made again.
#[derive(Clone)]
pub(super) struct Judge {
    pub(super) keyed: bool,
    pub(super) trail: Arc<Trail>,
}

impl Classify<Call, Answer, Lost> for Judge {
    fn class(&self, result: Result<&Answer, &Lost>) -> Class {
        match result {
            // "The first one with this key is still running, come again": then its answer is there.
            // A 409 that says no time is a "no".
            Ok(answer) if self.keyed && answer.status() == StatusCode::CONFLICT => {
                match asked(answer) {
                    Some(after) => Class::Throttled { after: Some(after) },
                    None => Class::Refused,
                }
            }
            other => class(other),
        }
    }

    fn effect(&self, call: &Call) -> Effect {
        call.effect
    }

    fn again(&self, call: &Call) -> Option<Call> {
        let Carried::Whole(bytes) = &call.body else {
            return None;
        };
        Some(Call {
            parts: call.parts.clone(),
            body: Carried::Whole(bytes.clone()),
            effect: call.effect,
            key: call.key.clone(),
            within: call.within,
            attempt: call.attempt,
            same: call.same.clone(),
            trail: Arc::clone(&call.trail),
        })
    }

    fn deadline(&self, call: &Call) -> Option<Duration> {
        Some(call.within)
    }

    fn spent(&self, result: Result<&Answer, &Lost>) -> bool {
        result.is_ok_and(|answer| spent::is_marked(answer.headers()))
    }

    fn finished(&self, _: Result<&mut Answer, &CallError<Lost>>, report: Report) {
        self.trail.end(report.ended);
    }
}

/// How a destination does its work, for its breaker. That one request with a key is still
/// running there is no reason to leave it alone.
#[derive(Clone, Copy)]
pub(super) struct Health;

impl Classify<Call, Answer, Lost> for Health {
    fn class(&self, result: Result<&Answer, &Lost>) -> Class {
        class(result)
    }
}

fn class(result: Result<&Answer, &Lost>) -> Class {
    match result {
        Ok(answer) => Class::of_status(answer.status().as_u16(), asked(answer)),
        Err(Lost::Broken(_)) => Class::Failed(Failure::Network),
        // It has answered; the next answer will be as large. An upload of ours never gets here.
        Err(Lost::TooLarge { .. } | Lost::Upload) => Class::Refused,
    }
}

fn asked(answer: &Answer) -> Option<Duration> {
    let text = answer.headers().get(header::RETRY_AFTER)?.to_str().ok()?;
    retry_after::parse(text, SystemTime::now())
}
