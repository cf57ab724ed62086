//! The envelope: how a message looks on every broker.
//!
//! # Promise
//! A delivery has one envelope, whatever carries it: CloudEvents 1.0 in binary mode. The payload
//! travels to the letter, everything else beside it. The id is the same over every retry, crash and
//! redrive, and whoever deduplicates does it by this id. A header of the message cannot pass for an
//! attribute of the envelope, and none is lost.
//!
//! # Attributes
//! Names stand here without the prefix that a transport gives them (`ce_`, `ce-`). Values are texts
//! to the letter; a transport that cannot carry every text encodes them itself.
//!
//! | attribute | value | absent when |
//! |---|---|---|
//! | `specversion` | `1.0` | never |
//! | `id` | the id of the message | never |
//! | `source` | as configured, `counterfoil` by default | never |
//! | `type` | the event type; `untyped` when the writer left it out | never |
//! | `time` | when it was enqueued, UTC, RFC 3339 with microseconds | never |
//! | `subject` | the aggregate's id | it has no aggregate, or an empty id |
//! | `partitionkey` | what orders the message: `order/42`, `42` without a type, `/` with neither | it has no aggregate |
//! | `aggregatetype` | the aggregate's type | it has none |
//! | `aggregateversion` | the producer's number within the aggregate | it has none |
//! | `attempt` | which attempt this is, counted from one | never |
//! | `epoch` | the fencing number of the relay: a stale one sends a lower number | never |
//!
//! # Content type
//! `application/json` for JSON. For opaque content what its header `content-type` says, or else
//! `application/octet-stream`.
//!
//! # Headers
//! Those of the message, under their own names: `traceparent`, `correlation-id`, `idempotency-key`.
//! A name that a transport gives a meaning (`content-type`, `data`, or one that begins with `ce_`,
//! `ce-` or `cloudevents`) is put behind `header-`, and so is a name that begins with `header-`: who
//! takes one `header-` away has the name that was given.

use std::borrow::Cow;
use std::fmt;

use chrono::SecondsFormat;

use crate::message::{MAX_NAME, Payload, header};
use crate::row::Delivery;

/// The content type of JSON.
pub const JSON: &str = "application/json";
/// The content type of opaque content that does not say what it is.
pub const OCTETS: &str = "application/octet-stream";
/// The type of an event whose writer left it out: CloudEvents demands one.
pub const UNTYPED: &str = "untyped";
/// Stands before the name of a header that would otherwise pass for something else.
pub const ESCAPE: &str = "header-";

/// Where messages come from, as their receivers see it: a URI reference.
///
/// ```
/// use counterfoil_core::envelope::Source;
///
/// assert_eq!(Source::default().as_str(), "counterfoil");
/// assert!(Source::new("https://example.com/shop").is_ok());
/// assert!(Source::new("the shop").is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source(String);

/// A text that is no source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a source has 1 to {MAX_NAME} visible ASCII characters and no spaces")]
pub struct SourceError;

impl Source {
    /// Checks what CloudEvents demands: not empty, and nothing that a URI cannot hold.
    pub fn new(text: impl Into<String>) -> Result<Self, SourceError> {
        let text = text.into();
        let fits = (1..=MAX_NAME).contains(&text.len());
        match fits && text.bytes().all(|b| b.is_ascii_graphic()) {
            true => Ok(Self(text)),
            false => Err(SourceError),
        }
    }

    /// The text itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Source {
    fn default() -> Self {
        Self("counterfoil".into())
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A message as a broker carries it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Envelope<'a> {
    /// The attributes, by name, without a prefix.
    pub attributes: Vec<(&'static str, Cow<'a, str>)>,
    /// What the body is.
    pub content_type: &'a str,
    /// The payload, to the letter.
    pub body: &'a [u8],
    /// The message's own headers, under names that no attribute has.
    pub headers: Vec<(Cow<'a, str>, &'a str)>,
}

impl<'a> Envelope<'a> {
    /// The envelope of this delivery.
    pub fn of(delivery: &'a Delivery, source: &'a Source) -> Self {
        let (content_type, from_header) = content_type(delivery);
        let headers = delivery
            .headers
            .iter()
            .filter(|(name, _)| !(from_header && *name == header::CONTENT_TYPE))
            .map(|(name, value)| (header_name(name), value))
            .collect();
        Self {
            attributes: attributes(delivery, source),
            content_type,
            body: delivery.payload.as_bytes(),
            headers,
        }
    }

