//! From what a broker handed out to what a consumer processes.
//!
//! # Promise
//! Every arrival becomes an [`Incoming`], whoever has sent it. What cannot be understood comes with a
//! defect and is parked for that; it has a stable identity all the same, so that it is parked once.
//!
//! # Where things are found
//! By default in the envelope: see [`crate::envelope`]. For producers that know nothing of it a
//! [`Mapping`] says where the id, the aggregate, the version and the type are found.

use std::fmt;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::code::Code;
use crate::envelope::{ESCAPE, JSON, UNTYPED};
use crate::hex::Hex;
use crate::message::{
    Aggregate, Headers, MAX_HEADERS, MAX_NAME, MAX_PAYLOAD, Message, MessageId, Payload,
    check_name, header,
};
use crate::row::Delivery;
use crate::source::Arrival;

/// The prefixes that transports give to attributes.
const PREFIXES: [&str; 4] = ["ce_", "ce-", "cloudevents:", "cloudevents_"];
/// The longest key that is kept in words.
const LONGEST_KEY: usize = 200;

/// Headers that a message carries while it is put off.
mod carried {
    pub(super) const KEY: &str = "inbox-key";
    pub(super) const POSITION: &str = "inbox-position";
    pub(super) const CODE: &str = "inbox-defect-code";
    pub(super) const ERROR: &str = "inbox-defect";
    pub(super) const KIND: &str = "inbox-aggregate-type";
    pub(super) const ID: &str = "inbox-aggregate-id";
}

/// Where a value is found.
///
/// ```
/// use counterfoil_core::incoming::Place;
///
/// assert_eq!("header:x-id".parse(), Ok(Place::Header("x-id".into())));
/// assert_eq!("body:/order/id".parse(), Ok(Place::Body("/order/id".into())));
/// assert_eq!("key".parse(), Ok(Place::Key));
/// assert!("heder:x".parse::<Place>().is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// In a header.
    Header(String),
    /// In the JSON body, by JSON pointer (RFC 6901).
    Body(String),
    /// The broker's ordering key.
    Key,
    /// Where the message stands at the broker: an id for producers that give none, as long as they
    /// never send the same thing twice.
    Position,
    /// Always the same.
    Fixed(String),
}

/// A text that names no place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} names no place: use header:NAME, body:/json/pointer, key, position or fixed:VALUE")]
pub struct PlaceError(String);

impl std::str::FromStr for Place {
    type Err = PlaceError;

    fn from_str(text: &str) -> Result<Self, PlaceError> {
        let wrong = || PlaceError(text.to_owned());
        match text.split_once(':') {
            Some(("header", name)) if !name.is_empty() => Ok(Place::Header(name.to_owned())),
            Some(("body", pointer)) if pointer.starts_with('/') => {
                Ok(Place::Body(pointer.to_owned()))
            }
            Some(("fixed", value)) if !value.is_empty() => Ok(Place::Fixed(value.to_owned())),
            None if text == "key" => Ok(Place::Key),
            None if text == "position" => Ok(Place::Position),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Header(name) => write!(f, "header:{name}"),
            Place::Body(pointer) => write!(f, "body:{pointer}"),
            Place::Key => f.write_str("key"),
            Place::Position => f.write_str("position"),
            Place::Fixed(value) => write!(f, "fixed:{value}"),
        }
    }
}

/// By what a repeat is recognised.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Dedup {
    /// By the message's id; of foreign ids by source and id.
    #[default]
    Id,
    /// By aggregate and version. A message that lacks one of them is parked.
    Version,
}

/// Where a consumer finds what it has to know of a message. Absent: in the envelope.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mapping {
    /// By what a repeat is recognised.
    pub dedup: Dedup,
    /// The message's id.
    pub id: Option<Place>,
    /// The type of the aggregate.
    pub aggregate_type: Option<Place>,
    /// The id of the aggregate. Without this and without an envelope the broker's key is used.
    pub aggregate_id: Option<Place>,
    /// The producer's number within the aggregate.
    pub version: Option<Place>,
    /// What happened.
    pub event_type: Option<Place>,
}

/// Why a message can only be parked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Defect {
    /// The reason that operators see.
    pub code: Code,
    /// In words.
    pub error: String,
}

