//! The client for applications: calls of other services that may be repeated without harm.
//!
//! # Promise
//! A write is tried again only when it carries a key or a condition, and always with the same key.
//! Only what can pass is tried again: 5xx, network errors, timeouts, 408, 425, 429, and a 409 with
//! `Retry-After` to a request with a key, which is how a guard says that the first one is still
//! running. An answer that a gateway on the way has asked for again already
//! ([`spent`](counterfoil_engine::pipeline::spent)) is not asked for again. Every call ends by its deadline. A destination in trouble is left alone: its retries
//! have a budget, its breaker opens, and calls at one time have a ceiling. Of equal calls with one
//! key at the same time one is made, and all get its answer. An error says whether the request may
//! have been sent.
//!
//! ```
//! use std::time::Duration;
//!
//! use axum::{Router, http::HeaderMap, routing::post};
//! use counterfoil_http::Client;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A service that tells which key it was given.
//! let told = |headers: HeaderMap| async move { headers["idempotency-key"].clone().to_str().unwrap().to_owned() };
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! let payments = format!("http://{}", listener.local_addr()?);
//! tokio::spawn(async move { axum::serve(listener, Router::new().route("/charge", post(told))).await });
//!
//! let client = Client::builder().deadline(Duration::from_secs(2)).build()?;
//! let charge = client.post(format!("{payments}/charge")).key("order-7").json(&1250);
//! match charge.send().await {
//!     Ok(answer) => assert_eq!(answer.text(), r#""order-7""#),
//!     Err(error) if error.certainly_not_sent() => println!("nothing has happened: {error}"),
//!     Err(error) => println!("ask again with the same key: {error}"),
//! }
//! # Ok(()) }
//! ```
//!
//! # In a handler
//! A handler that runs under the guard, and a task, may run again. Calls that it makes by name carry
//! a key that is derived from its own, so that they have one effect, too:
//!
//! ```no_run
//! # async fn pay(client: counterfoil_http::client::Client) -> Result<(), counterfoil_http::client::Error> {
//! client.post("https://payments.example/charge").step("charge-card").json(&1250).send().await?;
//! # Ok(()) }
//! ```
//!
//! `traceparent` and `tracestate` of the request or task go along; see [`Trace`].
//!
//! # What it is not
//! Redirects are answers and are not followed: a write must not go where nobody has sent it. Answers
//! are complete in memory. Put no other retries around it or under it.
//!
//! # When a call is dropped
//! It is cut off. A call that others may share goes to its end.

mod answer;
mod attempt;
mod builder;
mod calls;
mod connect;
mod error;
mod judge;
mod key;
mod request;
mod trace;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use counterfoil_engine::pipeline::{CLIENT, CallError, Dependency, Limits, Registry};
use http::{HeaderMap, HeaderName, Method};
use tower::ServiceExt as _;

pub use answer::Answer;
pub use builder::{BuildError, Builder};
/// Why there was no further attempt.
pub use counterfoil_engine::pipeline::Ended;
pub use error::{Cause, Error, Failed, Invalid};
pub use key::step_key;
pub use request::Request;
pub use trace::Trace;

use attempt::{Attempt, Call};
use calls::Calls;

/// The most destinations that are told apart. Those that come later share one budget, one breaker
/// and one ceiling, so that addresses from outside cannot fill the memory.
const MOST: usize = 1_000;
/// Their name.
const OTHERS: &str = "others";
/// Whoever shares a call gives up this much later than the one that makes it, who knows more.
const GRACE: Duration = Duration::from_millis(10);

/// Calls other services; see the [module](self). Clones are the same client.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    registry: Registry,
    limits: Limits,
    named: BTreeMap<String, Limits>,
    key_header: HeaderName,
    headers: HeaderMap,
    attempt: Attempt,
    known: Mutex<HashMap<String, Known>>,
}

/// A destination that was called before.
#[derive(Clone)]
struct Known {
    name: Arc<str>,
    dependency: Arc<Dependency>,
    calls: Calls,
}

impl Client {
    /// A client with other settings than the usual ones.
    pub fn builder() -> Builder {
        Builder::default()
    }

    fn new(inner: Inner) -> Self {
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Asks for something.
    pub fn get(&self, url: impl AsRef<str>) -> Request {
        self.request(Method::GET, url)
    }

    /// Asks for the head of an answer.
    pub fn head(&self, url: impl AsRef<str>) -> Request {
        self.request(Method::HEAD, url)
    }

    /// Sends something.
    pub fn post(&self, url: impl AsRef<str>) -> Request {
        self.request(Method::POST, url)
    }

    /// Puts something in its place.
    pub fn put(&self, url: impl AsRef<str>) -> Request {
        self.request(Method::PUT, url)
    }

    /// Changes something.
    pub fn patch(&self, url: impl AsRef<str>) -> Request {
        self.request(Method::PATCH, url)
    }

    /// Takes something away.
    pub fn delete(&self, url: impl AsRef<str>) -> Request {
        self.request(Method::DELETE, url)
    }

    /// A request of any method.
    pub fn request(&self, method: Method, url: impl AsRef<str>) -> Request {
        Request::new(self, method, url.as_ref())
    }

    /// Breaker, budget and ceiling of every destination that was called, under `client:NAME`.
    pub fn registry(&self) -> &Registry {
        &self.inner.registry
    }

    /// The destination of this name, with its limits.
    fn known(&self, name: &str) -> Result<Known, Invalid> {
        let inner = &self.inner;
        let mut known = inner.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(there) = known.get(name) {
            return Ok(there.clone());
        }
        let limits = inner.named.get(name).copied();
        let name = match known.len() < MOST || limits.is_some() {
            true => name,
            false => OTHERS,
        };
        if let Some(there) = known.get(name) {
            return Ok(there.clone());
        }
        let limits = limits.unwrap_or(inner.limits);
        let dependency = inner
            .registry
            .dependency(&format!("{CLIENT}{name}"), limits)?;
        if *dependency.limits() != limits {
            tracing::warn!(
                destination = dependency.name(),
                "another client has set its limits before, and they hold"
            );
        }
        let calls = calls::calls(name, &dependency, inner.attempt.clone());
        let new = Known {
            name: Arc::from(name),
            dependency,
            calls,
        };
        known.insert(name.to_owned(), new.clone());
        Ok(new)
    }
}

impl Known {
    fn limits(&self) -> &Limits {
        self.dependency.limits()
    }

    async fn send(self, call: Call) -> Result<Answer, Error> {
        let (key, within, trail) = (call.key.clone(), call.within, Arc::clone(&call.trail));
        let shared = call.same.is_some();
        let answer = self.calls.oneshot(call);
        let answer = match shared {
            // The one that makes the call may have more time than we.
            true => tokio::time::timeout(within.saturating_add(GRACE), answer).await,
            false => Ok(answer.await),
        };
        let failed = || {
            let mut failed = calls::failed(&self.name, key, &trail);
            failed.possibly_sent |= shared;
            failed
        };
        match answer {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(CallError::Call(error))) => Err(error),
            Ok(Err(_)) => Err(Error::Abandoned { call: failed() }),
            Err(_) => Err(Error::Deadline {
                call: failed(),
                within,
                source: None,
            }),
        }
    }
}
