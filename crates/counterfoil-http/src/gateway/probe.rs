//! Asking a service whether a request took effect.
//!
//! # Promise
//! A probe reads and changes nothing. 2xx: it happened. 404: it did not. Everything else, and no
//! answer at all: nobody knows yet, and nothing is changed.
//!
//! It carries what is configured and nothing of the request that it asks about but its host, where
//! the service sees that: the caller's credentials are not kept. To a service it is a stranger unless
//! it is told otherwise, and a 404 that is meant for strangers would let a request run twice.
//!
//! A key that would lead the path of the probe elsewhere (`..`) is not asked about.
//!
//! It takes the way of all calls to its service: while the breaker is open, or an operator holds it
//! open, nothing is asked, and nobody knows yet.

use std::sync::Arc;

use async_trait::async_trait;
use axum::body::Body;
use axum::extract::Request;
use bytes::BytesMut;
use counterfoil_core::BoxError;
use counterfoil_core::guard::{Record, Snapshot, Verdict};
use counterfoil_engine::guard::reconcile::Reconciler;
use http::header::{HOST, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use http_body_util::BodyExt as _;

use super::forward::{AsItIs, ForwardError, Step, count};
use super::route::host_and_caller;
use super::status::encoded;
use super::upstream::Upstream;
use super::{headers, target};
use crate::guard::answer::kept_headers;

/// A question to a service: `GET /orders?ref={key}`.
///
/// `{key}` and `{caller}` stand for the request's key and its caller, percent-encoded.
///
/// | setting | default | what it is |
/// |---|---|---|
/// | [`host`](Probe::host) | that of the request, or the address of the service where that does not see it | the host that it asks for |
/// | [`header`](Probe::header) | `User-Agent: counterfoil-probe` | what else it carries |
/// | [`keep_answer`](Probe::keep_answer) | not kept | whether its answer is that of the request |
///
/// ```
/// # use counterfoil_http::gateway::{Probe, ProbeError};
/// # fn main() -> Result<(), ProbeError> {
/// let probe = Probe::parse("GET /orders?ref={key}")?
///     .host("shop.example.com")?
///     .header("authorization", "Bearer of-the-probe")?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    method: Method,
    target: String,
    /// The host that it asks for; absent: that of the request, or the address of the service.
    host: Option<HeaderValue>,
    /// What else it carries. The values are not shown.
    headers: HeaderMap,
    /// Whether its answer is the answer of the request that is asked about.
    keep_answer: Option<usize>,
}

/// A probe that cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// Not a method and a path.
    #[error("a probe is a method and a path, such as \"GET /orders?ref={{key}}\"")]
    Form,
    /// A method that might change something.
    #[error("a probe must change nothing: use GET or HEAD, not {0}")]
    Method(String),
    /// It would ask the same for every request.
    #[error("a probe must say which request it asks about: put {{key}} into its path")]
    NoKey,
    /// A placeholder that nobody fills.
    #[error("a probe knows {{key}} and {{caller}} only")]
    Placeholder,
    /// Not a host.
    #[error("`{0}` is no host: write a name, such as \"shop.example.com\"")]
    Host(String),
    /// Not the name of a header.
    #[error("`{0}` is no name of a header")]
    Name(String),
    /// A header that is not for the configuration to say.
    #[error("the header `{0}` is not for a probe to say")]
    NotIts(HeaderName),
    /// The same header once more.
    #[error("the header `{0}` is there twice")]
    Twice(HeaderName),
    /// Not the value of a header. It may be a secret, so it is not shown.
    #[error("the value of `{0}` is empty, or has characters that no header can have")]
    Value(HeaderName),
    /// An answer without content.
    #[error("the answer to a HEAD is empty: use GET")]
    NothingToKeep,
}

impl Probe {
    /// Reads a probe.
    pub fn parse(text: &str) -> Result<Self, ProbeError> {
        let (method, target) = text.trim().split_once(' ').ok_or(ProbeError::Form)?;
        let method = match method {
            "GET" => Method::GET,
            "HEAD" => Method::HEAD,
            other => return Err(ProbeError::Method(other.to_owned())),
        };
        let target = target.trim();
        if !target.contains("{key}") {
            return Err(ProbeError::NoKey);
        }
        let plain = target.replace("{key}", "k").replace("{caller}", "c");
        if plain.contains(['{', '}']) {
            return Err(ProbeError::Placeholder);
        }
        let is_path = plain.starts_with('/') && plain.parse::<http::Uri>().is_ok();
        if !is_path || plain.contains('#') {
            return Err(ProbeError::Form);
        }
        Ok(Self {
            method,
            target: target.to_owned(),
            host: None,
            headers: HeaderMap::new(),
            keep_answer: None,
        })
    }

