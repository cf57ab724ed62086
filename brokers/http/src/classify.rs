//! What an answer means.
//!
//! # Promise
//! Every status has exactly one outcome. Only a complete 2xx answer is `Stored`; a complete answer
//! is one that ended, or that went over the limit of what we read. The error text is bounded and
//! holds no control characters.

use std::time::{Duration, SystemTime};

use counterfoil_core::policy::retry_after;
use counterfoil_core::{Code, Outcome};
use http::{HeaderMap, StatusCode};

/// The longest wait that a receiver can ask for; more counts as this much.
pub const MAX_RETRY_AFTER: Duration = retry_after::MAX;

/// How many bytes of a body are kept for the error text.
pub(crate) const EXCERPT_BYTES: usize = 1024;
const EXCERPT_CHARS: usize = 500;

/// How reading a body ended.
#[derive(Debug)]
pub(crate) enum BodyEnd {
    /// It was read to its end.
    Complete,
    /// It went on beyond the limit.
    OverLimit,
    /// The connection broke.
    Broken(String),
    /// Time ran out.
    Late,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// When the head of the answer was there.
    pub(crate) arrived: SystemTime,
    /// The beginning of the body.
    pub(crate) excerpt: Vec<u8>,
    pub(crate) end: BodyEnd,
}

impl Answer {
    /// The outcome of the attempt.
    pub(crate) fn outcome(&self) -> Outcome {
        match self.status.as_u16() {
            200..=299 => self.accepted(),
            300..=399 => Outcome::DestinationRefused {
                code: Code::UPSTREAM_REDIRECT,
                error: self.redirect(),
            },
            401 | 403 | 404 | 410 => Outcome::DestinationRefused {
                code: Code::DESTINATION_REFUSED,
                error: self.words(),
            },
            408 | 425 | 429 => self.later(Code::UPSTREAM_4XX),
            400..=499 => Outcome::refused(Code::UPSTREAM_4XX, self.words()),
            500..=599 => self.later(Code::UPSTREAM_5XX),
            // No final status that HTTP knows: nothing can be said about the message.
            _ => Outcome::retry(Code::UNCONFIRMED, self.words()),
        }
    }

    fn accepted(&self) -> Outcome {
        match &self.end {
            BodyEnd::Complete | BodyEnd::OverLimit => Outcome::Stored,
            // A handler that dies while it answers may already have sent the status.
            BodyEnd::Broken(error) => Outcome::retry(
                Code::UNCONFIRMED,
                format!("{}: the answer broke off: {error}", self.status_line()),
            ),
            BodyEnd::Late => Outcome::retry(
                Code::TIMEOUT,
                format!("{}: the answer did not end in time", self.status_line()),
            ),
        }
    }

    fn later(&self, code: Code) -> Outcome {
        Outcome::Retry {
            code,
            error: self.words(),
            after: retry_after(&self.headers, self.arrived),
        }
    }

    fn redirect(&self) -> String {
        match self.headers.get(http::header::LOCATION) {
            Some(to) => {
                let to = excerpt(to.as_bytes());
                format!(
                    "{}: redirects are not followed, this one goes to {to}",
                    self.status_line()
                )
            }
            None => format!("{}: redirects are not followed", self.status_line()),
        }
    }

    fn words(&self) -> String {
        match excerpt(&self.excerpt) {
            text if text.is_empty() => self.status_line(),
            text => format!("{}: {text}", self.status_line()),
        }
    }

    fn status_line(&self) -> String {
        match self.status.canonical_reason() {
            Some(reason) => format!("HTTP {} {reason}", self.status.as_str()),
            None => format!("HTTP {}", self.status.as_str()),
        }
    }
}

/// The wait that the receiver asks for, counted from the arrival of its answer.
fn retry_after(headers: &HeaderMap, arrived: SystemTime) -> Option<Duration> {
    let text = headers.get(http::header::RETRY_AFTER)?.to_str().ok()?;
    retry_after::parse(text, arrived)
}

