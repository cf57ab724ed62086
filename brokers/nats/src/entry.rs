//! From a message to what is published, and back to what a consumer sees.
//!
//! # Promise
//! A message holds the whole envelope as CloudEvents has it for NATS: attributes behind `ce-`, each
//! header once, the payload byte for byte. What was encoded for the way is decoded on receipt, and
//! what others wrote without encoding is left alone.

use async_nats::{HeaderMap, HeaderName, HeaderValue, Message};
use bytes::Bytes;
use counterfoil_core::envelope::{Envelope, Source};
use counterfoil_core::source::{Arrival, Tag};
use counterfoil_core::{Code, Delivery, Outcome};

use crate::percent;
use crate::subject::Subjects;

/// Stands before the name of an attribute.
pub(crate) const PREFIX: &str = "ce-";
/// What CloudEvents calls the content type on NATS, beside the name that others use.
const CONTENT_TYPE_ATTRIBUTE: &str = "ce-datacontenttype";
/// By this the server recognises repeats.
pub(crate) const MESSAGE_ID: &str = "Nats-Msg-Id";
/// Who the server has chosen as the one consumer. It belongs to the delivery, not to the message.
pub(crate) const PIN: &str = "Nats-Pin-Id";
/// The most that may stand beside the payload.
const MAX_BESIDE: usize = 256 * 1024;

/// One message, ready to be sent.
pub(crate) struct Entry {
    pub(crate) subject: String,
    pub(crate) headers: HeaderMap,
    pub(crate) payload: Bytes,
}

impl Entry {
    /// The entry of this message, or why it can never be one.
    pub(crate) fn of(
        delivery: &Delivery,
        source: &Source,
        subjects: &Subjects,
        max_payload: usize,
    ) -> Result<Self, Outcome> {
        let envelope = Envelope::of(delivery, source);
        let (payload, beside) = (envelope.body.len(), envelope.size_beside_body());
        if payload > max_payload {
            return Err(too_large("payload", payload, max_payload));
        }
        if beside > MAX_BESIDE {
            return Err(too_large("headers and attributes", beside, MAX_BESIDE));
        }
        let id = delivery.id.to_string();
        let key = envelope
            .attributes
            .iter()
            .find(|(n, _)| *n == "partitionkey");
        let subject = subjects.of_key(key.map_or(&*id, |(_, key)| key));
        Ok(Self {
            subject,
            headers: headers(&envelope, &id)?,
            payload: Bytes::copy_from_slice(envelope.body),
        })
    }
}

fn headers(envelope: &Envelope<'_>, id: &str) -> Result<HeaderMap, Outcome> {
    let mut headers = HeaderMap::new();
    put(&mut headers, MESSAGE_ID, id)?;
    for (name, value) in &envelope.attributes {
        put(&mut headers, &format!("{PREFIX}{name}"), value)?;
    }
    put(&mut headers, "content-type", envelope.content_type)?;
    put(&mut headers, CONTENT_TYPE_ATTRIBUTE, envelope.content_type)?;
    for (name, value) in &envelope.headers {
        put(&mut headers, name, value)?;
    }
    Ok(headers)
}

/// Puts one header, encoded.
pub(crate) fn put(headers: &mut HeaderMap, name: &str, value: &str) -> Result<(), Outcome> {
    let unfit = |error: &dyn std::fmt::Display| {
        let text = format!("NATS cannot carry the header {name:?}: {error}");
        Outcome::refused(Code::VALIDATION_ERROR, text)
    };
    let encoded: HeaderName = percent::name(name).parse().map_err(|e| unfit(&e))?;
    let value: HeaderValue = percent::value(value).parse().map_err(|e| unfit(&e))?;
    headers.insert(encoded, value);
    Ok(())
}

fn too_large(what: &str, size: usize, limit: usize) -> Outcome {
    let error = format!("{what} of {size} bytes: the largest that is sent is {limit}");
    Outcome::refused(Code::TOO_LARGE, error)
}

/// A message as a consumer sees it.
pub(crate) fn arrival(message: &Message, tag: Tag, position: String, deliveries: u32) -> Arrival {
    let headers = received(message.headers.as_ref());
    let key = headers.iter().find(|(name, _)| name == "ce-partitionkey");
    Arrival {
        tag,
        position,
        key: key.map(|(_, value)| value.clone()),
        headers,
        body: message.payload.clone(),
        deliveries: Some(deliveries),
    }
}

