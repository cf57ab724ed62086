//! What an application enqueues.
//!
//! # Promise
//! A [`Message`] that can be built can be stored: everything that a database or a destination
//! could choke on (broken JSON, odd header names, endless strings) is refused here, with an error
//! that says what to change.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The longest queue name, aggregate type, aggregate id or event type, in bytes.
pub const MAX_NAME: usize = 255;
/// The largest payload, in bytes.
pub const MAX_PAYLOAD: usize = 16 * 1024 * 1024;
/// The largest header block, in bytes of its JSON form.
pub const MAX_HEADERS: usize = 64 * 1024;

/// The identity of a message: the same over every retry, crash and redrive.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MessageId(Uuid);

impl MessageId {
    /// A new id, unique over all machines, that sorts by time of creation.
    pub fn new() -> Self {
        Self(Uuid::now_v7())
    }

    /// The id of a copy: the same original and name always give the same id.
    pub fn derive(&self, name: &str) -> Self {
        Self(Uuid::new_v5(&self.0, name.as_bytes()))
    }

    /// The id for a stored row whose writer left the id out.
    pub fn of_row(seq: i64, created_at_micros: i64) -> Self {
        let name = format!("counterfoil-row:{seq}:{created_at_micros}");
        Self(Uuid::new_v5(&Uuid::NAMESPACE_OID, name.as_bytes()))
    }

    /// Reads any usual spelling of a UUID: upper or lower case, with or without hyphens.
    pub fn parse(text: &str) -> Option<Self> {
        Uuid::try_parse(text.trim()).ok().map(Self)
    }

    /// The UUID itself.
    pub fn as_uuid(&self) -> &Uuid {
        &self.0
    }
}

impl Default for MessageId {
    fn default() -> Self {
        Self::new()
    }
}

impl From<Uuid> for MessageId {
    fn from(uuid: Uuid) -> Self {
        Self(uuid)
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What order is kept for, within a queue: an order, an account, a (scene, business id).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Aggregate {
    /// The type, for example `order`. Empty when the writer left it out.
    #[serde(rename = "type")]
    pub kind: String,
    /// The id within the type.
    pub id: String,
}

impl Aggregate {
    /// An aggregate of this type and id.
    pub fn new(kind: impl Into<String>, id: impl fmt::Display) -> Self {
        Self {
            kind: kind.into(),
            id: id.to_string(),
        }
    }
}

impl fmt::Display for Aggregate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.kind.is_empty() {
            f.write_str(&self.id)
        } else {
            write!(f, "{}/{}", self.kind, self.id)
        }
    }
}

/// The content of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// JSON text, kept to the letter as it was given.
    Json(String),
    /// Any bytes; what they are is said by the header `content-type`.
    Opaque(Bytes),
}

impl Payload {
    /// The content as bytes.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Payload::Json(text) => text.as_bytes(),
            Payload::Opaque(bytes) => bytes,
        }
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.as_bytes().len()
    }

    /// Whether there is no content at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Header names that Counterfoil gives a meaning.
pub mod header {
    /// W3C trace context.
    pub const TRACEPARENT: &str = "traceparent";
    /// W3C trace state.
    pub const TRACESTATE: &str = "tracestate";
    /// The idempotency key of the request that caused the message.
    pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
    /// Joins everything that one request caused.
    pub const CORRELATION_ID: &str = "correlation-id";
    /// The id of the message that caused this one.
    pub const CAUSATION_ID: &str = "causation-id";
    /// The media type of an opaque payload.
    pub const CONTENT_TYPE: &str = "content-type";
}

/// Headers of a message: small texts by lower-case name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Headers(BTreeMap<String, String>);

impl Headers {
    /// No headers.
    pub fn new() -> Self {
        Self::default()
    }

    /// The value under this name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Sets a header; names are lower-cased.
    pub fn set(&mut self, name: &str, value: impl Into<String>) {
        self.0.insert(name.to_ascii_lowercase(), value.into());
    }

    /// Takes a header away.
    pub fn remove(&mut self, name: &str) -> Option<String> {
        self.0.remove(name)
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(k, v)| (k.as_str(), v.as_str()))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The stored form: a JSON object of texts, or nothing when empty.
    pub fn to_json(&self) -> Option<String> {
        if self.0.is_empty() {
            return None;
        }
        serde_json::to_string(&self.0).ok()
    }