/// A message as a consumer processes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incoming {
    /// Its identity. Of a foreign message without a UUID: derived from its own id.
    pub id: MessageId,
    /// By which the ledger knows it.
    pub key: String,
    /// What its order is kept for.
    pub aggregate: Option<Aggregate>,
    /// The producer's number within the aggregate.
    pub version: Option<i64>,
    /// What happened; `untyped` when nobody said.
    pub event_type: String,
    /// The content.
    pub payload: Payload,
    /// Trace context, idempotency key and the like.
    pub headers: Headers,
    /// Where it stood at the broker.
    pub position: String,
    /// When it was made, where its envelope says so.
    pub time: Option<DateTime<Utc>>,
    /// Why it can only be parked.
    pub defect: Option<Defect>,
}

impl Defect {
    /// Whether a person may decide that it passes all the same.
    pub fn can_be_forced(&self) -> bool {
        [Code::DEAD_LETTER, Code::DEDUP_EXPIRED].contains(&self.code)
    }
}

impl Incoming {
    /// Reads an arrival.
    pub fn of(arrival: &Arrival, mapping: &Mapping) -> Self {
        Reader::new(arrival, mapping).read()
    }

    /// Reads back what [`Incoming::to_message`] has written, or what somebody has enqueued for the
    /// consumer by hand.
    pub fn of_delivery(delivery: &Delivery) -> Self {
        let mut headers = delivery.headers.clone();
        let mut out = |name: &str| headers.remove(name);
        let (key, position) = (out(carried::KEY), out(carried::POSITION));
        let defect = match (out(carried::CODE), out(carried::ERROR)) {
            (Some(code), error) => Some(Defect {
                code: Code::custom(&code),
                error: error.unwrap_or_default(),
            }),
            _ => None,
        };
        let aggregate = match (out(carried::KIND), out(carried::ID)) {
            (kind, Some(id)) => Some(Aggregate::new(kind.unwrap_or_default(), id)),
            _ => delivery.aggregate.clone(),
        };
        Self {
            id: delivery.id,
            key: key.unwrap_or_else(|| delivery.id.to_string()),
            aggregate,
            version: delivery.version,
            event_type: delivery.event_type.clone(),
            payload: delivery.payload.clone(),
            headers,
            position: position.unwrap_or_default(),
            time: None,
            defect,
        }
    }

    /// The message as it waits in the queue of its consumer.
    pub fn to_message(&self, queue: &str) -> Message {
        let mut message = Message::new(&self.event_type, self.payload.clone())
            .id(self.id)
            .queue(queue);
        message.headers = self.headers.clone();
        message.aggregate.clone_from(&self.aggregate);
        message.version = self.version;
        let headers = &mut message.headers;
        if self.key != self.id.to_string() {
            headers.set(carried::KEY, &self.key);
        }
        if !self.position.is_empty() {
            headers.set(carried::POSITION, &self.position);
        }
        if let Some(defect) = &self.defect {
            headers.set(carried::CODE, defect.code.as_str());
            headers.set(carried::ERROR, &defect.error);
        }
        message
    }

    /// The same in a lane of its own: it waits behind nobody, and nobody waits behind it. What it
    /// waits for is up to its consumer.
    pub fn to_message_apart(&self, queue: &str) -> Message {
        let mut message = self.to_message(queue);
        let (Some(aggregate), Some(version)) = (&self.aggregate, self.version) else {
            return message;
        };
        message.headers.set(carried::KIND, &aggregate.kind);
        message.headers.set(carried::ID, &aggregate.id);
        let lane = Aggregate::new(&aggregate.kind, format!("{}#{version}", aggregate.id));
        let fits = check_name("aggregate id", &lane.id).is_ok();
        message.aggregate = fits.then_some(lane);
        message
    }
}

struct Reader<'a> {
    arrival: &'a Arrival,
    mapping: &'a Mapping,
    /// The body as JSON, when a place in it is asked for.
    body: Option<Value>,
    defect: Option<Defect>,
}

impl<'a> Reader<'a> {
    fn new(arrival: &'a Arrival, mapping: &'a Mapping) -> Self {
        let places = [
            &mapping.id,
            &mapping.aggregate_type,
            &mapping.aggregate_id,
            &mapping.version,
            &mapping.event_type,
        ];
        let asked = places.iter().any(|p| matches!(p, Some(Place::Body(_))));
        let body = asked.then(|| serde_json::from_slice(&arrival.body).ok());
        Self {
            arrival,
            mapping,
            body: body.flatten(),
            defect: None,
        }
    }

