//! Where messages come from, and how a reception ends.
//!
//! # Promise
//! A subscription hands every message out at least once, and again until somebody has settled it.
//! Whoever dies without settling is no reason to lose it. Settling is the only thing that lets a
//! broker forget a message, so it comes after the commit and never before.
//!
//! What a driver declares in its [`Features`] works; what it does not declare is answered with
//! [`SourceError::Unsupported`]. `counterfoil-testkit` holds the suite that checks both.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::BoxError;
use crate::code::Code;

/// Which header values a broker carries unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderValues {
    /// Any bytes.
    Bytes,
    /// Any text in UTF-8 without NUL.
    Text,
}

/// What a broker can do, as its driver declares it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// Messages with one key are received in the order in which they were stored, by one consumer
    /// at a time.
    pub ordering_key: bool,
    /// A message that is stored twice under one id, within the broker's window, is received once.
    pub native_dedup: bool,
    /// A release can say after which time the message comes again.
    pub delay: bool,
    /// The broker has a place for what cannot pass.
    pub dead_letters: bool,
    /// The largest body, in bytes, with the settings as they are. Absent: nobody knows.
    pub largest_payload: Option<usize>,
    /// Which values of headers come out as they went in.
    pub headers: HeaderValues,
}

/// The name of one reception within its subscription. It says nothing in another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(pub u64);

/// One message as a broker handed it out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrival {
    /// By which it is settled.
    pub tag: Tag,
    /// Where it stands at the broker, for people and for messages without an id: the same at every
    /// reception of the same message, for example `orders/3@17`.
    pub position: String,
    /// The key by which the broker orders.
    pub key: Option<Bytes>,
    /// Everything beside the body, as the broker gave it: attributes with their prefix (`ce_id`),
    /// `content-type`, and the message's own headers.
    pub headers: Vec<(String, Bytes)>,
    /// The body.
    pub body: Bytes,
    /// How often it was handed out, this time included, where the broker counts.
    pub deliveries: Option<u32>,
}

impl Arrival {
    /// The value of a header as text, whatever the case of its name. Absent also when it is no text.
    pub fn text(&self, name: &str) -> Option<&str> {
        let named = |(n, _): &&(String, Bytes)| n.eq_ignore_ascii_case(name);
        let (_, value) = self.headers.iter().find(named)?;
        std::str::from_utf8(value).ok()
    }
}

/// Why a message goes to the broker's dead letters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// The reason that operators see.
    pub code: Code,
    /// The error in words.
    pub error: String,
    /// Failed attempts.
    pub attempts: u32,
}

/// The names of the headers that a dead letter carries beside its own.
pub mod dead {
    /// The trace it belongs to: that of its `traceparent`.
    pub const TRACE_ID: &str = "dlq-trace-id";
    /// The reason.
    pub const CODE: &str = "dlq-error-code";
    /// The error in words, cut at 1,000 characters.
    pub const ERROR: &str = "dlq-error";
    /// Failed attempts.
    pub const ATTEMPTS: &str = "dlq-attempts";
    /// The topic, stream, queue or subject it came from.
    pub const TOPIC: &str = "dlq-original-topic";
    /// The partition, where there are such.
    pub const PARTITION: &str = "dlq-original-partition";
    /// The number within the partition or stream.
    pub const OFFSET: &str = "dlq-original-offset";
}

impl DeadLetter {
    /// The headers that every broker's dead letter carries; a driver adds where it stood.
    pub fn headers(&self, traceparent: Option<&str>) -> Vec<(&'static str, String)> {
        let mut all = vec![
            (dead::CODE, self.code.as_str().to_owned()),
            (dead::ERROR, self.error.chars().take(1_000).collect()),
            (dead::ATTEMPTS, self.attempts.to_string()),
        ];
        let trace = traceparent.and_then(|t| t.split('-').nth(1));
        if let Some(trace) = trace.filter(|t| t.len() == 32) {
            all.push((dead::TRACE_ID, trace.to_owned()));
        }
        all
    }
}

/// How a reception ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settle {
    /// Its effect is committed: the broker may forget it.
    Done,
    /// Hand it out again, to anybody.
    Release {
        /// Not before this time has passed. [`SourceError::Unsupported`] where there is no
        /// [`Features::delay`].
        delay: Option<Duration>,
    },
    /// Move it to the broker's dead letters. It is there before it is gone here.
    /// [`SourceError::Unsupported`] where there are no [`Features::dead_letters`].
    Dead(DeadLetter),
}

