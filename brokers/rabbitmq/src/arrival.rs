//! From what RabbitMQ handed out to an arrival, and to a copy of it.
//!
//! # Promise
//! The same message looks the same at every reception, whatever RabbitMQ has noted on it meanwhile.
//! A copy has everything that the message had, and nothing that would send it elsewhere.

use bytes::Bytes;
use counterfoil_core::hex::Hex;
use counterfoil_core::source::{Arrival, Tag};
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use sha2::{Digest as _, Sha256};

use crate::outgoing::{PERSISTENT, PREFIX, beside};
use crate::publisher::Outgoing;

/// How often it was handed out before it was put aside for a while.
pub(crate) const BEFORE: &str = "x-counterfoil-deliveries";
/// What RabbitMQ counts.
const COUNT: &str = "x-delivery-count";
/// What RabbitMQ notes when a message goes from one queue to another; the last two would send a copy
/// to other queues as well.
const NOTES: [&str; 7] = [
    "x-death",
    "x-first-death-exchange",
    "x-first-death-queue",
    "x-first-death-reason",
    "x-last-death-reason",
    "CC",
    "BCC",
];

/// A message that is with the caller.
pub(crate) struct Received {
    pub(crate) properties: BasicProperties,
    pub(crate) body: Bytes,
    pub(crate) redelivered: bool,
}

impl Received {
    /// As the caller sees it.
    pub(crate) fn arrival(&self, tag: Tag, queue: &str) -> Arrival {
        let headers = self.headers();
        let key = format!("{PREFIX}partitionkey");
        let key = headers.iter().find(|(name, _)| *name == key);
        Arrival {
            tag,
            position: format!("{queue}@{}", self.place(&headers)),
            key: key.map(|(_, value)| value.clone()),
            headers,
            body: self.body.clone(),
            deliveries: self.deliveries(),
        }
    }

    /// The properties that say something about the message, and the headers.
    fn headers(&self) -> Vec<(String, Bytes)> {
        let p = &self.properties;
        let mut all: Vec<(String, Bytes)> = Vec::new();
        if let Some(table) = p.headers() {
            let own = table.inner().iter().filter(|(name, _)| !is_note(name));
            all.extend(own.filter_map(|(n, v)| Some((n.to_string(), bytes(v)?))));
        }
        let timestamp = p.timestamp().map(|t| t.to_string());
        let text = |value: &Option<ShortString>| value.as_ref().map(ToString::to_string);
        for (name, value) in [
            ("content-type", text(p.content_type())),
            ("content-encoding", text(p.content_encoding())),
            ("message-id", text(p.message_id())),
            ("correlation-id", text(p.correlation_id())),
            ("type", text(p.kind())),
            ("app-id", text(p.app_id())),
            ("reply-to", text(p.reply_to())),
            ("timestamp", timestamp),
        ] {
            // A header of the message comes first.
            let free = !all.iter().any(|(n, _)| n.eq_ignore_ascii_case(name));
            if let Some(value) = value.filter(|_| free) {
                all.push((name.to_owned(), value.into()));
            }
        }
        all
    }

    /// RabbitMQ numbers nothing for good, so this is the id; without one it is a digest, and two
    /// messages without an id that are the same have the same one.
    fn place(&self, headers: &[(String, Bytes)]) -> String {
        if let Some(id) = self.properties.message_id() {
            return id.to_string();
        }
        let mut digest = Sha256::new();
        for part in headers.iter().flat_map(|(n, v)| [n.as_bytes(), v]) {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        }
        digest.update(&self.body);
        format!("sha256:{}", Hex(&digest.finalize()[..16]))
    }

