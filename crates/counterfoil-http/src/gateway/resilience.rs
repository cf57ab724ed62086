//! What is wrapped around the calls of a service: retries, a breaker, a budget, a ceiling.
//!
//! # Promise
//! A service is one dependency, `upstream:NAME`, whatever routes lead to it. While its breaker is
//! open it gets nothing but probes. Retries happen here and nowhere else in the gateway, inside the
//! service's budget, and none begins after the deadline:
//!
//! | call | is made again | at most |
//! |---|---|---|
//! | GET and HEAD without a body | after 5xx, 408, 425, 429, no answer | 5 times |
//! | with a key, guarded | when it is proven that nothing was sent, after a status that the route calls harmless, and after 425 and 429 where they are not recorded | 4 times |
//! | everything else | never | |
//!
//! An answer that stands although it could have been asked for again says so
//! ([`spent`]), and one that says so already is not asked for again. So of several gateways
//! and clients in a row only the one that is nearest to the service tries again.
//!
//! A call has its place until its answer has come to its end.
//!
//! What is not called because of all this is [`ForwardError::NotNow`], and so is a call that would
//! have been made again if the budget had allowed it and of which nothing was sent.
//!
//! Requests that are not guarded are streamed, so there is no copy to send again. They pass the
//! breaker and the ceiling only, and end as the service's own `timeout` says: an upload may take
//! as long as it moves. An attempt with a key is never cut off here either, because that would make
//! its outcome uncertain.
//!
//! # When it is dropped
//! The call is dropped, its place is free, and the breaker hears nothing of it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use counterfoil_core::guard::Key;
use counterfoil_engine::pipeline::policy::class::Failure;
use counterfoil_engine::pipeline::policy::retry_after;
use counterfoil_engine::pipeline::{
    Break, BreakerLayer, CallError, CallFuture, Class, Classify, Dependency, Effect, Ended,
    LimitsError, Registry, Report, RetryLayer, spent,
};
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode, header};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use tower::{Layer as _, Service, ServiceExt as _};

use super::forward::{CROWDED, ForwardError, Step, Wrap};
use super::lent::Seat;
use super::route::Route;
use super::upstream::Upstream;
use crate::guard::answer::copied;
use crate::guard::body::whole;

/// When to come again if nobody knows better: the budget is spent, or an operator holds the
/// breaker open.
const LATER: Duration = Duration::from_secs(10);
/// What of an answer is read before the call is made again, and how long that may take. An answer
/// that does not fit keeps its place meanwhile.
const KEPT: usize = 64 * 1024;
const KEPT_IN: Duration = Duration::from_secs(1);

/// Wraps the calls of every route by the limits of its upstream. Made again are GET and HEAD after
/// failures, guarded requests while it is proven that nothing has happened, and nothing else. What
/// is not called is [`ForwardError::NotNow`].
pub fn resilient(registry: Registry) -> Wrap {
    Arc::new(
        move |route: &Route, step: Step| match register(&registry, &route.upstream) {
            Ok(dependency) => {
                let calls = Arc::new(Calls {
                    step,
                    upstream: Arc::clone(&route.upstream),
                    dependency,
                    rule: rule(route),
                });
                Step::of(move |request| Box::pin(Arc::clone(&calls).run(request)))
            }
            // The limits of an upstream were checked when it was made.
            Err(error) => {
                tracing::error!(upstream = route.upstream.name(), %error, "calls have no limits");
                step
            }
        },
    )
}

/// The dependency that stands for an upstream. Whoever asks first decides its limits: those that are
/// changed later hold from the next start on.
pub fn register(registry: &Registry, upstream: &Upstream) -> Result<Arc<Dependency>, LimitsError> {
    let settings = upstream.settings();
    let mut wanted = settings.limits;
    // A call has a connection for as long as it has a place: there is one ceiling.
    wanted.bulkhead.limit = wanted.bulkhead.limit.min(settings.connections);
    let dependency = registry.dependency(&upstream.destination(), wanted)?;
    if *dependency.limits() != wanted {
        tracing::warn!(
            upstream = upstream.name(),
            "the changed limits of its retries, breaker and places hold from the next start on"
        );
    }
    Ok(dependency)
}

/// What holds for guarded requests of a route.
#[derive(Default)]
struct Rule {
    harmless: Vec<StatusCode>,
    /// The service has not begun, and the key stays free.
    refusals: Vec<StatusCode>,
    /// No attempt begins later.
    within: Option<Duration>,
}