    fn read(mut self) -> Incoming {
        let payload = self.payload();
        let headers = self.headers(&payload);
        let aggregate = self.aggregate();
        let version = self.version();
        let event_type = self.event_type();
        let (id, by_id) = self.identity();
        let key = match self.mapping.dedup {
            Dedup::Id => by_id,
            Dedup::Version => match (&aggregate, version) {
                (Some(aggregate), Some(version)) => {
                    let kind = aggregate.kind.len();
                    format!("{kind}:{}{}@{version}", aggregate.kind, aggregate.id)
                }
                _ => {
                    self.wrong(
                        "it has no aggregate or no version, by which a repeat is recognised",
                    );
                    by_id
                }
            },
        };
        Incoming {
            id,
            key: bounded(key),
            aggregate,
            version,
            event_type,
            payload,
            headers,
            position: plain(&self.arrival.position, 1_000),
            time: self.time(),
            defect: self.defect,
        }
    }

    /// The first thing that is wrong is the one that is told.
    fn wrong(&mut self, error: impl Into<String>) {
        self.defect.get_or_insert(Defect {
            code: Code::VALIDATION_ERROR,
            error: error.into(),
        });
    }

    /// The value of an attribute of the envelope.
    fn attribute(&self, name: &str) -> Option<String> {
        let value = self.arrival.headers.iter().find_map(|(given, value)| {
            (attribute_name(given)?.eq_ignore_ascii_case(name)).then_some(value)
        })?;
        let text = std::str::from_utf8(value).ok()?;
        (!text.is_empty()).then(|| text.to_owned())
    }

    fn at(&self, place: &Place) -> Option<String> {
        let text = match place {
            Place::Header(name) => self.arrival.text(name).map(str::to_owned),
            Place::Body(pointer) => match self.body.as_ref()?.pointer(pointer)? {
                Value::String(text) => Some(text.clone()),
                Value::Number(number) => Some(number.to_string()),
                Value::Bool(value) => Some(value.to_string()),
                _ => None,
            },
            Place::Key => self.key(),
            Place::Position => Some(self.arrival.position.clone()),
            Place::Fixed(value) => Some(value.clone()),
        };
        text.filter(|t| !t.is_empty())
    }

    fn found(&self, place: Option<&Place>, attribute: &str) -> Option<String> {
        match place {
            Some(place) => self.at(place),
            None => self.attribute(attribute),
        }
    }

    /// The broker's key as text. One that is a number in binary, say, is told in hexadecimal.
    fn key(&self) -> Option<String> {
        let key = self.arrival.key.as_ref().filter(|k| !k.is_empty())?;
        Some(match std::str::from_utf8(key) {
            Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
            _ => Hex(key).to_string(),
        })
    }

    /// The id, and by what a repeat is recognised.
    fn identity(&mut self) -> (MessageId, String) {
        let source = self.attribute("source").unwrap_or_default();
        match self.found(self.mapping.id.as_ref(), "id") {
            Some(text) => match MessageId::parse(&text) {
                Some(id) => (id, id.to_string()),
                None => {
                    let key = format!("{source} {text}");
                    (derived(&key), key.trim_start().to_owned())
                }
            },
            None => {
                let place = self.mapping.id.as_ref().map(Place::to_string);
                let place = place.unwrap_or_else(|| "the attribute `id`".into());
                self.wrong(format!("it has no id: nothing is found at {place}"));
                let key = format!("position {}", self.arrival.position);
                (derived(&key), key)
            }
        }
    }

    fn aggregate(&mut self) -> Option<Aggregate> {
        let mapping = self.mapping;
        let kind = self.found(mapping.aggregate_type.as_ref(), "aggregatetype");
        let id = self.found(mapping.aggregate_id.as_ref(), "subject");
        let mut aggregate = match id {
            Some(id) => Aggregate::new(kind.unwrap_or_default(), id),
            None if mapping.aggregate_id.is_some() => return None,
            None => {
                // An envelope says with this whether there is an order at all.
                let key = match self.attribute("specversion") {
                    Some(_) => self.attribute("partitionkey")?,
                    None => self.key()?,
                };
                Aggregate::new(kind.unwrap_or_default(), key)
            }
        };
        for (what, name) in [
            ("aggregate type", &mut aggregate.kind),
            ("aggregate id", &mut aggregate.id),
        ] {
            if name.chars().any(char::is_control) {
                self.wrong(format!("its {what} holds a control character"));
            }
            if !name.is_empty() && check_name(what, name).is_err() {
                *name = bounded(std::mem::take(name));
            }
        }
        Some(aggregate)
    }