    /// Quorum queues count; of others it is only known whether it is the first time.
    pub(crate) fn deliveries(&self) -> Option<u32> {
        let table = self.properties.headers().as_ref();
        let number = |name: &str| {
            let value = table.and_then(|t| t.inner().get(name));
            value.and_then(integer).and_then(|n| u32::try_from(n).ok())
        };
        let before = number(BEFORE).unwrap_or(0);
        match (number(COUNT), self.redelivered) {
            (Some(count), _) => Some(before.saturating_add(count).saturating_add(1)),
            (None, false) => Some(before.saturating_add(1)),
            (None, true) => None,
        }
    }

    /// The trace that it belongs to.
    pub(crate) fn traceparent(&self) -> Option<String> {
        let table = self.properties.headers().as_ref()?;
        let value = bytes(table.inner().get("traceparent")?)?;
        String::from_utf8(value.into()).ok()
    }

    /// The same message for another place, with more headers.
    pub(crate) fn copy(
        &self,
        exchange: ShortString,
        routing_key: ShortString,
        more: Vec<(ShortString, AMQPValue)>,
    ) -> Outgoing {
        let old = &self.properties;
        let own = old.headers().as_ref().map(|t| t.inner().clone());
        let mut table = FieldTable::default();
        for (name, value) in own.unwrap_or_default() {
            if !is_note(&name) {
                table.insert(name, value);
            }
        }
        for (name, value) in more {
            table.insert(name, value);
        }
        // Not its expiry, which is over or was meant for the first queue, nor the user, who must be
        // the one that publishes.
        let mut properties = BasicProperties::default()
            .with_delivery_mode(PERSISTENT)
            .with_headers(table);
        type Set = fn(BasicProperties, ShortString) -> BasicProperties;
        let texts: [(&Option<ShortString>, Set); 7] = [
            (old.content_type(), BasicProperties::with_content_type),
            (
                old.content_encoding(),
                BasicProperties::with_content_encoding,
            ),
            (old.message_id(), BasicProperties::with_message_id),
            (old.correlation_id(), BasicProperties::with_correlation_id),
            (old.kind(), BasicProperties::with_type),
            (old.app_id(), BasicProperties::with_app_id),
            (old.reply_to(), BasicProperties::with_reply_to),
        ];
        for (value, set) in texts {
            if let Some(value) = value {
                properties = set(properties, value.clone());
            }
        }
        if let Some(time) = old.timestamp() {
            properties = properties.with_timestamp(*time);
        }
        if let Some(priority) = old.priority() {
            properties = properties.with_priority(*priority);
        }
        Outgoing {
            exchange,
            routing_key,
            beside: beside(&properties),
            properties,
            body: self.body.clone(),
        }
    }
}

fn is_note(name: &ShortString) -> bool {
    let name = name.as_str();
    name == COUNT || name == BEFORE || NOTES.contains(&name)
}

/// Texts and bytes as they are, numbers in words; tables and lists have no form of their own.
fn bytes(value: &AMQPValue) -> Option<Bytes> {
    Some(match value {
        AMQPValue::LongString(text) => Bytes::copy_from_slice(text.as_bytes()),
        AMQPValue::ShortString(text) => text.to_string().into(),
        AMQPValue::ByteArray(bytes) => Bytes::copy_from_slice(bytes.as_slice()),
        AMQPValue::Boolean(is) => is.to_string().into(),
        AMQPValue::Float(number) => number.to_string().into(),
        AMQPValue::Double(number) => number.to_string().into(),
        AMQPValue::Timestamp(seconds) => seconds.to_string().into(),
        AMQPValue::Void => Bytes::new(),
        other => integer(other)?.to_string().into(),
    })
}

