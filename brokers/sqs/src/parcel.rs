//! A message as SQS carries it: a body of text and up to ten attributes.
//!
//! # Promise
//! Whatever the envelope holds finds its place, and comes out as it went in. A body that SQS would
//! refuse (bytes, control characters, nothing at all) is encoded, and an attribute says so. What
//! does not fit in ten attributes, or in the characters that SQS allows, stands as JSON in one of
//! them.

use std::collections::{BTreeMap, HashMap};

use aws_sdk_sqs::types::{MessageAttributeValue, SendMessageBatchRequestEntry};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use counterfoil_core::hex::Hex;
use sha2::{Digest as _, Sha256};

use crate::classify::Problem;

/// The attribute with a JSON object of everything that has no attribute of its own.
pub(crate) const HEADERS: &str = "counterfoil-headers";
/// The attribute that says how the body is written, when it is not as it is.
pub(crate) const BODY: &str = "counterfoil-body";
/// The body is in base64.
pub(crate) const BASE64: &str = "base64";
/// There is no body: SQS does not allow that.
pub(crate) const EMPTY: &str = "empty";
/// Stands for a body that is empty.
const NOTHING: &str = "-";
/// The most attributes of a message.
pub(crate) const MOST_ATTRIBUTES: usize = 10;
const LONGEST_GROUP: usize = 128;
const STRING: &str = "String";

pub(crate) type Attributes = HashMap<String, MessageAttributeValue>;

/// One message, ready to be sent.
#[derive(Debug, Clone)]
pub(crate) struct Parcel {
    pub(crate) body: String,
    pub(crate) attributes: Attributes,
    /// What a FIFO queue orders by.
    pub(crate) group: Option<String>,
    /// What a FIFO queue recognises repeats by.
    pub(crate) once: Option<String>,
}

impl Parcel {
    /// The bytes that SQS counts: the body, and the name, type and value of each attribute.
    pub(crate) fn size(&self) -> usize {
        let attributes = self.attributes.iter().map(|(name, attribute)| {
            let text = attribute.string_value.as_deref().map_or(0, str::len);
            let bytes = attribute
                .binary_value
                .as_ref()
                .map_or(0, |b| b.as_ref().len());
            name.len() + attribute.data_type.len() + text + bytes
        });
        self.body.len() + attributes.sum::<usize>()
    }

    /// As an entry of a request, under this number.
    pub(crate) fn entry(self, number: usize) -> Result<SendMessageBatchRequestEntry, Problem> {
        SendMessageBatchRequestEntry::builder()
            .id(number.to_string())
            .message_body(self.body)
            .set_message_attributes(Some(self.attributes).filter(|a| !a.is_empty()))
            .set_message_group_id(self.group)
            .set_message_deduplication_id(self.once)
            .build()
            .map_err(|e| Problem::Invalid(e.to_string()))
    }
}

/// The body as text, and how it is written when it is not as it is.
pub(crate) fn write_body(body: &[u8]) -> (String, Option<&'static str>) {
    match std::str::from_utf8(body) {
        Ok("") => (NOTHING.into(), Some(EMPTY)),
        Ok(text) if is_allowed(text) => (text.to_owned(), None),
        _ => (STANDARD.encode(body), Some(BASE64)),
    }
}

/// The body that was written. What was not written by us is as it is.
pub(crate) fn read_body(text: String, written: Option<&str>) -> Vec<u8> {
    match written {
        Some(EMPTY) => Vec::new(),
        Some(BASE64) => match STANDARD.decode(&text) {
            Ok(bytes) => bytes,
            Err(_) => text.into_bytes(),
        },
        _ => text.into_bytes(),
    }
}

/// Everything that has no attribute of its own, as a JSON object in characters that SQS allows.
pub(crate) fn write_headers(headers: &BTreeMap<String, String>) -> String {
    let json = serde_json::to_string(headers).unwrap_or_else(|_| "{}".into());
    // JSON hides control characters itself. These two are none, and stand only inside of texts.
    json.replace('\u{FFFE}', "\\ufffe")
        .replace('\u{FFFF}', "\\uffff")
}

/// The headers that were written. Absent when they were not written by us.
pub(crate) fn read_headers(json: &str) -> Option<BTreeMap<String, String>> {
    serde_json::from_str(json).ok()
}

/// An attribute of text. Absent when SQS does not allow it.
pub(crate) fn text(value: &str) -> Option<MessageAttributeValue> {
    let attribute = MessageAttributeValue::builder()
        .data_type(STRING)
        .string_value(value);
    match value.is_empty() || !is_allowed(value) {
        true => None,
        false => attribute.build().ok(),
    }
}

/// Whether SQS takes all of these characters.
pub(crate) fn is_allowed(text: &str) -> bool {
    text.chars().all(|c| {
        matches!(c, '\t' | '\n' | '\r' | ' '..='\u{D7FF}' | '\u{E000}'..='\u{FFFD}' | '\u{10000}'..)
    })
}

/// The group of an ordering key: the key itself, or its digest when SQS does not allow it.
pub(crate) fn group(key: &str) -> String {
    let fits = (1..=LONGEST_GROUP).contains(&key.len());
    match fits && key.bytes().all(|b| b.is_ascii_graphic()) {
        true => key.to_owned(),
        false => format!("sha256-{}", Hex(&Sha256::digest(key.as_bytes()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_body_comes_out_as_it_went_in() {
        let every: Vec<u8> = (0..=u8::MAX).collect();
        let bodies: [(&[u8], Option<&str>); 7] = [
            (b"{}", None),
            ("größe\r\n\t\u{1F600}\u{7f}".as_bytes(), None),
            (b"", Some(EMPTY)),
            (b"-", None),
            (b"a\0b", Some(BASE64)),
            ("a\u{FFFF}".as_bytes(), Some(BASE64)),
            (&every, Some(BASE64)),
        ];
        for (body, expected) in bodies {
            let (text, written) = write_body(body);
            assert_eq!(written, expected, "{text}");
            assert!(!text.is_empty() && is_allowed(&text));
            assert_eq!(read_body(text, written), body);
        }
        assert_eq!(read_body("no base64!".into(), Some(BASE64)), b"no base64!");
    }

    #[test]
    fn headers_may_hold_every_character() {
        let all: String = (0..=0x1_0000_u32).filter_map(char::from_u32).collect();
        let headers = BTreeMap::from([("a".to_owned(), all), (String::new(), String::new())]);

        let json = write_headers(&headers);

        assert!(is_allowed(&json));
        assert_eq!(read_headers(&json), Some(headers));
        assert_eq!(read_headers("[1]"), None);
    }

    #[test]
    fn a_key_that_sqs_does_not_allow_is_a_digest_and_always_the_same() {
        assert_eq!(group("order/42"), "order/42");
        assert_eq!(group(&"x".repeat(128)), "x".repeat(128));
        for odd in ["größe", "a b", "", &"x".repeat(129)] {
            let digest = group(odd);
            assert_eq!(digest, group(odd));
            assert!(digest.starts_with("sha256-") && digest.len() == 71);
        }
        assert_ne!(group("a b"), group("a c"));
    }

    #[test]
    fn an_attribute_has_a_value_in_characters_that_sqs_allows() {
        assert!(text("größe \u{1F600}").is_some());
        for odd in ["", "\u{1}", "\u{FFFE}"] {
            assert_eq!(text(odd), None);
        }
    }
}