/// What may go wrong, and what the caller may do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// Nobody answers, or the connection broke: subscribe again. What was not settled comes again.
    #[error("the broker cannot be reached: {0}")]
    Unavailable(String),
    /// The broker refuses: credentials, a missing topic, rights. An operator must help; trying
    /// again later is allowed and harmless.
    #[error("the broker refuses: {0}")]
    Refused(String),
    /// This broker, or this setting of it, cannot do that. Nothing happened.
    #[error("unsupported: {0}")]
    Unsupported(&'static str),
    /// Anything else: subscribe again.
    #[error("the broker failed")]
    Failed(#[source] BoxError),
}

/// A place that messages are received from.
#[async_trait]
pub trait Source: Send + Sync + 'static {
    /// A short text for people, without credentials: `kafka topic orders at 127.0.0.1:9092`.
    fn describe(&self) -> String;

    /// What this broker can do.
    fn features(&self) -> Features;

    /// How long the broker may still hand out an old message, where it says so. What recognises
    /// repeats must be kept longer than that.
    async fn retention(&self) -> Result<Option<Duration>, SourceError> {
        Ok(None)
    }

    /// Begins to receive, as a member of its group. Returns when the broker has let us in: a wrong
    /// password, a missing topic and a broker that is down are errors here.
    async fn subscribe(&self) -> Result<Box<dyn Subscription>, SourceError>;
}

/// Membership in a group of consumers.
///
/// # When it is dropped
/// Membership ends without ceremony; what was not settled is handed out again, perhaps only after
/// the broker has missed us for a while.
#[async_trait]
pub trait Subscription: Send {
    /// Waits until there is something, and returns at most `max` messages.
    ///
    /// Cancel safe: what was not returned is returned by the next call. While messages are with the
    /// caller, the driver keeps the broker from handing them to others (heartbeats, visibility),
    /// without being asked, for as long as the subscription lives. An error ends the subscription.
    async fn receive(&mut self, max: usize) -> Result<Vec<Arrival>, SourceError>;

    /// Ends receptions, in any order. Returns when the broker has confirmed, where it confirms.
    ///
    /// One that the broker has meanwhile given to somebody else is passed over: that one will
    /// settle it. After an error some may be settled and others not; all that are not come again.
    async fn settle(&mut self, settled: Vec<(Tag, Settle)>) -> Result<(), SourceError>;

    /// How many messages wait at the broker that nobody has received, where it tells.
    async fn lag(&mut self) -> Result<Option<u64>, SourceError> {
        Ok(None)
    }

    /// Leaves the group in good order: what was not settled is handed out again at once, where the
    /// broker can.
    async fn close(self: Box<Self>) -> Result<(), SourceError>;
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_found_whatever_its_case_unless_it_is_no_text() {
        let arrival = Arrival {
            tag: Tag(1),
            position: "t/0@1".into(),
            key: None,
            headers: vec![
                ("Ce_Id".into(), Bytes::from_static(b"a")),
                ("bin".into(), Bytes::from_static(&[0xff])),
            ],
            body: Bytes::new(),
            deliveries: None,
        };

        assert_eq!(arrival.text("ce_id"), Some("a"));
        assert_eq!(arrival.text("bin"), None);
        assert_eq!(arrival.text("none"), None);
    }

    #[test]
    fn a_dead_letter_says_why_and_belongs_to_its_trace() {
        let letter = DeadLetter {
            code: Code::VALIDATION_ERROR,
            error: "x".repeat(2_000),
            attempts: 3,
        };
        let trace = "0af7651916cd43dd8448eb211c80319c";

        let headers = letter.headers(Some(&format!("00-{trace}-b7ad6b7169203331-01")));

        let of = |name| headers.iter().find(|(n, _)| *n == name).map(|(_, v)| v);
        assert_eq!(of(dead::CODE).unwrap(), "VALIDATION_ERROR");
        assert_eq!(of(dead::ERROR).unwrap().len(), 1_000);
        assert_eq!(of(dead::ATTEMPTS).unwrap(), "3");
        assert_eq!(of(dead::TRACE_ID).unwrap(), trace);
        assert_eq!(letter.headers(Some("odd")).len(), 3);
    }
}
