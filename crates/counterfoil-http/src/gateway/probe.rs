//! Asking a service whether a request took effect.
//!
//! # Promise
//! A probe reads and changes nothing. 2xx: it happened. 404: it did not. Everything else, and no
//! answer at all: nobody knows yet, and nothing is changed.

use std::sync::Arc;

use async_trait::async_trait;
use axum::body::Body;
use axum::extract::Request;
use bytes::BytesMut;
use counterfoil_core::BoxError;
use counterfoil_core::guard::{Record, Snapshot, Verdict};
use counterfoil_engine::guard::reconcile::Reconciler;
use http::header::{HOST, USER_AGENT};
use http::{Method, StatusCode};
use http_body_util::BodyExt as _;

use super::forward::exchange;
use super::status::encoded;
use super::upstream::Upstream;
use crate::guard::answer::kept_headers;

/// A question to a service: `GET /orders?ref={key}`.
///
/// `{key}` and `{caller}` stand for the request's key and its caller, percent-encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    method: Method,
    target: String,
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
            keep_answer: None,
        })
    }

    /// Its answer is the answer of the request that is asked about, up to so many bytes.
    #[must_use]
    pub fn keep_answer(mut self, limit: usize) -> Self {
        self.keep_answer = Some(limit);
        self
    }

    fn question(&self, record: &Record, upstream: &Upstream) -> Result<Request, BoxError> {
        let target = self
            .target
            .replace("{caller}", &encoded(record.key.scope()))
            .replace("{key}", &encoded(record.key.key()));
        let request = http::Request::builder()
            .method(&self.method)
            .uri(target)
            .header(HOST, upstream.authority())
            .header(USER_AGENT, "counterfoil-probe")
            .body(Body::empty())?;
        Ok(request)
    }
}

/// Settles uncertain requests by a probe.
pub(super) struct Prober {
    pub(super) probe: Probe,
    pub(super) upstream: Arc<Upstream>,
}

#[async_trait]
impl Reconciler for Prober {
    async fn did_it_happen(&self, record: &Record) -> Result<Verdict, BoxError> {
        let question = self.probe.question(record, &self.upstream)?;
        let response = exchange(&self.upstream, question).await?;
        let status = response.status();
        if status == StatusCode::NOT_FOUND {
            return Ok(Verdict::DidNotHappen);
        }
        if !status.is_success() {
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
}
