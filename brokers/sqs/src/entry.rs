//! From a message of the outbox to one of SQS.
//!
//! # Promise
//! The whole envelope goes, each part once. What is larger than SQS or the settings allow is
//! refused before anything is sent, and what goes leaves room for what a dead letter says.

use std::collections::BTreeMap;

use counterfoil_core::envelope::{Envelope, Source};
use counterfoil_core::{Code, Delivery, Outcome};

use crate::parcel::{Attributes, BODY, HEADERS, Parcel, group, text, write_body, write_headers};

/// Stands before the name of an attribute of the envelope.
pub(crate) const PREFIX: &str = "ce_";
/// The attributes of the envelope that are attributes of the message. With the content type, the
/// headers and the word about the body these are ten, and SQS allows no more.
const OWN: [&str; 7] = [
    "specversion",
    "id",
    "source",
    "type",
    "time",
    "subject",
    "partitionkey",
];
/// Kept free for what a dead letter says: an error of 1,000 characters, each of them escaped.
pub(crate) const DEAD_ROOM: usize = 8 * 1024;

/// What a message may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) fifo: bool,
    pub(crate) max_payload: usize,
    pub(crate) max_message: usize,
}

/// The message of this delivery, or why it can never be one.
pub(crate) fn of(delivery: &Delivery, source: &Source, bounds: Bounds) -> Result<Parcel, Outcome> {
    let envelope = Envelope::of(delivery, source);
    let payload = envelope.body.len();
    if payload > bounds.max_payload {
        return Err(too_large("payload", payload, bounds.max_payload));
    }
    let (body, written) = write_body(envelope.body);
    let (mut attributes, mut rest) = (Attributes::new(), BTreeMap::new());
    let mut place = |name: String, value: &str, own: bool| match text(value).filter(|_| own) {
        Some(attribute) => {
            attributes.insert(name, attribute);
        }
        None => {
            rest.insert(name, value.to_owned());
        }
    };
    let mut key = None;
    for (name, value) in &envelope.attributes {
        if *name == "partitionkey" {
            key = Some(group(value));
        }
        place(format!("{PREFIX}{name}"), value, OWN.contains(name));
    }
    place("content-type".into(), envelope.content_type, true);
    for (name, value) in &envelope.headers {
        place(name.to_string(), value, false);
    }
    if let Some(written) = written {
        place(BODY.into(), written, true);
    }
    let rest = write_headers(&rest);
    attributes.extend(text(&rest).map(|rest| (HEADERS.to_owned(), rest)));
    let id = delivery.id.to_string();
    let parcel = Parcel {
        body,
        attributes,
        // Without an aggregate it waits for nobody: it is a group of its own.
        group: bounds.fifo.then(|| key.unwrap_or_else(|| id.clone())),
        once: bounds.fifo.then_some(id),
    };
    let (size, most) = (parcel.size(), bounds.max_message - DEAD_ROOM);
    match size > most {
        true => Err(too_large("body, headers and attributes", size, most)),
        false => Ok(parcel),
    }
}

fn too_large(what: &str, size: usize, limit: usize) -> Outcome {
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
    use crate::parcel::{MOST_ATTRIBUTES, read_headers};
    use crate::settings::largest_payload;

    pub(crate) const MESSAGE: usize = 1024 * 1024;

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

    pub(crate) fn parcel(delivery: &Delivery, fifo: bool) -> Result<Parcel, Outcome> {
        let bounds = Bounds {
            fifo,
            max_payload: largest_payload(MESSAGE),
            max_message: MESSAGE,
        };
        of(delivery, &Source::default(), bounds)
    }

    #[test]
    fn everything_fits_in_ten_attributes() {
        let full = Delivery {
            payload: Payload::Opaque(vec![0, 255].into()),
            headers: (0..50).map(|n| (format!("h{n}"), "\u{1}")).collect(),
            ..delivery()
        };

        let parcel = parcel(&full, true).unwrap();

        assert_eq!(parcel.attributes.len(), MOST_ATTRIBUTES);
        let value = |name: &str| parcel.attributes[name].string_value.clone().unwrap();
        assert_eq!(value("ce_partitionkey"), "order/42");
        assert_eq!(value("ce_id"), full.id.to_string());
        assert_eq!(value(BODY), "base64");
        let rest = read_headers(&value(HEADERS)).unwrap();
        assert_eq!(rest["ce_aggregateversion"], "7");
        assert_eq!(rest["h49"], "\u{1}");
        assert_eq!(rest.len(), 4 + 50);
    }

    #[test]
    fn an_attribute_that_sqs_does_not_allow_stands_among_the_headers() {
        let odd = Delivery {
            event_type: "a\u{1}b".into(),
            ..delivery()
        };

        let parcel = parcel(&odd, false).unwrap();

        assert!(!parcel.attributes.contains_key("ce_type"));
        let rest = parcel.attributes[HEADERS].string_value.clone().unwrap();
        assert_eq!(read_headers(&rest).unwrap()["ce_type"], "a\u{1}b");
    }

    #[test]
    fn only_a_fifo_queue_is_told_about_groups_and_repeats() {
        let one = delivery();
        let plain = parcel(&one, false).unwrap();
        let fifo = parcel(&one, true).unwrap();
        let alone = Delivery {
            aggregate: None,
            ..delivery()
        };

        assert_eq!((plain.group, plain.once), (None, None));
        assert_eq!(fifo.group.as_deref(), Some("order/42"));
        assert_eq!(fifo.once, Some(one.id.to_string()));
        let group = parcel(&alone, true).unwrap().group;
        assert_eq!(group, Some(alone.id.to_string()));
    }

    #[test]
    fn what_is_too_large_is_refused_and_the_largest_payload_fits_with_its_headers() {
        let with = |size: usize, header: usize| Delivery {
            payload: Payload::Opaque(vec![0; size].into()),
            headers: [("a", "x".repeat(header))].into_iter().collect(),
            ..delivery()
        };
        let largest = largest_payload(MESSAGE);

        assert!(parcel(&with(largest, 50_000), true).is_ok());
        for over in [with(largest + 1, 0), with(largest, 70_000)] {
            let refused = parcel(&over, true).err().unwrap();
            let too_large =
                matches!(&refused, Outcome::Refused { code, .. } if *code == Code::TOO_LARGE);
            assert!(too_large, "{refused:?}");
        }
    }
}
