//! From a message to what is published.
//!
//! # Promise
//! It holds the whole envelope, each header once. What is larger than RabbitMQ, its protocol or the
//! settings allow is refused before anything is sent.

use counterfoil_core::envelope::{Envelope, Source};
use counterfoil_core::{Code, Delivery, Outcome};
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};

use crate::names::Target;
use crate::publisher::Outgoing;

/// What CloudEvents puts before attributes on AMQP.
pub(crate) const PREFIX: &str = "cloudEvents_";
/// Survives a restart.
pub(crate) const PERSISTENT: u8 = 2;
/// What a header costs on the wire besides its name and value, and what the rest does.
const FIELD_COST: usize = 6;
const FIXED_COST: usize = 1_100;

/// What is published of this message, or why it can never be.
pub(crate) fn outgoing(
    delivery: &Delivery,
    source: &Source,
    target: &Target,
    max_payload: usize,
) -> Result<Outgoing, Outcome> {
    let envelope = Envelope::of(delivery, source);
    let size = envelope.body.len();
    if size > max_payload {
        return Err(too_large("payload", size, max_payload));
    }
    let mut headers = FieldTable::default();
    let mut key = None;
    for (name, value) in &envelope.attributes {
        if *name == "partitionkey" {
            key = Some(&**value);
        }
        headers.insert(short(&format!("{PREFIX}{name}"))?, text(value));
    }
    for (name, value) in &envelope.headers {
        headers.insert(short(name)?, text(value));
    }
    let (exchange, routing_key) = target.of(delivery, key);
    let properties = BasicProperties::default()
        .with_content_type(short(envelope.content_type)?)
        .with_message_id(short(&delivery.id.to_string())?)
        .with_delivery_mode(PERSISTENT)
        .with_headers(headers);
    Ok(Outgoing {
        exchange: short(&exchange)?,
        routing_key: short(&routing_key)?,
        beside: beside(&properties),
        properties,
        body: bytes::Bytes::copy_from_slice(envelope.body),
    })
}

/// Not less than what stands beside the body on the wire.
pub(crate) fn beside(properties: &BasicProperties) -> usize {
    let table = properties.headers().as_ref();
    FIXED_COST + table.map_or(0, table_size)
}

fn table_size(table: &FieldTable) -> usize {
    let sizes = table.inner().iter();
    sizes
        .map(|(n, v)| n.as_str().len() + FIELD_COST + value_size(v))
        .sum()
}

fn value_size(value: &AMQPValue) -> usize {
    match value {
        AMQPValue::LongString(text) => text.len(),
        AMQPValue::ByteArray(bytes) => bytes.len(),
        AMQPValue::FieldTable(table) => table_size(table),
        AMQPValue::FieldArray(all) => {
            let all = all.as_slice().iter();
            all.map(|v| FIELD_COST + value_size(v)).sum()
        }
        _ => 16,
    }
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(LongString::from(value.as_bytes()))
}

fn short(text: &str) -> Result<ShortString, Outcome> {
    ShortString::try_new(text).map_err(|_| too_large("name, key or content type", text.len(), 255))
}

pub(crate) fn too_large(what: &str, size: usize, limit: usize) -> Outcome {
    let error = format!("{what} of {size} bytes: the largest that is sent is {limit}");
    Outcome::refused(Code::TOO_LARGE, error)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use chrono::DateTime;
    use counterfoil_core::row::RowState;
    use counterfoil_core::{Aggregate, Headers, MessageId, Payload};

    use super::*;
    use crate::names::Place;

    pub(crate) fn delivery() -> Delivery {
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

    fn of(delivery: &Delivery) -> Result<Outgoing, Outcome> {
        let target = Target::new(&Place::Topic("t".into()), 1).unwrap();
        outgoing(delivery, &Source::default(), &target, 100)
    }

    #[test]
    fn the_largest_payload_passes_and_one_byte_more_does_not() {
        let with = |size: usize| Delivery {
            payload: Payload::Opaque(vec![0; size].into()),
            ..delivery()
        };

        assert!(of(&with(100)).is_ok());
        let refused = of(&with(101)).err().unwrap();

        let text = "payload of 101 bytes: the largest that is sent is 100";
        assert_eq!(refused, Outcome::refused(Code::TOO_LARGE, text));
    }

    #[test]
    fn what_does_not_fit_into_a_name_is_refused() {
        let long = "x".repeat(256);
        let name = Delivery {
            headers: [(long.as_str(), "v")].into_iter().collect(),
            ..delivery()
        };
        let content_type = Delivery {
            payload: Payload::Opaque(vec![0].into()),
            headers: [("content-type", long.as_str())].into_iter().collect(),
            ..delivery()
        };
        for odd in [name, content_type] {
            assert_eq!(of(&odd).err().unwrap().label(), "refused");
        }
    }

    #[test]
    fn the_message_is_persistent_and_has_its_id() {
        let sent = delivery();
        let out = of(&sent).ok().unwrap();

        assert_eq!(*out.properties.delivery_mode(), Some(2));
        let id = out.properties.message_id().as_ref().unwrap();
        assert_eq!(id.as_str(), sent.id.to_string());
        assert!(out.beside > 300);
    }
}
