//! Who may use the API.
//!
//! # Promise
//! With tokens, nobody without one, and each for what it is meant. Without tokens the server listens on loopback only, and there
//! only programs of this machine are served. A web page in a browser on the same machine is refused:
//! it comes under a foreign host name (rebinding), with an origin that is not ours, or without the
//! content type that would need the server's consent first. So is what a proxy passes on: whoever
//! stands behind it is not on this machine.

use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use super::problem::Problem;
use crate::config::{Caller, Scope, Tokens};

/// The tokens, which may change while the server runs.
pub(super) struct Access(RwLock<Arc<Tokens>>);

impl Access {
    pub(super) fn new(tokens: Tokens) -> Arc<Self> {
        Arc::new(Self(RwLock::new(Arc::new(tokens))))
    }

    /// Those that hold now.
    pub(super) fn tokens(&self) -> Arc<Tokens> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// From the next request on, these hold.
    pub(super) fn replace(&self, tokens: Tokens) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(tokens);
    }
}

/// Lets a request of somebody who may do this pass, with who it is, or answers it.
pub(super) async fn check(
    State((access, scope)): State<(Arc<Access>, Scope)>,
    mut request: Request,
    next: Next,
) -> Response {
    match judge(&access.tokens(), &request) {
        Ok(caller) if caller.may(scope) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Ok(_) => Problem::forbidden(scope.as_str()).into_response(),
        Err(problem) => problem.into_response(),
    }
}

fn judge(tokens: &Tokens, request: &Request) -> Result<Caller, Problem> {
    if tokens.is_empty() {
        return local(request).map(|()| Caller::local());
    }
    let token = bearer(request.headers());
    let caller = token.and_then(|token| tokens.find(token));
    caller.cloned().ok_or_else(Problem::unauthorized)
}

/// Whether a program of this machine asks, for itself.
fn local(request: &Request) -> Result<(), Problem> {
    let headers = request.headers();
    let named = request
        .uri()
        .authority()
        .map(|a| a.as_str())
        .or_else(|| host(headers));
    if !named.is_none_or(is_local) {
        return Err(Problem::foreign_host());
    }
    if let Some(name) = headers.keys().find(|name| is_of_a_proxy(name)) {
        return Err(Problem::forwarded(name.as_str()));
    }
    let ours = |origin: &[u8]| {
        let place = origin
            .strip_prefix(b"http://")
            .or(origin.strip_prefix(b"https://"));
        place.is_some() && place == named.map(str::as_bytes)
    };
    match headers
        .get_all(header::ORIGIN)
        .iter()
        .all(|origin| ours(origin.as_bytes()))
    {
        true => Ok(()),
        false => Err(Problem::foreign_origin()),
    }
}

/// Headers by which proxies say for whom they ask.
fn is_of_a_proxy(name: &HeaderName) -> bool {
    let name = name.as_str();
    matches!(name, "forwarded" | "via" | "x-real-ip") || name.starts_with("x-forwarded-")
}

fn host(headers: &HeaderMap) -> Option<&str> {
    // A host that is no text is foreign.
    headers
        .get(header::HOST)
        .map(|value| value.to_str().unwrap_or("?"))
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked(7)?;
    scheme
        .eq_ignore_ascii_case(b"bearer ")
        .then(|| token.trim_ascii())
}

fn is_local(authority: &str) -> bool {
    let name = match authority
        .strip_prefix('[')
        .and_then(|rest| rest.split_once(']'))
    {
        Some((v6, _)) => v6,
        None => authority
            .rsplit_once(':')
            .map_or(authority, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost")
        || name
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_local() {
        for name in [
            "localhost",
            "LOCALHOST:7070",
            "127.0.0.1:7070",
            "[::1]:7070",
            "[::1]",
        ] {
            assert!(is_local(name), "{name}");
        }
        for name in [
            "example.com",
            "localhost.example.com:7070",
            "10.0.0.1",
            "",
            "?",
            "[::2]:1",
        ] {
            assert!(!is_local(name), "{name}");
        }
    }

    #[test]
    fn a_bearer_token_is_found_in_any_case_of_its_scheme() {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, "bEaReR abc ".parse().unwrap());
        assert_eq!(bearer(&headers), Some(&b"abc"[..]));

        headers.insert(header::AUTHORIZATION, "Basic abc".parse().unwrap());
        assert_eq!(bearer(&headers), None);
        headers.insert(header::AUTHORIZATION, "x".parse().unwrap());
        assert_eq!(bearer(&headers), None);
    }
}
