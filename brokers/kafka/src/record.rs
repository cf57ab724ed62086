//! From a message to a record, and from a record to what was received.
//!
//! # Promise
//! A record holds the whole envelope as the Kafka binding of CloudEvents says it in binary mode. The
//! key is what orders the message. What is larger than the settings allow is refused before
//! anything is sent. What comes out is what went in, byte for byte; a header or a body that is null
//! comes out empty.

use bytes::Bytes;
use counterfoil_core::envelope::{Envelope, Source};
use counterfoil_core::source::{Arrival, DeadLetter, Tag, dead};
use counterfoil_core::{Code, Delivery, Outcome};
use krafka::{ConsumerRecord, Record};

/// The most that may stand beside the payload. An outbox that we wrote has 64 KiB of headers at
/// most; what others wrote may have more, and has a limit too.
pub(crate) const MAX_BESIDE: usize = 1024 * 1024;
/// Stands before the name of an attribute.
const PREFIX: &str = "ce_";

/// The record of this message, or why it can never be one.
pub(crate) fn of(
    delivery: &Delivery,
    source: &Source,
    topic: String,
    max_payload: usize,
) -> Result<Record, Outcome> {
    let envelope = Envelope::of(delivery, source);
    let (payload, beside) = (envelope.body.len(), envelope.size_beside_body());
    if payload > max_payload {
        return Err(too_large("payload", payload, max_payload));
    }
    if beside > MAX_BESIDE {
        return Err(too_large("headers and attributes", beside, MAX_BESIDE));
    }
    let mut record = Record::new(topic, Bytes::copy_from_slice(envelope.body));
    record
        .headers
        .reserve(envelope.attributes.len() + envelope.headers.len() + 1);
    for (name, value) in envelope.attributes {
        let value = Bytes::from(value.into_owned());
        if name == "partitionkey" {
            record.key = Some(value.clone());
        }
        record
            .headers
            .push((format!("{PREFIX}{name}"), Some(value)));
    }
    let content_type = Bytes::copy_from_slice(envelope.content_type.as_bytes());
    record
        .headers
        .push(("content-type".to_owned(), Some(content_type)));
    for (name, value) in envelope.headers {
        let value = Bytes::copy_from_slice(value.as_bytes());
        record.headers.push((name.into_owned(), Some(value)));
    }
    Ok(record)
}

fn too_large(what: &str, size: usize, limit: usize) -> Outcome {
    let error = format!("{what} of {size} bytes: the largest that is sent is {limit}");
    Outcome::refused(Code::TOO_LARGE, error)
}

/// What was fetched, in memory of its own: a record of the client holds on to everything that was
/// fetched together with it.
#[derive(Debug, Clone)]
pub(crate) struct Fetched {
    pub(crate) key: Option<Bytes>,
    pub(crate) headers: Vec<(String, Bytes)>,
    pub(crate) body: Bytes,
}

impl Fetched {
    pub(crate) fn of(record: ConsumerRecord) -> Self {
        let own = |bytes: Bytes| Bytes::copy_from_slice(&bytes);
        let header =
            |(name, value): (String, Option<Bytes>)| (name, own(value.unwrap_or_default()));
        Self {
            key: record.key.map(own),
            headers: record.headers.into_iter().map(header).collect(),
            body: own(record.value.unwrap_or_default()),
        }
    }

    /// About how many bytes it takes.
    pub(crate) fn size(&self) -> usize {
        let headers = self.headers.iter().map(|(n, v)| n.len() + v.len() + 64);
        let key = self.key.as_ref().map_or(0, Bytes::len);
        headers.sum::<usize>() + key + self.body.len() + 128
    }

    pub(crate) fn arrival(&self, tag: Tag, topic: &str, partition: i32, offset: i64) -> Arrival {
        Arrival {
            tag,
            position: format!("{topic}/{partition}@{offset}"),
            key: self.key.clone(),
            headers: self.headers.clone(),
            body: self.body.clone(),
            // Kafka does not count.
            deliveries: None,
        }
    }

    /// The same message among the dead letters, with what is known about its death.
    pub(crate) fn letter(
        &self,
        why: &DeadLetter,
        topic: &str,
        partition: i32,
        offset: i64,
    ) -> Record {
        let mut record = Record::new(dead_letters(topic), self.body.clone());
        record.key.clone_from(&self.key);
        let named = |(n, _): &&(String, Bytes)| n.eq_ignore_ascii_case("traceparent");
        let traceparent = self.headers.iter().find(named);
        let traceparent = traceparent.and_then(|(_, value)| std::str::from_utf8(value).ok());
        // One that died before brings the marks of its first death: those of this one replace them.
        let own = self.headers.iter().filter(|(n, _)| !n.starts_with("dlq-"));
        record.headers = own.map(|(n, v)| (n.clone(), Some(v.clone()))).collect();
        let place = [
            (dead::TOPIC, topic.to_owned()),
            (dead::PARTITION, partition.to_string()),
            (dead::OFFSET, offset.to_string()),
        ];
        for (name, value) in why.headers(traceparent).into_iter().chain(place) {
            record.headers.push((name.to_owned(), Some(value.into())));
        }
        record
    }
}