    /// It asks for this host, with a port if need be. A service that tells hosts apart must hear
    /// the one under which its callers know it.
    pub fn host(mut self, host: &str) -> Result<Self, ProbeError> {
        let wrong = || ProbeError::Host(host.to_owned());
        let (name, port) = match host.rsplit_once(':') {
            Some((name, port)) if !host.ends_with(']') => (name, Some(port)),
            _ => (host, None),
        };
        let fine = match name.strip_prefix('[').and_then(|n| n.strip_suffix(']')) {
            Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
            None => {
                let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
                !name.is_empty() && name.bytes().all(plain)
            }
        };
        let number = |port: &str| !port.starts_with('+') && port.parse::<u16>().is_ok();
        if !fine || !port.is_none_or(number) {
            return Err(wrong());
        }
        self.host = Some(HeaderValue::from_str(host).map_err(|_| wrong())?);
        Ok(self)
    }

    /// It carries this header: a credential, or whatever else the service asks for.
    pub fn header(mut self, name: &str, value: &str) -> Result<Self, ProbeError> {
        let wrong = |_| ProbeError::Name(name.to_owned());
        let name: HeaderName = name.parse().map_err(wrong)?;
        if headers::is_framing(&name) || headers::is_set_by_us(&name) {
            return Err(ProbeError::NotIts(name));
        }
        let wrong = || ProbeError::Value(name.clone());
        let mut value = HeaderValue::from_str(value).map_err(|_| wrong())?;
        if value.is_empty() {
            return Err(wrong());
        }
        value.set_sensitive(true);
        match self.headers.insert(name.clone(), value) {
            Some(_) => Err(ProbeError::Twice(name)),
            None => Ok(self),
        }
    }

    /// Its answer is the answer of the request that is asked about, up to so many bytes.
    pub fn keep_answer(mut self, limit: usize) -> Result<Self, ProbeError> {
        if self.method == Method::HEAD {
            return Err(ProbeError::NothingToKeep);
        }
        self.keep_answer = Some(limit);
        Ok(self)
    }

    /// The question about a request of this caller, asked for a host unless the probe names one.
    fn question(&self, key: &str, caller: &str, host: &HeaderValue) -> Result<Request, BoxError> {
        let target = self
            .target
            .replace("{caller}", &encoded(caller))
            .replace("{key}", &encoded(key));
        let path = target.split('?').next().unwrap_or_default();
        // A service that walks up would be asked about something else, and its 404 would free the key.
        if target::canonical(path).is_none() {
            return Err("the key or the caller would make the probe's path walk up".into());
        }
        let mut request = http::Request::builder()
            .method(&self.method)
            .uri(target)
            .header(HOST, self.host.as_ref().unwrap_or(host))
            .header(USER_AGENT, "counterfoil-probe")
            .body(Body::empty())?;
        request.headers_mut().extend(self.headers.clone());
        request.extensions_mut().insert(AsItIs);
        Ok(request)
    }
}

/// Settles uncertain requests by a probe.
pub(super) struct Prober {
    pub(super) probe: Probe,
    /// Whether scopes begin with the host.
    pub(super) per_host: bool,
    /// Whether the service sees the host that callers write.
    pub(super) preserve_host: bool,
    pub(super) upstream: Arc<Upstream>,
    /// The calls of the route, with all that is wrapped around them.
    pub(super) step: Step,
}

impl Prober {
    fn question(&self, record: &Record) -> Result<Request, BoxError> {
        let (host, caller) = host_and_caller(record.key.scope(), self.per_host);
        let host = match host.filter(|_| self.preserve_host) {
            Some(host) => HeaderValue::from_str(host)?,
            None => self.upstream.authority().clone(),
        };
        self.probe.question(record.key.key(), caller, &host)
    }
}

#[async_trait]
impl Reconciler for Prober {
    async fn did_it_happen(&self, record: &Record) -> Result<Verdict, BoxError> {
        let question = self.question(record)?;
        let response = match self.step.run(question).await {
            Ok(response) => response,
            Err(error) => {
                count(&error);
                return match error.last() {
                    ForwardError::NotNow { why, .. } => {
                        tracing::debug!(why, "a service gets a rest and is not probed");
                        Ok(Verdict::Unknown)
                    }
                    error => Err(error.into()),
                };
            }
        };
        let status = response.status();
        if status == StatusCode::NOT_FOUND {
            return Ok(Verdict::DidNotHappen);
        }
        if !status.is_success() {
            tracing::warn!(
                upstream = self.upstream.name(),
                %status,
                "the answer of a probe does not say whether the request took effect"
            );
            return Ok(Verdict::Unknown);
        }
        let mut snapshot = Snapshot {
            status: status.as_u16(),
            headers: Vec::new(),
            body: None,
        };
        if let Some(limit) = self.probe.keep_answer {
            snapshot.headers = kept_headers(response.headers());
            snapshot.body = within(response.into_body(), limit).await?;
        }
        Ok(Verdict::Happened(snapshot))
    }
}