fn rule(route: &Route) -> Rule {
    let Some(guard) = &route.guard else {
        return Rule::default();
    };
    let deadline = route.upstream.settings().limits.deadline;
    Rule {
        harmless: guard.policy.harmless.clone(),
        // Not 408: a handler that was cut off may have said it.
        refusals: [StatusCode::TOO_EARLY, StatusCode::TOO_MANY_REQUESTS]
            .into_iter()
            .filter(|status| guard.policy.is_refusal(*status, false))
            .collect(),
        // By then the claim is ours even if it could not be renewed once.
        within: Some(deadline.min(guard.rules.lease / 3)),
    }
}

/// A request on its way to the service.
struct Call {
    parts: Parts,
    body: Carried,
    /// When it has one.
    seat: Option<Seat>,
}

enum Carried {
    /// As it comes, once.
    Stream(Body),
    /// In memory.
    Whole(Bytes, Option<HeaderMap>),
}

/// What may be done with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Keyed,
    Once,
}

impl Kind {
    fn of(request: &Request) -> Self {
        let read = matches!(*request.method(), Method::GET | Method::HEAD);
        // The guard says so, not the caller: its header may be on a request that is not guarded.
        if request.extensions().get::<Key>().is_some() {
            Kind::Keyed
        } else if read && request.body().is_end_stream() {
            Kind::Read
        } else {
            Kind::Once
        }
    }
}

/// What is known about one call besides its result.
#[derive(Default)]
struct Notes {
    report: Option<Report>,
    /// The caller's own upload has failed: nothing is known about the service.
    spoiled: Option<ForwardError>,
}

type Shared = Arc<Mutex<Notes>>;

fn note(notes: &Shared, write: impl FnOnce(&mut Notes)) {
    write(&mut notes.lock().unwrap_or_else(PoisonError::into_inner));
}

/// Calls of a route, with all their attempts.
struct Calls {
    step: Step,
    upstream: Arc<Upstream>,
    dependency: Arc<Dependency>,
    rule: Rule,
}

impl Calls {
    async fn run(self: Arc<Self>, request: Request) -> Result<Response, ForwardError> {
        let (kind, notes) = (Kind::of(&request), Shared::default());
        let (parts, body) = request.into_parts();
        let body = match kind {
            Kind::Once => Carried::Stream(body),
            Kind::Read => Carried::Whole(Bytes::new(), None),
            // The guard has read it: nothing is waited for.
            Kind::Keyed => match body.collect().await {
                Ok(read) => {
                    let trailers = read.trailers().cloned();
                    Carried::Whole(read.to_bytes(), trailers)
                }
                Err(error) => return Err(self.not_now(&error.to_string(), LATER)),
            },
        };
        let judge = Judge {
            kind,
            calls: Arc::clone(&self),
            notes: Arc::clone(&notes),
        };
        let attempt = Attempt {
            kind,
            calls: Arc::clone(&self),
            notes: Arc::clone(&notes),
        };
        let dependency = || Arc::clone(&self.dependency);
        let health = Health {
            streamed: matches!(&body, Carried::Stream(body) if !body.is_end_stream()),
        };
        let placed = Placed {
            inner: BreakerLayer::new(dependency(), health).layer(attempt),
            calls: Arc::clone(&self),
        };
        let retried = RetryLayer::new(dependency(), judge).layer(placed);
        let seat = None;
        let result = retried.oneshot(Call { parts, body, seat }).await;
        let notes = std::mem::take(&mut *notes.lock().unwrap_or_else(PoisonError::into_inner));
        self.ended(result, notes)
    }

    fn ended(
        &self,
        result: Result<Response, CallError<ForwardError>>,
        notes: Notes,
    ) -> Result<Response, ForwardError> {
        if let Some(error) = notes.spoiled {
            return Err(error);
        }
        let spent = notes.report.is_some_and(used_up);
        match self.told(result, notes.report.map(|report| report.ended)) {
            Ok(mut answer) if spent => {
                spent::mark(answer.headers_mut());
                Ok(answer)
            }
            Err(error) if spent => Err(ForwardError::Spent(Box::new(error))),
            other => other,
        }
    }

