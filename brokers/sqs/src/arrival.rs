//! From a message of SQS to an arrival.
//!
//! # Promise
//! Whatever SQS hands out becomes an arrival, also what was not written by us. The same message
//! gives the same arrival each time.

use std::collections::BTreeMap;

use aws_sdk_sqs::types::{Message, MessageSystemAttributeName as System};
use bytes::Bytes;
use counterfoil_core::source::{Arrival, Tag};

use crate::parcel::{BODY, HEADERS, read_body, read_headers};

/// The arrival of this message.
pub(crate) fn of(tag: Tag, queue: &str, message: &Message) -> Arrival {
    let mut headers: BTreeMap<String, Bytes> = BTreeMap::new();
    let mut written = None;
    for (name, attribute) in message.message_attributes.iter().flatten() {
        let text = attribute.string_value.as_deref();
        let ours = text.filter(|_| name == HEADERS).and_then(read_headers);
        if let Some(ours) = ours {
            headers.extend(ours.into_iter().map(|(n, v)| (n, Bytes::from(v))));
        } else if name == BODY {
            written = text;
        } else if let Some(bytes) = &attribute.binary_value {
            headers.insert(name.clone(), Bytes::copy_from_slice(bytes.as_ref()));
        } else {
            let value = text.unwrap_or_default().to_owned();
            headers.insert(name.clone(), value.into());
        }
    }
    let body = message.body.clone().unwrap_or_default();
    Arrival {
        tag,
        position: position(queue, message),
        key: key(message, &headers),
        headers: headers.into_iter().collect(),
        body: read_body(body, written).into(),
        deliveries: deliveries(message),
    }
}

/// Where a message stands: the queue and the id that SQS gave it.
fn position(queue: &str, message: &Message) -> String {
    format!("{queue}@{}", message.message_id.as_deref().unwrap_or("?"))
}

/// A fact that SQS tells about a message.
pub(crate) fn fact<'a>(message: &'a Message, name: &System) -> Option<&'a str> {
    message.attributes.as_ref()?.get(name).map(String::as_str)
}

/// How often it was received.
pub(crate) fn deliveries(message: &Message) -> Option<u32> {
    fact(message, &System::ApproximateReceiveCount)?
        .parse()
        .ok()
}

/// What order is kept for. The group may be only a digest of it, or stand for no order at all.
fn key(message: &Message, headers: &BTreeMap<String, Bytes>) -> Option<Bytes> {
    if let Some(key) = headers.get("ce_partitionkey") {
        return Some(key.clone());
    }
    let group = fact(message, &System::MessageGroupId)?;
    let alone = headers.get("ce_id").is_some_and(|id| id == group);
    (!alone).then(|| Bytes::copy_from_slice(group.as_bytes()))
}

#[cfg(test)]
mod tests {
    use aws_sdk_sqs::primitives::Blob;
    use aws_sdk_sqs::types::MessageAttributeValue;
    use counterfoil_core::{Delivery, Payload};

    use super::*;
    use crate::entry::tests::{delivery, parcel};

    fn sent(delivery: &Delivery) -> Message {
        let parcel = parcel(delivery, true).unwrap();
        Message::builder()
            .message_id("m-1")
            .body(parcel.body)
            .set_message_attributes(Some(parcel.attributes))
            .attributes(System::MessageGroupId, parcel.group.unwrap())
            .attributes(System::ApproximateReceiveCount, "3")
            .build()
    }

    #[test]
    fn what_we_sent_comes_out_whole() {
        let one = Delivery {
            payload: Payload::Opaque(vec![0, 255].into()),
            headers: [("traceparent", "t"), ("b", "\u{1}")].into_iter().collect(),
            ..delivery()
        };

        let arrival = of(Tag(1), "orders.fifo", &sent(&one));

        assert_eq!(arrival.text("ce_id"), Some(one.id.to_string().as_str()));
        assert_eq!(arrival.text("ce_aggregateversion"), Some("7"));
        assert_eq!(arrival.text("b"), Some("\u{1}"));
        assert_eq!(arrival.key.as_deref(), Some(b"order/42".as_slice()));
        assert_eq!(arrival.body, [0, 255].as_slice());
        assert_eq!(arrival.position, "orders.fifo@m-1");
        assert_eq!(arrival.deliveries, Some(3));
        assert!(arrival.text(HEADERS).is_none() && arrival.text(BODY).is_none());
    }

    #[test]
    fn one_that_waits_for_nobody_has_no_key() {
        let alone = Delivery {
            aggregate: None,
            ..delivery()
        };
        assert_eq!(of(Tag(1), "q.fifo", &sent(&alone)).key, None);
    }

    #[test]
    fn what_others_sent_is_taken_as_it_is() {
        let bytes = MessageAttributeValue::builder()
            .data_type("Binary")
            .binary_value(Blob::new([0, 1]));
        let odd = MessageAttributeValue::builder()
            .data_type("String")
            .string_value("no json");
        let message = Message::builder()
            .body("hello")
            .message_attributes("b", bytes.build().unwrap())
            .message_attributes(HEADERS, odd.build().unwrap())
            .attributes(System::MessageGroupId, "g")
            .build();

        let arrival = of(Tag(1), "q", &message);

        assert_eq!(&arrival.body[..], b"hello");
        assert_eq!(arrival.text(HEADERS), Some("no json"));
        assert_eq!(
            arrival.headers[0],
            ("b".into(), Bytes::from_static(&[0, 1]))
        );
        assert_eq!(arrival.key.as_deref(), Some(b"g".as_slice()));
        assert_eq!(arrival.deliveries, None);
    }
}