    /// The bytes of everything but the body.
    pub fn size_beside_body(&self) -> usize {
        let attributes = self.attributes.iter().map(|(n, v)| n.len() + v.len());
        let headers = self.headers.iter().map(|(n, v)| n.len() + v.len());
        attributes.chain(headers).sum::<usize>() + self.content_type.len()
    }
}

fn attributes<'a>(delivery: &'a Delivery, source: &'a Source) -> Vec<(&'static str, Cow<'a, str>)> {
    let time = delivery.created_at;
    let mut all: Vec<(&'static str, Cow<'a, str>)> = vec![
        ("specversion", "1.0".into()),
        ("id", delivery.id.to_string().into()),
        ("source", source.as_str().into()),
        ("type", or_untyped(&delivery.event_type).into()),
        (
            "time",
            time.to_rfc3339_opts(SecondsFormat::Micros, true).into(),
        ),
    ];
    if let Some(aggregate) = &delivery.aggregate {
        if !aggregate.id.is_empty() {
            all.push(("subject", aggregate.id.as_str().into()));
        }
        let key = match aggregate.to_string() {
            // CloudEvents allows no empty value, and those of this name are in order too.
            empty if empty.is_empty() => "/".into(),
            key => key,
        };
        all.push(("partitionkey", key.into()));
        if !aggregate.kind.is_empty() {
            all.push(("aggregatetype", aggregate.kind.as_str().into()));
        }
    }
    if let Some(version) = delivery.version {
        all.push(("aggregateversion", version.to_string().into()));
    }
    all.push(("attempt", delivery.attempt.to_string().into()));
    all.push(("epoch", delivery.epoch.to_string().into()));
    all
}

fn or_untyped(event_type: &str) -> &str {
    match event_type.is_empty() {
        true => UNTYPED,
        false => event_type,
    }
}

/// The content type, and whether a header said it.
fn content_type(delivery: &Delivery) -> (&str, bool) {
    match delivery.payload {
        Payload::Json(_) => (JSON, false),
        Payload::Opaque(_) => match delivery.headers.get(header::CONTENT_TYPE).map(str::trim) {
            Some(said) if is_media_type(said) => (said, true),
            _ => (OCTETS, false),
        },
    }
}

/// Not more than that it can stand where a media type stands.
fn is_media_type(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| matches!(b, b' '..=b'~'))
}