    fn told(
        &self,
        result: Result<Response, CallError<ForwardError>>,
        ended: Option<Ended>,
    ) -> Result<Response, ForwardError> {
        let short = matches!(ended, Some(Ended::BudgetSpent | Ended::TurnedAway));
        let why = match ended {
            Some(Ended::BudgetSpent) => "the budget for retries is spent",
            _ => "no further call is let through",
        };
        let wait = || self.dependency.wait().filter(|wait| !wait.is_zero());
        match result {
            Ok(answer) => Ok(answer),
            Err(CallError::Call(ForwardError::NotSent { why: failed, .. })) if short => {
                let why = format!("{why} after: {failed}");
                Err(self.not_now(&why, wait().unwrap_or(LATER)))
            }
            Err(CallError::Call(error)) => Err(error),
            Err(error) if error.not_called() => {
                let otherwise = match error {
                    CallError::Full => CROWDED,
                    _ => LATER,
                };
                let after = error.retry_after().unwrap_or(otherwise);
                Err(self.not_now(&error.to_string(), after))
            }
            Err(error) => Err(ForwardError::Unanswered {
                upstream: self.upstream.name().to_owned(),
                why: error.to_string(),
                silent: true,
            }),
        }
    }

    /// What came of an attempt, for whoever wants to make it again.
    fn class(&self, kind: Kind, result: Result<&Response, &ForwardError>) -> Class {
        let class = class(result);
        let nothing_happened = match result {
            Ok(answer) if answer.extensions().get::<Unkept>().is_some() => {
                return Class::Refused;
            }
            Ok(answer) => {
                let status = &answer.status();
                self.rule.harmless.contains(status) || self.rule.refusals.contains(status)
            }
            Err(error) => error.nothing_sent(),
        };
        match kind {
            // It may have happened: never again, whatever it was.
            Kind::Keyed if class.can_pass_later() && !nothing_happened => Class::Refused,
            _ => class,
        }
    }

    fn not_now(&self, why: &str, after: Duration) -> ForwardError {
        let name = self.upstream.name();
        ForwardError::NotNow {
            why: format!("`{name}`: {why}"),
            after,
        }
    }
}

/// Whether a call stands because it may not be made again any more, not because of what it is.
fn used_up(report: Report) -> bool {
    match report.ended {
        // One for all is no retry that was used up: there are none here.
        Ended::Attempts => report.attempts > 1,
        Ended::Deadline | Ended::BudgetSpent | Ended::TurnedAway => report.attempts > 0,
        // Who has more time than we may wait as long as the service asks for.
        _ => false,
    }
}

/// Says of a failed answer that it is too long to be kept, or takes too long: it has its place until
/// its end, and another attempt could wait for just that place. So there is none.
#[derive(Clone)]
struct Unkept;

/// Waits for a place. The breaker is asked when there is one: what a call waits for is no slowness
/// of its service.
#[derive(Clone)]
struct Placed {
    inner: Break<Attempt, Health>,
    calls: Arc<Calls>,
}

impl Service<Call> for Placed {
    type Response = Response;
    type Error = CallError<ForwardError>;
    type Future = CallFuture<Response, CallError<ForwardError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut call: Call) -> Self::Future {
        let mut this = self.clone();
        Box::pin(async move {
            let Calls {
                upstream,
                dependency,
                ..
            } = &*this.calls;
            if let Some(refusal) = dependency.refusal() {
                return Err(refusal);
            }
            let patience = upstream.settings().connect_timeout;
            let place = dependency.enter_within(patience).await;
            let place = Arc::new(place.ok_or(CallError::Full)?);
            call.seat = Some(Seat { _place: place });
            this.inner.call(call).await
        })
    }
}

/// One attempt of one call.
#[derive(Clone)]
struct Attempt {
    kind: Kind,
    calls: Arc<Calls>,
    notes: Shared,
}

impl Service<Call> for Attempt {
    type Response = Response;
    type Error = CallError<ForwardError>;
    type Future = CallFuture<Response, CallError<ForwardError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: Call) -> Self::Future {
        Box::pin(self.clone().run(call))
    }
}

impl Attempt {
    async fn run(self, call: Call) -> Result<Response, CallError<ForwardError>> {
        let (request, spoiled) = outward(call);
        let answer = self.answer(request);
        let after = self.calls.dependency.limits().attempt;
        let answer = match self.kind {
            // A timer for ever is one for nothing.
            Kind::Read if after != Duration::MAX => match tokio::time::timeout(after, answer).await
            {
                Ok(answer) => answer,
                Err(_) => return Err(CallError::Timeout { after }),
            },
            Kind::Read | Kind::Keyed | Kind::Once => answer.await,
        };
        match answer {
            Ok(answer) => Ok(answer),
            // Something between here and the service has not called it.
            Err(ForwardError::NotNow { .. }) => Err(CallError::Full),
            Err(error) if spoiled.is_some_and(|spoiled| spoiled.load(Ordering::Acquire)) => {
                note(&self.notes, |notes| notes.spoiled = Some(error));
                Err(CallError::Abandoned)
            }
            Err(error) => Err(CallError::Call(error)),
        }
    }
}