/// A body that is not larger than that.
async fn within(mut body: Body, limit: usize) -> Result<Option<bytes::Bytes>, BoxError> {
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            if all.len() + data.len() > limit {
                return Ok(None);
            }
            all.extend_from_slice(&data);
        }
    }
    Ok(Some(all.freeze()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_reads_and_names_the_request() {
        assert!(Probe::parse("GET /orders?ref={key}").is_ok());
        assert!(Probe::parse("HEAD /orders/{caller}/{key}").is_ok());
        for (text, error) in [
            ("/orders/{key}", ProbeError::Form),
            ("POST /orders/{key}", ProbeError::Method("POST".into())),
            ("GET /orders", ProbeError::NoKey),
            ("GET orders/{key}", ProbeError::Form),
            ("GET http://other/{key}", ProbeError::Form),
            ("GET /{id}/{key}", ProbeError::Placeholder),
        ] {
            assert_eq!(Probe::parse(text), Err(error), "{text}");
        }
    }

    fn probe() -> Probe {
        Probe::parse("GET /{key}").unwrap()
    }

    #[test]
    fn the_host_of_a_probe_is_one_host() {
        for host in [
            "shop",
            "shop.example.com",
            "10.0.0.1:8000",
            "[::1]",
            "[::1]:80",
        ] {
            assert!(probe().host(host).is_ok(), "{host}");
        }
        for host in [
            "",
            ":80",
            "a b",
            "a/b",
            "u@shop",
            "*.example.com",
            "shop:",
            "shop:http",
            "shop:+80",
            "shop:70000",
            "a:b:80",
            "[shop]",
            "http://shop",
            "shop\r\nx: y",
        ] {
            let wrong = ProbeError::Host(host.to_owned());
            assert_eq!(probe().host(host), Err(wrong), "{host}");
        }
    }

    #[test]
    fn a_probe_carries_what_it_may_and_shows_no_secret() {
        let its = |name: &str| ProbeError::NotIts(name.parse().unwrap());
        let value = |name: &str| ProbeError::Value(name.parse().unwrap());
        for (name, text, error) in [
            ("", "1", ProbeError::Name(String::new())),
            ("a b", "1", ProbeError::Name("a b".into())),
            ("x-a", "", value("x-a")),
            ("x-a", "1\r\nx-b: 2", value("x-a")),
            ("Host", "shop", its("host")),
            ("connection", "close", its("connection")),
            ("Content-Length", "1", its("content-length")),
            ("transfer-encoding", "chunked", its("transfer-encoding")),
            ("expect", "100-continue", its("expect")),
            ("Counterfoil-Fence", "1", its("counterfoil-fence")),
        ] {
            assert_eq!(probe().header(name, text), Err(error), "{name}");
        }
        let signed = probe().header("Authorization", "Bearer s3cret").unwrap();
        let shown = format!("{signed:?}");
        assert!(!shown.contains("s3cret"), "{shown}");
        let twice = ProbeError::Twice(http::header::AUTHORIZATION);
        assert_eq!(signed.header("authorization", "other"), Err(twice));
    }

    #[test]
    fn a_probe_does_not_walk_up() {
        let ask = |probe: &str, key: &str, caller: &str| {
            let probe = Probe::parse(probe).unwrap();
            let host = HeaderValue::from_static("shop");
            probe
                .question(key, caller, &host)
                .map(|q| q.uri().to_string())
        };
        for key in [".", "..", "a/../b", "../x", "a\\..\\b"] {
            assert!(ask("GET /orders/{key}", key, "").is_err(), "{key}");
            assert!(ask("GET /{caller}/{key}", "k", key).is_err(), "{key}");
            assert!(ask("GET /orders?ref={key}", key, "").is_ok(), "{key}");
        }
        let fine = ask("GET /orders/{key}", "a/b..c", "").unwrap();
        assert_eq!(fine, "/orders/a%2Fb..c");
    }

    #[test]
    fn an_answer_without_content_is_not_kept() {
        let head = Probe::parse("HEAD /{key}").unwrap();

        assert_eq!(head.keep_answer(10), Err(ProbeError::NothingToKeep));
        assert!(probe().keep_answer(10).is_ok());
    }
}