/// The headers of the message, in the order of their names.
fn received(headers: Option<&HeaderMap>) -> Vec<(String, Bytes)> {
    let Some(headers) = headers else {
        return Vec::new();
    };
    // Only those who follow the rules of CloudEvents have encoded anything.
    let encoded = headers.get("ce-specversion").is_some();
    let mut all = Vec::with_capacity(headers.len());
    for (name, values) in headers.iter() {
        let name: &str = name.as_ref();
        if name == PIN {
            continue;
        }
        for value in values {
            all.push(match encoded {
                true => (
                    percent::decode_name(name),
                    Bytes::from(percent::decode(value.as_str())),
                ),
                false => (
                    name.to_owned(),
                    Bytes::copy_from_slice(value.as_str().as_bytes()),
                ),
            });
        }
    }
    // The client keeps them in no order, and a redelivery is to look like the first one.
    all.sort();
    all
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use chrono::DateTime;
    use counterfoil_core::row::RowState;
    use counterfoil_core::{Aggregate, Headers, MessageId, Payload};

    use super::*;

    fn delivery() -> Delivery {
        Delivery {
            seq: 1,
            shard: 0,
            epoch: 1,
            id: MessageId::new(),
            queue: Arc::from("q"),
            aggregate: Some(Aggregate::new("order", 42)),
            version: Some(7),
            event_type: "OrderPaid".into(),
            payload: Payload::Json("{}".into()),
            headers: Headers::new(),
            attempt: 1,
            crashes: 0,
            created_at: DateTime::UNIX_EPOCH,
            state: RowState::New,
            defect: None,
        }
    }

    fn entry(delivery: &Delivery, max_payload: usize) -> Result<Entry, Outcome> {
        let subjects = Subjects::parse("orders", 4).unwrap();
        Entry::of(delivery, &Source::default(), &subjects, max_payload)
    }

    #[test]
    fn a_message_is_published_as_cloudevents_has_it() {
        let given = delivery();
        let entry = entry(&given, 100).ok().unwrap();

        let value = |name: &str| entry.headers.get(name).map(ToString::to_string);
        assert_eq!(value("Nats-Msg-Id"), Some(given.id.to_string()));
        assert_eq!(value("ce-id"), Some(given.id.to_string()));
        assert_eq!(value("ce-partitionkey").as_deref(), Some("order/42"));
        for name in ["content-type", "ce-datacontenttype"] {
            assert_eq!(value(name).as_deref(), Some("application/json"));
        }
        let subjects = Subjects::parse("orders", 4).unwrap();
        assert_eq!(entry.subject, subjects.of_key("order/42"));
        assert_eq!(&entry.payload[..], b"{}");
    }

    #[test]
    fn odd_names_and_values_are_encoded_and_come_out_as_they_went_in() {
        let given = [("größe", "a\r\nb"), ("", " x "), ("a b", "100%")];
        let odd = Delivery {
            headers: given.into_iter().collect(),
            ..delivery()
        };
        let entry = entry(&odd, 100).ok().unwrap();

        let found = received(Some(&entry.headers));

        for (name, value) in given {
            let expected = (name.to_owned(), Bytes::from(value));
            assert!(found.contains(&expected), "{name:?}");
        }
    }

    #[test]
    fn what_others_wrote_is_left_as_it_is() {
        let mut headers = HeaderMap::new();
        headers.insert("x-own", "50%25");
        headers.insert(PIN, "abc");

        let found = received(Some(&headers));

        assert_eq!(found, [("x-own".to_owned(), Bytes::from("50%25"))]);
    }

    #[test]
    fn the_largest_payload_passes_and_one_byte_more_does_not() {
        let with = |size: usize| Delivery {
            payload: Payload::Opaque(vec![0; size].into()),
            ..delivery()
        };

        assert!(entry(&with(100), 100).is_ok());
        let refused = entry(&with(101), 100).err().unwrap();

        let text = "payload of 101 bytes: the largest that is sent is 100";
        assert_eq!(refused, Outcome::refused(Code::TOO_LARGE, text));
    }

    #[test]
    fn endless_headers_are_refused() {
        let endless = Delivery {
            headers: [("a", "x".repeat(MAX_BESIDE))].into_iter().collect(),
            ..delivery()
        };

        assert_eq!(entry(&endless, 100).err().unwrap().label(), "refused");
    }
}
