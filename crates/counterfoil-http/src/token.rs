//! One-time tokens for forms.
//!
//! # Promise
//! A token lets one request through to the handler, once, and only its owner's. Checking and
//! removing it are one step, before the handler. When tokens cannot be checked, nothing passes.
//!
//! ```ignore
//! let once = TokenLayer::over(tokens).caller(principal);
//! let app = Router::new()
//!     .route("/orders", post(create))
//!     .route_layer(once.clone())
//!     .merge(once.router())                       // POST /token
//!     .layer(authentication);
//! ```
//!
//! | setting | default | what it is |
//! |---|---|---|
//! | `header` | `x-once-token` | where the token is |
//! | `ttl` | 30 min | how long a token can be used |
//!
//! # What it does not do
//! It does not remember answers. A token is used up when its request reaches the handler, however
//! that ends: after an error the form needs a new one. Where a repeat shall get the first one's
//! answer, use [`GuardLayer`](crate::GuardLayer).

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, post};
use axum::{Json, Router};
use counterfoil_core::StoreError;
use counterfoil_core::guard::{Consumed, Token, Tokens};
use counterfoil_engine::guard::in_time;
use http::request::Parts;
use http::{HeaderMap, HeaderName, StatusCode, header};
use serde::Serialize;
use tower::{Layer, Service};

use crate::around::{Around, Surrounded, call};
use crate::{Caller, PolicyError, Problem};

/// Expired tokens are removed once in so many issues, and more of them than were issued since.
const PURGE_EVERY: u64 = 64;
const PURGED_AT_ONCE: u32 = 256;

/// Tells whose request it is: a stable name, never a credential.
type OwnerFn = dyn Fn(&Parts) -> Option<String> + Send + Sync;

/// A layer that still has to be told whose requests are whose.
pub struct NeedsOwner(Arc<dyn Tokens>);

impl NeedsOwner {
    /// The caller as this function sees it. A request for which it answers `None` is refused.
    pub fn caller<F>(self, whose: F) -> TokenLayer
    where
        F: Fn(&Parts) -> Option<String> + Send + Sync + 'static,
    {
        TokenLayer {
            tokens: self.0,
            owner: Arc::new(whose),
            header: HeaderName::from_static("x-once-token"),
            ttl: Duration::from_secs(30 * 60),
            issued: Arc::default(),
        }
    }

    /// The caller is the [`Caller`] that authentication has left in the request's extensions.
    pub fn caller_from_extensions(self) -> TokenLayer {
        self.caller(|parts| parts.extensions.get::<Caller>().map(|c| c.0.clone()))
    }
}

/// Every request needs a token that has not been used. Methods that are safe by definition (GET,
/// HEAD, OPTIONS) pass without one.
#[derive(Clone)]
pub struct TokenLayer {
    tokens: Arc<dyn Tokens>,
    owner: Arc<OwnerFn>,
    header: HeaderName,
    ttl: Duration,
    issued: Arc<AtomicU64>,
}

/// What a page gets for its form.
#[derive(Serialize)]
struct Issued {
    token: String,
    /// In seconds.
    expires_in: u64,
}

impl TokenLayer {
    /// Tokens that are kept here.
    pub fn over(tokens: Arc<dyn Tokens>) -> NeedsOwner {
        NeedsOwner(tokens)
    }

    /// Where the token is.
    pub fn header(mut self, name: &str) -> Result<Self, PolicyError> {
        self.header = name
            .parse()
            .map_err(|_| PolicyError::Header(name.to_owned()))?;
        Ok(self)
    }

    /// How long a token can be used.
    pub fn ttl(mut self, ttl: Duration) -> Result<Self, PolicyError> {
        self.ttl = ttl;
        if ttl.is_zero() {
            return Err(PolicyError::Zero("ttl"));
        }
        Ok(self)
    }