    /// Reads the stored form. Numbers and booleans that a foreign writer left become texts.
    pub fn from_json(text: &str) -> Result<Self, String> {
        let value: BTreeMap<String, serde_json::Value> = serde_json::from_str(text)
            .map_err(|e| format!("headers are not a JSON object: {e}"))?;
        let mut headers = Headers::new();
        for (name, value) in value {
            match value {
                serde_json::Value::Null => {}
                serde_json::Value::String(s) => headers.set(&name, s),
                serde_json::Value::Number(n) => headers.set(&name, n.to_string()),
                serde_json::Value::Bool(b) => headers.set(&name, b.to_string()),
                _ => return Err(format!("header {name:?} is not a text")),
            }
        }
        Ok(headers)
    }
}

impl<K: AsRef<str>, V: Into<String>> FromIterator<(K, V)> for Headers {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(iter: I) -> Self {
        let mut headers = Headers::new();
        for (k, v) in iter {
            headers.set(k.as_ref(), v);
        }
        headers
    }
}

/// Why a message cannot be enqueued. Nothing was written; the transaction is untouched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// The content could not be turned into JSON.
    #[error("the payload cannot be written as JSON: {0}")]
    NotSerializable(String),
    /// The text given as JSON is not JSON.
    #[error("the payload is not valid JSON: {0}")]
    NotJson(String),
    /// A name is too long, empty or holds control characters.
    #[error("{what} {problem}")]
    BadName {
        /// Which part of the message.
        what: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// The payload is over the limit.
    #[error("payload of {size} bytes is over the limit of {limit}")]
    TooLarge {
        /// Its size.
        size: usize,
        /// The limit.
        limit: usize,
    },
}

/// An event or a task, on its way into the outbox.
///
/// ```
/// use counterfoil_core::Message;
///
/// # #[derive(serde::Serialize)] struct Order { id: u64 }
/// # let order = Order { id: 7 };
/// let message = Message::json("order", order.id, "OrderPaid", &order)?.version(7);
/// # Ok::<(), counterfoil_core::message::MessageError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Its identity.
    pub id: MessageId,
    /// The queue; when absent, the routes decide by event type.
    pub queue: Option<String>,
    /// What its order is kept for; without one there is no order.
    pub aggregate: Option<Aggregate>,
    /// The producer's number within the aggregate.
    pub version: Option<i64>,
    /// What happened, for example `OrderPaid`.
    pub event_type: String,
    /// The content.
    pub payload: Payload,
    /// Trace context, idempotency key and the like.
    pub headers: Headers,
    /// Not to be delivered before this time.
    pub available_at: Option<DateTime<Utc>>,
}

impl Message {
    /// A message about an aggregate, with a JSON payload.
    pub fn json<T: Serialize + ?Sized>(
        aggregate_type: impl Into<String>,
        aggregate_id: impl fmt::Display,
        event_type: impl Into<String>,
        payload: &T,
    ) -> Result<Self, MessageError> {
        let text = serde_json::to_string(payload)
            .map_err(|e| MessageError::NotSerializable(e.to_string()))?;
        let aggregate = Aggregate::new(aggregate_type, aggregate_id);
        Ok(Self::new(event_type, Payload::Json(text)).aggregate(aggregate))
    }

    /// A message with opaque content.
    pub fn opaque(
        aggregate_type: impl Into<String>,
        aggregate_id: impl fmt::Display,
        event_type: impl Into<String>,
        content_type: impl Into<String>,
        payload: impl Into<Bytes>,
    ) -> Self {
        Self::new(event_type, Payload::Opaque(payload.into()))
            .aggregate(Aggregate::new(aggregate_type, aggregate_id))
            .header(header::CONTENT_TYPE, content_type)
    }

    /// A message without an aggregate: nothing is said about its order.
    pub fn new(event_type: impl Into<String>, payload: Payload) -> Self {
        Self {
            id: MessageId::new(),
            queue: None,
            aggregate: None,
            version: None,
            event_type: event_type.into(),
            payload,
            headers: Headers::new(),
            available_at: None,
        }
    }

    /// Gives the message an id of the caller's own.
    #[must_use]
    pub fn id(mut self, id: MessageId) -> Self {
        self.id = id;
        self
    }

