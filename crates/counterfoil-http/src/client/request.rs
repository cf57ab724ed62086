//! A request, as its caller puts it together.

use std::sync::Arc;
use std::time::Duration;

use axum::BoxError;
use axum::body::Body;
use bytes::Bytes;
use counterfoil_core::guard::{Digest, FingerprintBuilder, Key};
use counterfoil_core::message::header::{TRACEPARENT, TRACESTATE};
use counterfoil_engine::pipeline::{Effect, Limits};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header};
use serde::Serialize;
use url::Url;

use super::answer::Answer;
use super::attempt::{Call, Carried};
use super::error::{Error, Invalid};
use super::trace::Trace;
use super::{Client, key};

/// Longer than anybody waits, and no sum of it and the time of day overflows.
const FAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// A request that is put together. What is wrong with it is told by [`send`](Request::send).
///
/// | | default |
/// |---|---|
/// | key | none: then a write is sent once |
/// | trace | that of the guarded request or the task in which the calling code runs |
/// | destination | the host and port of the address |
/// | deadline and attempt | those of the destination |
#[must_use = "it is not sent before `send`"]
pub struct Request {
    client: Client,
    method: Method,
    uri: Uri,
    destination: String,
    headers: HeaderMap,
    key: Option<String>,
    body: Carried,
    within: Option<Duration>,
    attempt: Option<Duration>,
    trace: Option<Trace>,
    /// What is wrong with it: the first thing.
    wrong: Option<Invalid>,
}

impl Request {
    pub(super) fn new(client: &Client, method: Method, url: &str) -> Self {
        let (uri, destination, wrong) = match target(url) {
            Ok((uri, authority)) => (uri, authority, None),
            Err(wrong) => (Uri::default(), String::new(), Some(wrong)),
        };
        Self {
            client: client.clone(),
            method,
            uri,
            destination,
            headers: client.inner.headers.clone(),
            key: None,
            body: Carried::Whole(Bytes::new()),
            within: None,
            attempt: None,
            trace: None,
            wrong,
        }
    }

    fn refuse(mut self, wrong: Invalid) -> Self {
        self.wrong.get_or_insert(wrong);
        self
    }

    /// The idempotency key: 1 to 255 printable ASCII characters, unique to what is asked for. It
    /// goes with every attempt, in quotes as the `Idempotency-Key` draft has it.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        let key = key.into();
        match key::header(&key) {
            Ok(value) => {
                let name = self.client.inner.key_header.clone();
                self.headers.insert(name, value);
                self.key = Some(key);
                self
            }
            Err(wrong) => self.refuse(wrong),
        }
    }

    /// A key that is made up now. It protects from the retries of this call only: whoever may have
    /// to repeat the call itself, also after a crash, gives a [`key`](Request::key) of its own.
    pub fn generated_key(self) -> Self {
        self.key(key::generated())
    }

    /// A key for this step of the guarded request or the task in whose handler the calling code
    /// runs. When the handler runs again, the same step has the same key. Calls that
    /// ask for different things need different names: `ship-1`, `ship-2`.
    ///
    /// Outside a handler, and in tasks that it has spawned, there is nothing to derive from, and
    /// the request is not sent; use [`step_of`](Request::step_of) there.
    pub fn step(self, name: &str) -> Self {
        match key::of_current(name) {
            Ok(key) => self.key(key),
            Err(wrong) => self.refuse(wrong),
        }
    }

    /// A key for this step of the work under this key.
    pub fn step_of(self, key: &Key, name: &str) -> Self {
        self.key(key::step_key(key, name))
    }

    /// A header; an earlier one of this name is replaced. A key that is given like this is sent as it
    /// is, without quotes.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        let parsed = (name.parse::<HeaderName>(), value.parse::<HeaderValue>());
        let (Ok(line), Ok(content)) = parsed else {
            return self.refuse(Invalid::Header(name.to_owned()));
        };
        let is_key = line == self.client.inner.key_header;
        if is_ours(&line) || is_key && value.is_empty() {
            return self.refuse(Invalid::Header(name.to_owned()));
        }
        if is_key {
            self.key = Some(value.to_owned());
        }
        self.headers.insert(line, content);
        self
    }

    /// The content.
    pub fn body(mut self, content: impl Into<Bytes>) -> Self {
        self.body = Carried::Whole(content.into());
        self
    }

    /// The content as JSON.
    pub fn json<T: Serialize + ?Sized>(mut self, content: &T) -> Self {
        match serde_json::to_vec(content) {
            Ok(bytes) => {
                let json = HeaderValue::from_static("application/json");
                self.headers.entry(header::CONTENT_TYPE).or_insert(json);
                self.body(bytes)
            }
            Err(error) => self.refuse(Invalid::Json(error.to_string())),
        }
    }

    /// The content as a stream. It is sent once: there is no copy to send again. The time for one
    /// attempt holds for all of it.
    pub fn stream<B>(mut self, content: B) -> Self
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        self.body = Carried::Stream(Body::new(content));
        self
    }

    /// The name of whom it is for. Calls under one name share retries, breaker and ceiling.
    pub fn destination(mut self, name: impl Into<String>) -> Self {
        self.destination = name.into();
        self
    }

    /// The time for all attempts of this call. Calls that are shared end by the deadline of
    /// the first one, and each by its own.
    pub fn deadline(mut self, within: Duration) -> Self {
        self.within = Some(within);
        self
    }

    /// The time for one attempt of this call.
    pub fn attempt(mut self, within: Duration) -> Self {
        self.attempt = Some(within);
        self
    }

    /// The trace that it belongs to.
    pub fn trace(mut self, trace: Trace) -> Self {
        self.trace = Some(trace);
        self
    }

    /// Sends it, and waits for the whole answer.
    pub async fn send(self) -> Result<Answer, Error> {
        if let Some(wrong) = self.wrong {
            return Err(wrong.into());
        }
        let known = self.client.known(&self.destination)?;
        let call = self.into_call(known.limits());
        known.send(call).await
    }

    fn into_call(self, limits: &Limits) -> Call {
        let mut headers = self.headers;
        let same = match (&self.key, &self.body) {
            (Some(_), Carried::Whole(content)) => {
                Some(same(&self.method, &self.uri, &headers, content))
            }
            _ => None,
        };
        if let Some(trace) = self.trace.or_else(Trace::current) {
            trace.write(&mut headers);
        }
        let conditions = [
            header::IF_MATCH,
            header::IF_NONE_MATCH,
            header::IF_UNMODIFIED_SINCE,
        ];
        let conditional = conditions.iter().any(|name| headers.contains_key(name));
        let keyed = self.key.is_some();
        Call {
            effect: Effect::of_method(self.method.as_str(), keyed, conditional),
            parts: parts(self.method, self.uri, headers),
            body: self.body,
            key: self.key,
            within: self.within.unwrap_or(limits.deadline).min(FAR),
            attempt: self.attempt.unwrap_or(limits.attempt),
            same,
            trail: Arc::default(),
        }
    }
}

