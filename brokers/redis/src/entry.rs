//! From a message to `XADD`.
//!
//! # Promise
//! An entry holds the whole envelope, each field once, byte for byte. What is larger than Redis or
//! the settings allow is refused before anything is sent.

use counterfoil_core::envelope::{Envelope, Source};
use counterfoil_core::{Code, Delivery, Outcome};
use redis::Cmd;

/// The most that may stand beside the payload. An outbox that we wrote has 64 KiB of headers at
/// most; what others wrote may have more, and has a limit too.
const MAX_BESIDE: usize = 1024 * 1024;
/// About what each field costs on the wire besides its name and value.
const FIELD_COST: usize = 24;

/// One message, ready to be sent.
pub(crate) struct Entry {
    pub(crate) command: Cmd,
    /// About how many bytes it is on the wire.
    pub(crate) size: usize,
}

impl Entry {
    /// The entry of this message, or why it can never be one.
    pub(crate) fn of(
        delivery: &Delivery,
        source: &Source,
        stream: &str,
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
        let fields = envelope.attributes.len() + envelope.headers.len() + 2;
        let size = payload + beside + stream.len() + fields * FIELD_COST;
        let mut command = Cmd::with_capacity(3 + 2 * fields, size);
        command.arg("XADD").arg(stream).arg("*");
        for (name, value) in &envelope.attributes {
            command.arg(format!("ce_{name}")).arg(value.as_bytes());
        }
        command.arg("content-type").arg(envelope.content_type);
        for (name, value) in &envelope.headers {
            command.arg(name.as_bytes()).arg(value.as_bytes());
        }
        command.arg("data").arg(envelope.body);
        Ok(Self { command, size })
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

    fn entry(delivery: &Delivery, max_payload: usize) -> Result<Entry, Outcome> {
        Entry::of(delivery, &Source::default(), "s", max_payload)
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

    #[test]
    fn the_size_is_not_less_than_what_is_sent() {
        let headers: Headers = (0..50).map(|n| (format!("h{n}"), "v")).collect();
        let many = Delivery {
            headers,
            ..delivery()
        };
        let entry = entry(&many, 100).ok().unwrap();

        assert!(entry.command.get_packed_command().len() <= entry.size);
    }
}