/// A foreign text that can be stored, logged and shown: bounded, on one line, nothing invisible.
fn excerpt(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes.get(..EXCERPT_BYTES).unwrap_or(bytes));
    let visible: String = text
        .chars()
        .map(|c| if c.is_whitespace() { ' ' } else { c })
        .filter(|c| !c.is_control() && !is_invisible(*c))
        .take(EXCERPT_CHARS)
        .collect();
    visible.trim().to_owned()
}

/// Marks that turn the direction of text or take no room: they could dress up a log line.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    /// 1994-11-06 08:49:37 UTC, the example time of RFC 9110.
    const ARRIVED: u64 = 784_111_777;

    fn wait(value: &str) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert("retry-after", value.parse().unwrap());
        retry_after(&headers, UNIX_EPOCH + Duration::from_secs(ARRIVED))
    }

    fn answer(status: u16, body: &[u8], end: BodyEnd) -> Answer {
        Answer {
            status: StatusCode::from_u16(status).unwrap(),
            headers: HeaderMap::new(),
            arrived: UNIX_EPOCH,
            excerpt: body.to_vec(),
            end,
        }
    }

    fn code_of(outcome: &Outcome) -> Option<Code> {
        match outcome {
            Outcome::Retry { code, .. } => Some(code.clone()),
            _ => None,
        }
    }

    #[test]
    fn every_status_has_its_outcome() {
        for status in 100..1000 {
            let outcome = answer(status, b"", BodyEnd::Complete).outcome();
            let expected = match status {
                200..=299 => "stored",
                300..=399 | 401 | 403 | 404 | 410 => "destination-refused",
                408 | 425 | 429 => "retry",
                400..=499 => "refused",
                _ => "retry",
            };
            assert_eq!(outcome.label(), expected, "{status}");
        }
    }

    #[test]
    fn an_incomplete_yes_is_no_yes() {
        let broken = answer(200, b"", BodyEnd::Broken("reset".into())).outcome();
        let late = answer(200, b"", BodyEnd::Late).outcome();
        let long = answer(200, b"", BodyEnd::OverLimit).outcome();

        assert_eq!(code_of(&broken), Some(Code::UNCONFIRMED));
        assert_eq!(code_of(&late), Some(Code::TIMEOUT));
        assert_eq!(long, Outcome::Stored);
    }

    #[test]
    fn an_incomplete_no_is_still_a_no() {
        for end in [
            BodyEnd::Broken("reset".into()),
            BodyEnd::Late,
            BodyEnd::OverLimit,
        ] {
            assert_eq!(answer(400, b"", end).outcome().label(), "refused");
        }
    }

    #[test]
    fn retry_after_counts_from_the_arrival_and_is_cut() {
        assert_eq!(wait("7"), Some(Duration::from_secs(7)));
        assert_eq!(
            wait("Sun, 06 Nov 1994 08:50:37 GMT"),
            Some(Duration::from_secs(60))
        );
        assert_eq!(wait("soon"), None);
        assert_eq!(wait("86401"), Some(MAX_RETRY_AFTER));
    }

    #[test]
    fn an_excerpt_is_short_and_on_one_line() {
        assert_eq!(
            excerpt(b" no\r\nsuch\x1b[31m \xff order\0 "),
            "no  such[31m \u{fffd} order"
        );
        assert_eq!(excerpt("a\u{202e}b\u{200b}c".as_bytes()), "abc");
        assert_eq!(excerpt(&[b'x'; 5000]).len(), EXCERPT_CHARS);
    }

    #[test]
    fn the_error_holds_status_and_body() {
        let outcome = answer(422, b"no such order", BodyEnd::Complete).outcome();

        let expected = "HTTP 422 Unprocessable Entity: no such order";
        assert_eq!(outcome, Outcome::refused(Code::UPSTREAM_4XX, expected));
    }
}
