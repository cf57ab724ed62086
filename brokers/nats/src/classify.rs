//! What an answer of JetStream means.
//!
//! # Promise
//! Every answer to a message has exactly one outcome, and only the number that a stream gave it is
//! `Stored`. An error that JetStream gives for everything is the destination's fault, not the
//! message's. Error texts are bounded and on one line.

use async_nats::{RequestError, RequestErrorKind};
use counterfoil_core::{Code, Outcome};
use serde_json::Value;

const LONGEST_TEXT: usize = 300;

/// Errors of JetStream that say something about the message itself.
const TOO_LARGE: [u64; 2] = [10_054, 10_097];
/// Errors that say that nothing can be stored there: JetStream is off, the stream is sealed.
const CLOSED: [u64; 3] = [10_039, 10_076, 10_109];

/// What came of one message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// This.
    Known(Outcome),
    /// Nobody takes the subject.
    Nobody,
    /// It may have arrived.
    Unknown(String),
}

/// What the payload of an answer says.
pub(crate) fn answer(payload: &[u8]) -> Outcome {
    let said: Value = serde_json::from_slice(payload).unwrap_or_default();
    if let Some(error) = said.get("error") {
        let code = error["err_code"].as_u64().unwrap_or_default();
        let words = error["description"].as_str().unwrap_or("no reason");
        return refusal(code, words);
    }
    // A repeat within the window has the number of the first one.
    match said["stream"].is_string() && said["seq"].is_u64() {
        true => Outcome::Stored,
        false => Outcome::retry(
            Code::UNCONFIRMED,
            "the answer is not that of a stream: something else listens to this subject",
        ),
    }
}

/// What an error means that JetStream gave as its answer. Nothing was stored.
fn refusal(code: u64, words: &str) -> Outcome {
    let error = one_line(&format!("NATS answered {code}: {words}"));
    if TOO_LARGE.contains(&code) {
        return Outcome::refused(Code::TOO_LARGE, error);
    }
    if CLOSED.contains(&code) {
        return Outcome::DestinationRefused {
            code: Code::DESTINATION_REFUSED,
            error,
        };
    }
    // The stream or the disk is full, a leader is being elected, and what a later version may say:
    // it failed now, and nothing says that it will for ever.
    Outcome::retry(Code::UPSTREAM_5XX, error)
}

/// Why there was no answer.
pub(crate) fn silence(error: &RequestError) -> Answer {
    match error.kind() {
        RequestErrorKind::NoResponders => Answer::Nobody,
        RequestErrorKind::MaxPayloadExceeded => {
            let error = one_line(&format!("over the server's max_payload: {}", cause(error)));
            Answer::Known(Outcome::refused(Code::TOO_LARGE, error))
        }
        RequestErrorKind::InvalidSubject => Answer::Known(Outcome::DestinationRefused {
            code: Code::DESTINATION_REFUSED,
            error: "the subject is not valid".to_owned(),
        }),
        _ => Answer::Unknown(one_line(&cause(error))),
    }
}

fn cause(error: &RequestError) -> String {
    match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => error.to_string(),
    }
}

/// A text for people: short, on one line.
pub(crate) fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(LONGEST_TEXT)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_number_that_a_stream_gave_is_stored() {
        assert_eq!(answer(br#"{"stream":"S","seq":1}"#), Outcome::Stored);
        let repeat = br#"{"stream":"S","seq":1,"duplicate":true}"#;
        assert_eq!(answer(repeat), Outcome::Stored);
        for odd in [&b""[..], b"ok", b"{}", b"[]", br#"{"seq":1}"#] {
            let unknown = answer(odd);
            assert!(
                matches!(&unknown, Outcome::Retry { code, .. } if *code == Code::UNCONFIRMED),
                "{unknown:?}"
            );
        }
    }

    #[test]
    fn every_error_has_its_outcome() {
        for (code, expected) in [
            (10_054, "refused"),
            (10_097, "refused"),
            (10_039, "destination-refused"),
            (10_076, "destination-refused"),
            (10_109, "destination-refused"),
            (10_077, "retry"),
            (10_047, "retry"),
            (10_023, "retry"),
            (10_158, "retry"),
            (0, "retry"),
        ] {
            let said =
                format!(r#"{{"error":{{"code":500,"err_code":{code}}},"stream":"","seq":0}}"#);
            assert_eq!(answer(said.as_bytes()).label(), expected, "{code}");
        }
    }

    #[test]
    fn a_text_is_short_and_on_one_line() {
        let text = one_line(&format!("a\tb{}", "x".repeat(1_000)));

        assert!(text.starts_with("a bx"), "{text}");
        assert_eq!(text.chars().count(), LONGEST_TEXT);
    }
}
