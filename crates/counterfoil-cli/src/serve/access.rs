//! Who may use the API.
//!
//! # Promise
//! With tokens, nobody without one. Without tokens the server listens on loopback only, and there
//! a web page in a browser on the same machine is refused too: it comes under a foreign host name
//! (rebinding), or without the content type that would need the server's consent first.

use std::net::IpAddr;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use super::http::App;
use super::problem::Problem;
use crate::config::Tokens;

/// Lets a request pass, or answers it.
pub(super) async fn check(State(app): State<App>, request: Request, next: Next) -> Response {
    match judge(&app.tokens, &request) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

fn judge(tokens: &Tokens, request: &Request) -> Result<(), Problem> {
    if tokens.is_empty() {
        let named = request
            .uri()
            .authority()
            .map(|a| a.as_str())
            .or_else(|| host(request.headers()));
        return match named.is_none_or(is_local) {
            true => Ok(()),
            false => Err(Problem::foreign_host()),
        };
    }
    match bearer(request.headers()).is_some_and(|token| tokens.accept(token)) {
        true => Ok(()),
        false => Err(Problem::unauthorized()),
    }
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