fn header_name(name: &str) -> Cow<'_, str> {
    let taken = name == header::CONTENT_TYPE
        || name == "data"
        || ["ce_", "ce-", "cloudevents", ESCAPE]
            .iter()
            .any(|prefix| name.starts_with(prefix));
    match taken {
        true => format!("{ESCAPE}{name}").into(),
        false => name.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use chrono::{DateTime, Utc};

    use super::*;
    use crate::message::{Aggregate, Headers, MessageId};
    use crate::row::RowState;

    fn delivery() -> Delivery {
        let enqueued: DateTime<Utc> = "2026-01-02T03:04:05.000678Z".parse().unwrap();
        Delivery {
            seq: 9,
            shard: 0,
            epoch: 3,
            id: MessageId::parse("0198c0de-0000-7000-8000-000000000001").unwrap(),
            queue: Arc::from("q"),
            aggregate: Some(Aggregate::new("order", 42)),
            version: Some(i64::MAX),
            event_type: "OrderPaid".into(),
            payload: Payload::Json("{ \"a\": 1}".into()),
            headers: Headers::new(),
            attempt: 2,
            crashes: 0,
            created_at: enqueued,
            state: RowState::New,
            defect: None,
        }
    }

    fn of(delivery: &Delivery, look: impl FnOnce(Envelope<'_>)) {
        look(Envelope::of(delivery, &Source::default()));
    }

    fn attribute(envelope: &Envelope<'_>, name: &str) -> Option<String> {
        let found = envelope.attributes.iter().find(|(n, _)| *n == name);
        found.map(|(_, value)| value.to_string())
    }

    fn headers(delivery: &Delivery) -> Vec<(String, String)> {
        let source = Source::default();
        let envelope = Envelope::of(delivery, &source);
        let owned = |(n, v): &(Cow<'_, str>, &str)| (n.to_string(), (*v).to_owned());
        envelope.headers.iter().map(owned).collect()
    }

    #[test]
    fn a_message_is_described_in_full() {
        of(&delivery(), |envelope| {
            let all: Vec<(&str, &str)> = envelope
                .attributes
                .iter()
                .map(|(name, value)| (*name, &**value))
                .collect();
            let expected = [
                ("specversion", "1.0"),
                ("id", "0198c0de-0000-7000-8000-000000000001"),
                ("source", "counterfoil"),
                ("type", "OrderPaid"),
                ("time", "2026-01-02T03:04:05.000678Z"),
                ("subject", "42"),
                ("partitionkey", "order/42"),
                ("aggregatetype", "order"),
                ("aggregateversion", "9223372036854775807"),
                ("attempt", "2"),
                ("epoch", "3"),
            ];
            assert_eq!(all, expected);
            assert_eq!(envelope.content_type, "application/json");
            assert_eq!(envelope.body, b"{ \"a\": 1}");
        });
    }

    #[test]
    fn names_of_attributes_are_lower_case_letters_and_digits_and_stand_once() {
        of(&delivery(), |envelope| {
            let mut names: Vec<&str> = envelope.attributes.iter().map(|(n, _)| *n).collect();
            let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
            assert!(names.iter().all(|n| n.chars().all(legal) && n.len() <= 20));
            let before = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), before);
        });
    }

    #[test]
    fn without_an_aggregate_nothing_is_said_about_order() {
        let bare = Delivery {
            aggregate: None,
            version: None,
            event_type: String::new(),
            ..delivery()
        };
        of(&bare, |envelope| {
            for name in [
                "subject",
                "partitionkey",
                "aggregatetype",
                "aggregateversion",
            ] {
                assert_eq!(attribute(&envelope, name), None, "{name}");
            }
            assert_eq!(attribute(&envelope, "type").unwrap(), "untyped");
        });
    }

    #[test]
    fn an_aggregate_may_lack_its_type_or_its_id() {
        let untyped = Delivery {
            aggregate: Some(Aggregate::new("", 42)),
            ..delivery()
        };
        of(&untyped, |envelope| {
            assert_eq!(attribute(&envelope, "partitionkey").unwrap(), "42");
            assert_eq!(attribute(&envelope, "aggregatetype"), None);
        });
        let nameless = Delivery {
            aggregate: Some(Aggregate::new("order", "")),
            ..delivery()
        };
        of(&nameless, |envelope| {
            assert_eq!(attribute(&envelope, "partitionkey").unwrap(), "order/");
            assert_eq!(attribute(&envelope, "subject"), None);
        });
        let neither = Delivery {
            aggregate: Some(Aggregate::new("", "")),
            ..delivery()
        };
        of(&neither, |envelope| {
            assert_eq!(attribute(&envelope, "partitionkey").unwrap(), "/");
        });
    }

    #[test]
    fn opaque_content_says_itself_what_it_is() {
        let with = |said: Option<&str>| Delivery {
            payload: Payload::Opaque(vec![0, 255, 10].into()),
            headers: said
                .map(|said| ("Content-Type", said))
                .into_iter()
                .collect(),
            ..delivery()
        };

        of(&with(Some(" image/png ")), |envelope| {
            assert_eq!(envelope.content_type, "image/png");
            assert_eq!(envelope.body, [0, 255, 10]);
            assert_eq!(envelope.headers, [], "it is said once");
        });
        of(&with(None), |envelope| {
            assert_eq!(envelope.content_type, "application/octet-stream");
        });
        for odd in ["", " ", "a\r\nb", "größe/x"] {
            of(&with(Some(odd)), |envelope| {
                assert_eq!(envelope.content_type, "application/octet-stream");
                let kept = (Cow::from("header-content-type"), odd);
                assert_eq!(envelope.headers, [kept]);
            });
        }
    }

    #[test]
    fn json_stays_json_whatever_a_header_says() {
        let odd = Delivery {
            headers: [("content-type", "text/html")].into_iter().collect(),
            ..delivery()
        };

        of(&odd, |envelope| assert_eq!(envelope.content_type, JSON));
        let kept = ("header-content-type".to_owned(), "text/html".to_owned());
        assert_eq!(headers(&odd), [kept]);
    }

    #[test]
    fn headers_travel_under_their_names() {
        let given = [
            ("traceparent", "00-a-b-01"),
            ("Idempotency-Key", "k 1"),
            ("größe", "\r\n\u{1F600}"),
            ("", "empty"),
        ];
        let sent = Delivery {
            headers: given.into_iter().collect(),
            ..delivery()
        };

        let found = headers(&sent);

        let expected = [
            ("", "empty"),
            ("größe", "\r\n\u{1F600}"),
            ("idempotency-key", "k 1"),
            ("traceparent", "00-a-b-01"),
        ];
        let expected: Vec<_> = expected.map(|(n, v)| (n.to_owned(), v.to_owned())).into();
        let mut sorted = found;
        sorted.sort();
        assert_eq!(sorted, expected);
    }

    #[test]
    fn a_header_cannot_pass_for_an_attribute_and_its_name_can_be_had_back() {
        let names = [
            "ce_id",
            "CE-ID",
            "cloudEvents:id",
            "cloudevents_id",
            "data",
            "content-type",
            "header-data",
            "header-header-data",
        ];
        let odd = Delivery {
            headers: names.iter().map(|name| (name, "evil")).collect(),
            ..delivery()
        };

        let found = headers(&odd);

        let mut back: Vec<&str> = found
            .iter()
            .map(|(name, _)| name.strip_prefix(ESCAPE).unwrap())
            .collect();
        back.sort_unstable();
        let mut given: Vec<String> = names.iter().map(|n| n.to_ascii_lowercase()).collect();
        given.sort_unstable();
        assert_eq!(back, given);
    }

    #[test]
    fn a_source_is_a_uri_reference() {
        for fine in [
            "counterfoil",
            "/shop",
            "https://example.com/a?b#c",
            "urn:a:b",
        ] {
            assert!(Source::new(fine).is_ok(), "{fine}");
        }
        for wrong in ["", " ", "a b", "a\n", "größe", &"x".repeat(256)] {
            assert_eq!(Source::new(wrong), Err(SourceError), "{wrong}");
        }
    }

    #[test]
    fn the_size_counts_every_name_and_value() {
        let small = delivery();
        let large = Delivery {
            headers: [("ab", "c".repeat(1_000))].into_iter().collect(),
            ..delivery()
        };
        let source = Source::default();

        let grown = Envelope::of(&large, &source).size_beside_body()
            - Envelope::of(&small, &source).size_beside_body();

        assert_eq!(grown, 1_002);
    }
}