    fn time(&self) -> Option<DateTime<Utc>> {
        let text = self.attribute("time")?;
        Some(DateTime::parse_from_rfc3339(&text).ok()?.to_utc())
    }

    fn version(&mut self) -> Option<i64> {
        let text = self.found(self.mapping.version.as_ref(), "aggregateversion")?;
        let version = text.trim().parse().ok();
        if version.is_none() {
            let shown: String = text.chars().take(64).collect();
            self.wrong(format!("its version {shown:?} is no whole number"));
        }
        version
    }

    fn event_type(&mut self) -> String {
        let found = self.found(self.mapping.event_type.as_ref(), "type");
        let name = found.unwrap_or_else(|| UNTYPED.to_owned());
        match check_name("event type", &name).is_ok() {
            true => name,
            false => {
                self.wrong(format!(
                    "its type has {} bytes or odd characters; {MAX_NAME} bytes are the most",
                    name.len()
                ));
                UNTYPED.to_owned()
            }
        }
    }

    fn payload(&mut self) -> Payload {
        let body = &self.arrival.body;
        if body.len() > MAX_PAYLOAD {
            self.wrong(format!(
                "its {} bytes are over the limit of {MAX_PAYLOAD}: the content was left out here",
                body.len()
            ));
            return Payload::Opaque(Bytes::new());
        }
        let said = self.arrival.text(header::CONTENT_TYPE);
        if said.is_some_and(|said| !is_json(said)) {
            return Payload::Opaque(body.clone());
        }
        match std::str::from_utf8(body) {
            Ok(text) if serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok() => {
                Payload::Json(text.to_owned())
            }
            _ => {
                if said.is_some() {
                    self.wrong("it says that it is JSON, and is not");
                }
                Payload::Opaque(body.clone())
            }
        }
    }

    fn headers(&mut self, payload: &Payload) -> Headers {
        let mut headers = Headers::new();
        for (name, value) in &self.arrival.headers {
            if attribute_name(name).is_some() {
                continue;
            }
            if name.eq_ignore_ascii_case(header::CONTENT_TYPE) {
                if let (Payload::Opaque(_), Ok(said)) = (payload, std::str::from_utf8(value))
                    && !said.contains('\0')
                {
                    headers.set(header::CONTENT_TYPE, said);
                }
                continue;
            }
            let name = name.strip_prefix(ESCAPE).unwrap_or(name);
            let odd = check_name("header name", name).is_err();
            let name = match odd {
                true => format!("hex-{}", Hex(&name.as_bytes()[..name.len().min(100)])),
                false => name.to_owned(),
            };
            match std::str::from_utf8(value) {
                Ok(text) if !text.contains('\0') => headers.set(&name, text),
                _ => headers.set(&format!("{name}-hex"), Hex(value).to_string()),
            }
        }
        // Room for what is carried along while it is put off.
        let size = headers.to_json().map_or(0, |json| json.len());
        if size > MAX_HEADERS - 8 * 1024 {
            self.wrong(format!(
                "its headers have {size} bytes, which is too much: they were left out here"
            ));
            return Headers::new();
        }
        headers
    }
}

/// The name of an attribute without its prefix. Absent when it is none.
fn attribute_name(name: &str) -> Option<&str> {
    PREFIXES.iter().find_map(|prefix| {
        let head = name.get(..prefix.len())?;
        head.eq_ignore_ascii_case(prefix)
            .then(|| &name[prefix.len()..])
    })
}

fn is_json(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case(JSON)
        || essence.eq_ignore_ascii_case("text/json")
        || essence.to_ascii_lowercase().ends_with("+json")
}

/// Text that can be stored and shown, of at most so many characters.
fn plain(text: &str, most: usize) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().take(most).map(plain).collect()
}

fn derived(key: &str) -> MessageId {
    let name = format!("counterfoil-incoming:{key}");
    MessageId::from(Uuid::new_v5(&Uuid::NAMESPACE_OID, name.as_bytes()))
}

/// In words while it is short and plain, and by its hash otherwise: distinct ones stay distinct.
fn bounded(key: String) -> String {
    let plain = !key.is_empty() && key.len() <= LONGEST_KEY && !key.chars().any(char::is_control);
    match plain {
        true => key,
        false => format!("sha256:{}", Hex(&Sha256::digest(key.as_bytes()))),
    }
}

#[cfg(test)]
mod tests;
