//! The headers that a receiver sees.
//!
//! # Promise
//! Any message makes a legal request. What a message says about itself cannot end a header or begin
//! another one: texts are percent-encoded as CloudEvents does it over HTTP, so that every byte
//! outside of `!` to `~`, the double quote and the percent sign arrives as `%XX` of its UTF-8 form.

use std::fmt::Write as _;
use std::time::SystemTime;

use bytes::Bytes;
use counterfoil_core::message::header;
use counterfoil_core::{Delivery, Payload};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::signature::{self, Secret};

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const OCTETS: HeaderValue = HeaderValue::from_static("application/octet-stream");
const USER_AGENT: HeaderValue =
    HeaderValue::from_static(concat!("counterfoil/", env!("CARGO_PKG_VERSION")));

const EVENT_TYPE: HeaderName = HeaderName::from_static("counterfoil-event-type");
const AGGREGATE_TYPE: HeaderName = HeaderName::from_static("counterfoil-aggregate-type");
const AGGREGATE_ID: HeaderName = HeaderName::from_static("counterfoil-aggregate-id");
const VERSION: HeaderName = HeaderName::from_static("counterfoil-version");
const ATTEMPT: HeaderName = HeaderName::from_static("counterfoil-attempt");
const EPOCH: HeaderName = HeaderName::from_static("counterfoil-epoch");
const ORIGIN_KEY: HeaderName = HeaderName::from_static("counterfoil-idempotency-key");

/// The body of a request: the payload to the letter.
pub(crate) fn body(payload: &Payload) -> Bytes {
    match payload {
        Payload::Json(text) => Bytes::copy_from_slice(text.as_bytes()),
        Payload::Opaque(bytes) => bytes.clone(),
    }
}

/// All headers of one attempt at `now`, beginning with those of the settings.
pub(crate) fn headers(
    extra: &HeaderMap,
    secrets: &[Secret],
    delivery: &Delivery,
    now: SystemTime,
) -> HeaderMap {
    let mut all = extra.clone();
    all.entry(http::header::USER_AGENT).or_insert(USER_AGENT);
    all.insert(http::header::CONTENT_TYPE, content_type(delivery));
    identify(&mut all, secrets, delivery, now);
    describe(&mut all, delivery);
    pass_on(&mut all, delivery);
    all
}

/// The same id under both names, over every attempt; the signature is of this one.
fn identify(all: &mut HeaderMap, secrets: &[Secret], delivery: &Delivery, now: SystemTime) {
    let id = delivery.id.to_string();
    let timestamp = signature::unix_seconds(now);
    all.insert(signature::ID, encoded(&id));
    all.insert(header::IDEMPOTENCY_KEY, encoded(&id));
    all.insert(signature::TIMESTAMP, timestamp.into());
    if !secrets.is_empty() {
        let signed = signature::sign_all(secrets, &id, timestamp, delivery.payload.as_bytes());
        if let Ok(value) = HeaderValue::from_str(&signed) {
            all.insert(signature::SIGNATURE, value);
        }
    }
}

fn describe(all: &mut HeaderMap, delivery: &Delivery) {
    if !delivery.event_type.is_empty() {
        all.insert(EVENT_TYPE, encoded(&delivery.event_type));
    }
    if let Some(aggregate) = &delivery.aggregate {
        if !aggregate.kind.is_empty() {
            all.insert(AGGREGATE_TYPE, encoded(&aggregate.kind));
        }
        all.insert(AGGREGATE_ID, encoded(&aggregate.id));
    }
    if let Some(version) = delivery.version {
        all.insert(VERSION, version.into());
    }
    all.insert(ATTEMPT, delivery.attempt.into());
    all.insert(EPOCH, delivery.epoch.into());
}

/// Identity that travels. Other headers of a message stay in the house: a receiver may belong to
/// somebody else, and what an application wrote there was not meant for them.
fn pass_on(all: &mut HeaderMap, delivery: &Delivery) {
    // Trace context has a syntax of its own; a broken one is worthless and is left out.
    for name in [header::TRACEPARENT, header::TRACESTATE] {
        if let Some(value) = as_is(delivery.headers.get(name)) {
            all.insert(name, value);
        }
    }
    for name in [header::CORRELATION_ID, header::CAUSATION_ID] {
        if let Some(text) = delivery.headers.get(name) {
            all.insert(name, encoded(text));
        }
    }
    // The key of the request that caused the message may be shared by several messages. It must
    // not pass for the key of this one.
    if let Some(text) = delivery.headers.get(header::IDEMPOTENCY_KEY) {
        all.insert(ORIGIN_KEY, encoded(text));
    }
}

fn content_type(delivery: &Delivery) -> HeaderValue {
    match delivery.payload {
        Payload::Json(_) => JSON,
        Payload::Opaque(_) => as_is(delivery.headers.get(header::CONTENT_TYPE)).unwrap_or(OCTETS),
    }
}

/// A text that is a legal header value as it stands.
fn as_is(text: Option<&str>) -> Option<HeaderValue> {
    let text = text?.trim();
    if text.is_empty() {
        return None;
    }
    ascii(text)
}

/// A header value of visible ASCII: older servers read other bytes each in their own way.
pub(crate) fn ascii(text: &str) -> Option<HeaderValue> {
    HeaderValue::from_str(text)
        .ok()
        .filter(|value| value.to_str().is_ok())
}

/// Any text as a legal header value.
fn encoded(text: &str) -> HeaderValue {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'"' | b'%' => push_escape(&mut out, byte),
            b'!'..=b'~' => out.push(char::from(byte)),
            _ => push_escape(&mut out, byte),
        }
    }
    // Only `!` to `~` is left, which cannot fail.
    HeaderValue::try_from(out).unwrap_or(HeaderValue::from_static(""))
}

fn push_escape(out: &mut String, byte: u8) {
    // Writing to a String cannot fail.
    let _ = write!(out, "%{byte:02X}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_names_are_not_changed() {
        for text in ["OrderPaid", "order.paid/v2", "a_b-c:d", "0190c1a2-7e2b"] {
            assert_eq!(encoded(text), text);
        }
    }

    #[test]
    fn what_could_break_a_header_is_encoded() {
        assert_eq!(encoded("a\r\nx-evil: 1"), "a%0D%0Ax-evil:%201");
        assert_eq!(encoded("Größe"), "Gr%C3%B6%C3%9Fe");
        assert_eq!(encoded("100%"), "100%25");
        assert_eq!(encoded("\0\u{7f}\""), "%00%7F%22");
        assert_eq!(encoded(""), "");
    }

    #[test]
    fn what_has_its_own_syntax_passes_whole_or_not_at_all() {
        let tracestate = r#"vendor=a b"%,other=1"#;

        assert_eq!(as_is(Some(tracestate)).unwrap(), tracestate);
        assert_eq!(as_is(Some("a\r\nb")), None);
        assert_eq!(as_is(Some("\u{e9}")), None);
        assert_eq!(as_is(Some(" ")), None);
        assert_eq!(as_is(None), None);
    }
}