/// Headers that say how a request is sent. They are not for callers to set.
pub(super) fn is_ours(name: &HeaderName) -> bool {
    [
        header::CONNECTION,
        header::CONTENT_LENGTH,
        header::TE,
        header::TRAILER,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
    ]
    .contains(name)
}

fn parts(method: Method, uri: Uri, headers: HeaderMap) -> Parts {
    let (mut parts, ()) = http::Request::new(()).into_parts();
    (parts.method, parts.uri, parts.headers) = (method, uri, headers);
    parts
}

/// The address, and the host and port in it.
fn target(url: &str) -> Result<(Uri, String), Invalid> {
    let wrong = || Invalid::Url(url.to_owned());
    let mut parsed = Url::parse(url).map_err(|_| wrong())?;
    if !parsed.username().is_empty() || parsed.password().is_some() {
        return Err(Invalid::User);
    }
    if !matches!(parsed.scheme(), "http" | "https") {
        return Err(wrong());
    }
    parsed.set_fragment(None);
    let host = parsed.host_str().ok_or_else(wrong)?;
    let port = parsed.port_or_known_default().ok_or_else(wrong)?;
    let authority = format!("{host}:{port}");
    Ok((parsed.as_str().parse().map_err(|_| wrong())?, authority))
}

/// What makes two calls the same: everything but their trace.
fn same(method: &Method, uri: &Uri, headers: &HeaderMap, body: &[u8]) -> String {
    let mut lines: Vec<_> = headers
        .iter()
        .filter(|(name, _)| !matches!(name.as_str(), TRACEPARENT | TRACESTATE))
        .map(|(name, value)| (name.as_str(), value.as_bytes()))
        .collect();
    lines.sort_unstable();
    let mut all = FingerprintBuilder::new()
        .part(method.as_str().as_bytes())
        .part(uri.to_string().as_bytes())
        .part(body);
    for (name, value) in lines {
        all = all.part(name.as_bytes()).part(value);
    }
    Digest(all.finish().0).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_its_destination() {
        let of = |url: &str| target(url).map(|(uri, name)| (uri.to_string(), name));

        let (uri, name) = of("https://Pay.example/charge?x=1#top").unwrap();
        assert_eq!(uri, "https://pay.example/charge?x=1");
        assert_eq!(name, "pay.example:443");
        assert_eq!(of("http://[::1]:8080").unwrap().1, "[::1]:8080");
        assert_eq!(of("http://a:secret@shop/"), Err(Invalid::User));
        for url in ["", "/pay", "shop", "ftp://shop/", "http://", "http://a b/"] {
            assert!(matches!(of(url), Err(Invalid::Url(_))), "{url}");
        }
    }

    #[test]
    fn calls_are_the_same_when_all_but_their_trace_is() {
        let base = |change: &dyn Fn(&mut HeaderMap)| {
            let mut headers = HeaderMap::new();
            headers.insert("idempotency-key", HeaderValue::from_static("\"k\""));
            headers.insert("authorization", HeaderValue::from_static("alice"));
            change(&mut headers);
            headers
        };
        let uri = Uri::from_static("http://shop/pay");
        let of = |headers: &HeaderMap| same(&Method::POST, &uri, headers, b"x");
        let plain = base(&|_| ());
        let traced = base(&|h| {
            h.insert(TRACEPARENT, HeaderValue::from_static("00-a-b-01"));
        });
        let another = base(&|h| {
            h.insert("authorization", HeaderValue::from_static("bob"));
        });

        assert_eq!(of(&plain), of(&traced));
        assert_ne!(of(&plain), of(&another), "bob must not see alice's answer");
        assert_ne!(of(&plain), same(&Method::PUT, &uri, &plain, b"x"));
        assert_ne!(of(&plain), same(&Method::POST, &uri, &plain, b"y"));
        let other = Uri::from_static("http://shop/refund");
        assert_ne!(of(&plain), same(&Method::POST, &other, &plain, b"x"));
    }
}