    /// `POST /token` answers `{"token": "…", "expires_in": 1800}`, a token of the caller. It
    /// belongs behind authentication, like the forms themselves.
    pub fn router<S: Clone + Send + Sync + 'static>(&self) -> Router<S> {
        Router::new().route("/token", self.issuer())
    }

    /// The same, for a path of your own.
    pub fn issuer<S: Clone + Send + Sync + 'static>(&self) -> MethodRouter<S> {
        let this = self.clone();
        post(move |request: Request| async move {
            let (parts, _) = request.into_parts();
            this.issue(&parts)
                .await
                .unwrap_or_else(Problem::into_response)
        })
    }

    async fn issue(&self, parts: &Parts) -> Result<Response, Problem> {
        let owner = (self.owner)(parts).ok_or_else(owner_unknown)?;
        let token = match in_time(self.tokens.issue(&owner, self.ttl)).await {
            Ok(token) => token,
            // A name that cannot be stored is nobody's.
            Err(StoreError::Message(_)) => return Err(owner_unknown()),
            Err(error) => return Err(unavailable(&error)),
        };
        count("issued");
        self.purge_now_and_then();
        let issued = Issued {
            token: token.to_string(),
            expires_in: self.ttl.as_secs(),
        };
        Ok(([(header::CACHE_CONTROL, "no-store")], Json(issued)).into_response())
    }

    fn purge_now_and_then(&self) {
        let issued = self.issued.fetch_add(1, Ordering::Relaxed) + 1;
        if !issued.is_multiple_of(PURGE_EVERY) {
            return;
        }
        let tokens = Arc::clone(&self.tokens);
        // Nobody waits for it.
        tokio::spawn(async move {
            if let Err(error) = tokens.purge(PURGED_AT_ONCE).await {
                tracing::warn!(error = error.one_line(), "cannot purge one-time tokens");
            }
        });
    }

    /// Uses the token of a request.
    async fn check(&self, parts: &Parts) -> Result<(), Problem> {
        let owner = (self.owner)(parts).ok_or_else(owner_unknown)?;
        let Some(token) = only(&parts.headers, &self.header) else {
            return Err(self.refused());
        };
        match in_time(self.tokens.consume(&token, &owner)).await {
            Ok(Consumed::Won) => {
                count("used");
                Ok(())
            }
            Ok(Consumed::Refused) => Err(self.refused()),
            Err(error) => Err(unavailable(&error)),
        }
    }

    fn refused(&self) -> Problem {
        count("refused");
        Problem::new(
            StatusCode::CONFLICT,
            "duplicate-submission",
            "The form was sent before",
            format!(
                "A request needs a token of its own in the header {}. This one has none, or one that is used, \
                 expired or somebody else's. Nothing was done.",
                self.header
            ),
        )
    }
}

/// The token in the header. Nothing when there is none, more than one, or nonsense.
fn only(headers: &HeaderMap, name: &HeaderName) -> Option<Token> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    if values.next().is_some() {
        return None;
    }
    Token::parse(value.to_str().ok()?.trim())
}

fn owner_unknown() -> Problem {
    Problem::new(
        StatusCode::UNAUTHORIZED,
        "caller-unknown",
        "Caller is not known",
        "A token belongs to a caller, and this request does not say whose it is.",
    )
}

fn unavailable(error: &StoreError) -> Problem {
    count("unavailable");
    tracing::error!(
        error = error.one_line(),
        "one-time tokens cannot be read or written"
    );
    Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "guard-unavailable",
        "The token could not be issued or checked",
        "Nothing was done. Send the same request again; if its token is refused then, get a new one.",
    )
    .retry_after(Duration::from_secs(1))
}

fn count(outcome: &'static str) {
    metrics::counter!("counterfoil_tokens_total", "outcome" => outcome).increment(1);
}

impl<S> Layer<S> for TokenLayer {
    type Service = TokenService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Surrounded::new(inner, self.clone())
    }
}

/// The service that [`TokenLayer`] makes.
pub type TokenService<S> = Surrounded<S, TokenLayer>;

impl Around for TokenLayer {
    async fn handle<S>(self, inner: S, request: Request) -> Response
    where
        S: Service<Request, Response = Response, Error = Infallible> + Send + 'static,
        S::Future: Send,
    {
        if request.method().is_safe() {
            return call(inner, request).await;
        }
        let (parts, body) = request.into_parts();
        match self.check(&parts).await {
            Ok(()) => call(inner, Request::from_parts(parts, body)).await,
            Err(problem) => problem.into_response(),
        }
    }
}
