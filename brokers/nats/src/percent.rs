//! Texts in headers: percent-encoding as CloudEvents demands.
//!
//! # Promise
//! Every text, and every name, comes out as it went in, whatever a header of NATS can hold. What
//! needs no encoding stands as it is.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Stands for a name without characters, which no header can have.
const NAMELESS: &str = "%";

/// A value that a header can hold: visible ASCII without `"` and `%`, the rest encoded.
pub(crate) fn value(text: &str) -> Cow<'_, str> {
    encode(text, |b| !matches!(b, b'"' | b'%'))
}

/// A name that a header can have.
pub(crate) fn name(text: &str) -> Cow<'_, str> {
    match text.is_empty() {
        true => NAMELESS.into(),
        false => encode(text, |b| !matches!(b, b':' | b'%')),
    }
}

/// The name again.
pub(crate) fn decode_name(text: &str) -> String {
    match text == NAMELESS {
        true => String::new(),
        false => String::from_utf8_lossy(&decode(text)).into_owned(),
    }
}

/// The bytes again. A `%` without two digits behind it stands for itself.
pub(crate) fn decode(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        if *first == b'%'
            && let [high, low, after @ ..] = tail
            && let (Some(high), Some(low)) = (digit(*high), digit(*low))
        {
            bytes.push(high * 16 + low);
            rest = after;
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    bytes
}

fn digit(byte: u8) -> Option<u8> {
    let digit = char::from(byte).to_digit(16)?;
    u8::try_from(digit).ok()
}

fn encode(text: &str, plain: impl Fn(u8) -> bool) -> Cow<'_, str> {
    let stays = |b: u8| b.is_ascii_graphic() && plain(b);
    if text.bytes().all(stays) {
        return text.into();
    }
    let mut encoded = String::with_capacity(text.len() * 2);
    for byte in text.bytes() {
        match stays(byte) {
            true => encoded.push(char::from(byte)),
            false => {
                // Writing to a text does not fail.
                let _ = write!(encoded, "%{byte:02X}");
            }
        }
    }
    encoded.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_encoded_as_cloudevents_demands() {
        assert_eq!(value("order/42"), "order/42");
        assert_eq!(value("Euro € \u{1F600}"), "Euro%20%E2%82%AC%20%F0%9F%98%80");
        assert_eq!(value("a\r\n\"%"), "a%0D%0A%22%25");
    }

    #[test]
    fn every_text_comes_out_as_it_went_in() {
        let low: String = (0..=0xff_u8).map(char::from).collect();
        for text in ["", " ", "plain", "a%20b%zz%", "größe \u{10FFFF}", &low] {
            assert_eq!(decode(&value(text)), text.as_bytes(), "{text}");
            assert_eq!(decode_name(&name(text)), text, "{text}");
            let header = name(text);
            assert!(!header.is_empty() && header.bytes().all(|b| b.is_ascii_graphic()));
            assert!(!header.contains(':'));
        }
    }

    #[test]
    fn what_was_never_encoded_is_left_as_it_is() {
        for text in ["100%", "%", "%4", "%zz", "größe"] {
            assert_eq!(decode(text), text.as_bytes());
        }
    }
}