impl Attempt {
    /// The answer. One that may be asked for again is read first, so that it stands if there is no
    /// further attempt, and holds up none meanwhile.
    async fn answer(&self, request: Request) -> Result<Response, ForwardError> {
        let answer = self.calls.step.run(request).await?;
        let class = self.calls.class(self.kind, Ok(&answer));
        if self.kind == Kind::Once || !class.can_pass_later() {
            return Ok(answer);
        }
        let (mut parts, body) = answer.into_parts();
        match copied(body, |size| size <= KEPT, Some(KEPT_IN)).await {
            Ok((body, copy)) => {
                if copy.is_none() {
                    parts.extensions.insert(Unkept);
                }
                Ok(Response::from_parts(parts, body))
            }
            Err(error) => Err(ForwardError::Unanswered {
                upstream: self.calls.upstream.name().to_owned(),
                why: format!("its answer broke off: {error}"),
                silent: false,
            }),
        }
    }
}

/// The request itself, and whether reading it from the caller has failed.
fn outward(call: Call) -> (Request, Option<Arc<AtomicBool>>) {
    let mut spoiled = None;
    let body = match call.body {
        Carried::Whole(bytes, trailers) => whole(bytes, trailers),
        Carried::Stream(body) if body.is_end_stream() => body,
        Carried::Stream(body) => {
            let failed = Arc::clone(spoiled.insert(Arc::new(AtomicBool::new(false))));
            Body::new(body.map_err(move |error| {
                failed.store(true, Ordering::Release);
                error
            }))
        }
    };
    let mut request = Request::from_parts(call.parts, body);
    if let Some(seat) = call.seat {
        request.extensions_mut().insert(seat);
    }
    (request, spoiled)
}

/// Whether a call may be made again.
#[derive(Clone)]
struct Judge {
    kind: Kind,
    calls: Arc<Calls>,
    notes: Shared,
}

impl Classify<Call, Response, ForwardError> for Judge {
    fn class(&self, result: Result<&Response, &ForwardError>) -> Class {
        self.calls.class(self.kind, result)
    }

    fn effect(&self, _: &Call) -> Effect {
        match self.kind {
            Kind::Read => Effect::Read,
            Kind::Keyed | Kind::Once => Effect::Write {
                keyed: self.kind == Kind::Keyed,
                conditional: false,
            },
        }
    }

    fn again(&self, call: &Call) -> Option<Call> {
        match &call.body {
            Carried::Stream(_) => None,
            Carried::Whole(bytes, trailers) => Some(Call {
                parts: call.parts.clone(),
                body: Carried::Whole(bytes.clone(), trailers.clone()),
                seat: None,
            }),
        }
    }

    fn deadline(&self, _: &Call) -> Option<Duration> {
        self.calls.rule.within.filter(|_| self.kind == Kind::Keyed)
    }

    fn outlasts(&self, _: &Call) -> bool {
        true
    }

    fn spent(&self, result: Result<&Response, &ForwardError>) -> bool {
        result.is_ok_and(|answer| spent::is_marked(answer.headers()))
    }

    fn finished(&self, _: Result<&mut Response, &CallError<ForwardError>>, report: Report) {
        note(&self.notes, |notes| notes.report = Some(report));
    }
}

fn class(result: Result<&Response, &ForwardError>) -> Class {
    match result {
        Ok(answer) => {
            let asked = answer.headers().get(header::RETRY_AFTER);
            let asked = asked.and_then(|v| retry_after::parse(v.to_str().ok()?, SystemTime::now()));
            Class::of_status(answer.status().as_u16(), asked)
        }
        Err(ForwardError::Unanswered { silent: true, .. }) => Class::Failed(Failure::Timeout),
        Err(_) => Class::Failed(Failure::Network),
    }
}

/// How a service does its work, for its breaker.
#[derive(Clone, Copy)]
struct Health {
    /// The request comes from its caller while it is sent.
    streamed: bool,
}

impl Classify<Call, Response, ForwardError> for Health {
    fn class(&self, result: Result<&Response, &ForwardError>) -> Class {
        match result {
            // A "no" to one caller, 429 and 408 included, must not shut out the others.
            Ok(answer) if answer.status().is_client_error() => Class::Refused,
            other => class(other),
        }
    }

    fn timed(&self) -> bool {
        // A caller that is slow at its upload must not shut out the others either.
        !self.streamed
    }
}