fn integer(value: &AMQPValue) -> Option<i128> {
    Some(match value {
        AMQPValue::ShortShortInt(n) => (*n).into(),
        AMQPValue::ShortShortUInt(n) => (*n).into(),
        AMQPValue::ShortInt(n) => (*n).into(),
        AMQPValue::ShortUInt(n) => (*n).into(),
        AMQPValue::LongInt(n) => (*n).into(),
        AMQPValue::LongUInt(n) => (*n).into(),
        AMQPValue::LongLongInt(n) => (*n).into(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(headers: &[(&str, AMQPValue)], redelivered: bool) -> Received {
        let mut table = FieldTable::default();
        for (name, value) in headers {
            table.insert((*name).into(), value.clone());
        }
        Received {
            properties: BasicProperties::default().with_headers(table),
            body: Bytes::from_static(b"{}"),
            redelivered,
        }
    }

    #[test]
    fn deliveries_are_counted_over_delays_where_the_broker_counts() {
        let count = |n: i64| (COUNT, AMQPValue::LongLongInt(n));
        let before = |n: i32| (BEFORE, AMQPValue::LongInt(n));
        assert_eq!(received(&[], false).deliveries(), Some(1));
        assert_eq!(received(&[count(2)], true).deliveries(), Some(3));
        assert_eq!(received(&[count(2), before(4)], true).deliveries(), Some(7));
        assert_eq!(received(&[before(4)], false).deliveries(), Some(5));
        assert_eq!(received(&[], true).deliveries(), None);
    }

    #[test]
    fn what_the_broker_notes_changes_nothing() {
        let own = ("x-own", AMQPValue::LongString("a".into()));
        let first = received(std::slice::from_ref(&own), false);
        let notes = [
            own,
            (COUNT, AMQPValue::LongLongInt(1)),
            (BEFORE, AMQPValue::LongInt(1)),
            ("x-first-death-queue", AMQPValue::LongString("q".into())),
        ];
        let again = received(&notes, true);

        let (a, b) = (first.arrival(Tag(1), "q"), again.arrival(Tag(1), "q"));
        assert_eq!(a.headers, b.headers);
        assert_eq!(a.position, b.position);
        assert!(a.position.starts_with("q@sha256:"), "{}", a.position);
    }

    #[test]
    fn numbers_and_properties_are_headers_and_lists_are_not() {
        let mut odd = received(
            &[
                ("n", AMQPValue::LongInt(-7)),
                ("b", AMQPValue::Boolean(true)),
                ("Type", AMQPValue::LongString("own".into())),
                ("list", AMQPValue::FieldArray(vec![].into())),
            ],
            false,
        );
        odd.properties = odd
            .properties
            .with_message_id("m-1".into())
            .with_type("OrderPaid".into());

        let arrival = odd.arrival(Tag(1), "q");

        assert_eq!(arrival.text("n"), Some("-7"));
        assert_eq!(arrival.text("b"), Some("true"));
        assert_eq!(arrival.text("type"), Some("own"));
        assert_eq!(arrival.text("message-id"), Some("m-1"));
        assert_eq!(arrival.text("list"), None);
        assert_eq!(arrival.position, "q@m-1");
    }

    #[test]
    fn a_copy_is_whole_and_goes_nowhere_else() {
        let mut first = received(
            &[
                ("x-own", AMQPValue::LongString(b"\xff\x00"[..].into())),
                ("CC", AMQPValue::FieldArray(vec![].into())),
            ],
            true,
        );
        first.properties = first
            .properties
            .with_message_id("m-1".into())
            .with_content_type("image/png".into())
            .with_expiration("5".into())
            .with_user_id("other".into());

        let more = vec![("dlq-error".into(), AMQPValue::LongString("why".into()))];
        let copy = first.copy("".into(), "q.DLQ".into(), more);

        let p = &copy.properties;
        assert_eq!(p.message_id().as_ref().unwrap().as_str(), "m-1");
        assert_eq!(p.content_type().as_ref().unwrap().as_str(), "image/png");
        assert_eq!((p.expiration(), p.user_id()), (&None, &None));
        assert_eq!(*p.delivery_mode(), Some(PERSISTENT));
        let table = p.headers().as_ref().unwrap().inner();
        let names: Vec<&str> = table.keys().map(ShortString::as_str).collect();
        assert_eq!(names, ["dlq-error", "x-own"]);
    }
}