/// Where what cannot pass goes.
pub(crate) fn dead_letters(topic: &str) -> String {
    format!("{topic}.DLQ")
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use chrono::Utc;
    use counterfoil_core::row::RowState;
    use counterfoil_core::{Aggregate, Headers, MessageId, Payload};

    use super::*;

    pub(crate) fn delivery() -> Delivery {
        Delivery {
            seq: 1,
            shard: 0,
            epoch: 1,
            id: MessageId::new(),
            queue: Arc::from("q"),
            aggregate: Some(Aggregate::new("order", 42)),
            version: None,
            event_type: "OrderPaid".into(),
            payload: Payload::Json("{}".into()),
            headers: Headers::new(),
            attempt: 1,
            crashes: 0,
            created_at: Utc::now(),
            state: RowState::New,
            defect: None,
        }
    }

    fn record(delivery: &Delivery) -> Record {
        of(delivery, &Source::default(), "orders".into(), 100).unwrap()
    }

    fn header<'a>(record: &'a Record, name: &str) -> Option<&'a [u8]> {
        let found = record.headers.iter().find(|(n, _)| n == name);
        found.and_then(|(_, value)| value.as_deref())
    }

    #[test]
    fn a_record_is_the_envelope_and_its_key_is_what_orders_it() {
        let paid = Delivery {
            headers: [("traceparent", "t")].into_iter().collect(),
            ..delivery()
        };

        let record = record(&paid);

        assert_eq!(record.key.as_deref(), Some(&b"order/42"[..]));
        assert_eq!(record.value.as_deref(), Some(&b"{}"[..]));
        let id = paid.id.to_string();
        assert_eq!(header(&record, "ce_id"), Some(id.as_bytes()));
        assert_eq!(header(&record, "ce_partitionkey"), Some(&b"order/42"[..]));
        assert_eq!(
            header(&record, "content-type"),
            Some(&b"application/json"[..])
        );
        assert_eq!(header(&record, "traceparent"), Some(&b"t"[..]));
    }

    #[test]
    fn a_message_without_an_aggregate_has_no_key() {
        let bare = Delivery {
            aggregate: None,
            ..delivery()
        };

        assert_eq!(record(&bare).key, None);
    }

    #[test]
    fn what_is_too_large_is_refused() {
        let sized = |size: usize| Delivery {
            payload: Payload::Opaque(vec![0; size].into()),
            ..delivery()
        };
        let loud = Delivery {
            headers: [("a", "x".repeat(MAX_BESIDE))].into_iter().collect(),
            ..delivery()
        };

        let try_of = |d: &Delivery| of(d, &Source::default(), "t".into(), 100);
        assert!(try_of(&sized(100)).is_ok());
        assert_eq!(try_of(&sized(101)).err().unwrap().label(), "refused");
        assert_eq!(try_of(&loud).err().unwrap().label(), "refused");
    }

    #[test]
    fn a_second_death_is_told_once() {
        let fetched = Fetched {
            key: Some(Bytes::from_static(b"k")),
            headers: vec![
                ("own".into(), Bytes::from_static(b"v")),
                (dead::CODE.into(), Bytes::from_static(b"OLD")),
            ],
            body: Bytes::from_static(b"b"),
        };
        let why = DeadLetter {
            code: Code::VALIDATION_ERROR,
            error: "e".into(),
            attempts: 2,
        };

        let letter = fetched.letter(&why, "orders", 3, 17);

        assert_eq!(letter.topic, "orders.DLQ");
        assert_eq!(letter.key, fetched.key);
        assert_eq!(header(&letter, dead::CODE), Some(&b"VALIDATION_ERROR"[..]));
        assert_eq!(header(&letter, dead::PARTITION), Some(&b"3"[..]));
        assert_eq!(header(&letter, dead::OFFSET), Some(&b"17"[..]));
        assert_eq!(header(&letter, "own"), Some(&b"v"[..]));
        let codes = letter.headers.iter().filter(|(n, _)| n == dead::CODE);
        assert_eq!(codes.count(), 1);
    }
}