    /// Names the queue instead of leaving it to the routes.
    #[must_use]
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queue = Some(queue.into());
        self
    }

    /// Keeps order with the other messages of this aggregate.
    #[must_use]
    pub fn aggregate(mut self, aggregate: Aggregate) -> Self {
        self.aggregate = Some(aggregate);
        self
    }

    /// The producer's number within the aggregate.
    #[must_use]
    pub fn version(mut self, version: i64) -> Self {
        self.version = Some(version);
        self
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.set(name, value);
        self
    }

    /// Not to be delivered before this time.
    #[must_use]
    pub fn not_before(mut self, at: DateTime<Utc>) -> Self {
        self.available_at = Some(at);
        self
    }

    /// Checks everything that a store or a destination could choke on.
    pub fn validate(&self) -> Result<(), MessageError> {
        if let Some(queue) = &self.queue {
            check_name("queue", queue)?;
        }
        check_name("event type", &self.event_type)?;
        if let Some(aggregate) = &self.aggregate {
            if !aggregate.kind.is_empty() {
                check_name("aggregate type", &aggregate.kind)?;
            }
            check_name("aggregate id", &aggregate.id)?;
        }
        if self.payload.len() > MAX_PAYLOAD {
            return Err(MessageError::TooLarge {
                size: self.payload.len(),
                limit: MAX_PAYLOAD,
            });
        }
        if let Payload::Json(text) = &self.payload {
            serde_json::from_str::<serde::de::IgnoredAny>(text)
                .map_err(|e| MessageError::NotJson(e.to_string()))?;
        }
        self.validate_headers()
    }

    fn validate_headers(&self) -> Result<(), MessageError> {
        let mut total = 0;
        for (name, value) in self.headers.iter() {
            check_name("header name", name)?;
            if value.contains('\0') {
                return Err(bad("header value", "holds a NUL character".into()));
            }
            total += name.len() + value.len();
        }
        if total > MAX_HEADERS {
            return Err(bad(
                "headers",
                format!("take {total} bytes, over {MAX_HEADERS}"),
            ));
        }
        Ok(())
    }
}

fn bad(what: &'static str, problem: String) -> MessageError {
    MessageError::BadName { what, problem }
}

/// Checks a name that is stored and shown: not empty, not endless, no control characters.
pub fn check_name(what: &'static str, name: &str) -> Result<(), MessageError> {
    if name.is_empty() {
        return Err(bad(what, "is empty".into()));
    }
    if name.len() > MAX_NAME {
        return Err(bad(
            what,
            format!("is {} bytes long, over {MAX_NAME}", name.len()),
        ));
    }
    if name.chars().any(char::is_control) {
        return Err(bad(what, "holds a control character".into()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_derived_id_is_stable_and_differs_by_name() {
        let id = MessageId::new();

        assert_eq!(id.derive("billing"), id.derive("billing"));
        assert_ne!(id.derive("billing"), id.derive("search"));
    }

    #[test]
    fn an_id_is_read_in_any_case() {
        let id = MessageId::new();

        assert_eq!(MessageId::parse(&id.to_string().to_uppercase()), Some(id));
        assert_eq!(MessageId::parse("order-1"), None);
    }

    #[test]
    fn what_cannot_be_stored_cannot_pass() {
        let fine = Message::json("order", 1, "Paid", &1).unwrap();
        assert!(fine.validate().is_ok());

        assert!(fine.clone().queue("").validate().is_err());
        assert!(fine.clone().queue("a\nb").validate().is_err());
        assert!(fine.clone().header("x", "\0").validate().is_err());
        assert!(
            Message::json("o", "x".repeat(256), "Paid", &1)
                .unwrap()
                .validate()
                .is_err()
        );
        assert!(
            Message::new("Paid", Payload::Json("{".into()))
                .validate()
                .is_err()
        );
    }

    #[test]
    fn foreign_header_values_become_texts() {
        let headers = Headers::from_json(r#"{"N":1,"b":true,"gone":null,"s":"x"}"#).unwrap();

        assert_eq!(headers.get("n"), Some("1"));
        assert_eq!(headers.get("b"), Some("true"));
        assert_eq!(headers.get("gone"), None);
        assert!(Headers::from_json("[1]").is_err());
        assert!(Headers::from_json(r#"{"a":{}}"#).is_err());
    }
}
