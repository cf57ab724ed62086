//! The key as it comes in the header.

use http::{HeaderMap, HeaderName};

use crate::Problem;

/// What the header says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HeaderKey {
    Absent,
    Given(String),
}

/// Reads the key: a quoted string as the draft has it, or a bare token where that is allowed.
pub(super) fn read(
    headers: &HeaderMap,
    name: &HeaderName,
    strict: bool,
) -> Result<HeaderKey, Problem> {
    let mut lines = headers.get_all(name).iter();
    let Some(value) = lines.next() else {
        return Ok(HeaderKey::Absent);
    };
    if lines.next().is_some() {
        return Err(Problem::key_malformed(format!(
            "The header {name} occurs more than once."
        )));
    }
    let bytes = value.as_bytes();
    // Quotes and escapes at most double a key; what is longer need not be looked at.
    if bytes.len() > 2 * 255 + 2 {
        return Err(Problem::key_malformed("The key has more than 255 bytes."));
    }
    let key = match sf_string(bytes) {
        Some(key) => key,
        None if !strict && is_bare(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        None => {
            return Err(Problem::key_malformed(if strict {
                "The key must be a string in double quotes."
            } else {
                "The key must be a string in double quotes, or visible ASCII characters without quotes, commas, semicolons and spaces."
            }));
        }
    };
    Ok(HeaderKey::Given(key))
}

fn sf_string(bytes: &[u8]) -> Option<String> {
    let item: sfv::Item = sfv::Parser::new(bytes).parse().ok()?;
    if !item.params.is_empty() {
        return None;
    }
    match item.bare_item {
        sfv::BareItem::String(text) => Some(text.as_str().to_owned()),
        _ => None,
    }
}

fn is_bare(bytes: &[u8]) -> bool {
    !bytes.is_empty()
        && bytes
            .iter()
            .all(|b| b.is_ascii_graphic() && !matches!(b, b'"' | b',' | b';' | b'\\'))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn header() -> HeaderName {
        HeaderName::from_static("idempotency-key")
    }

    fn key(value: &[u8], strict: bool) -> Result<HeaderKey, u16> {
        let mut headers = HeaderMap::new();
        headers.insert(header(), HeaderValue::from_bytes(value).unwrap());
        read(&headers, &header(), strict).map_err(|p| p.status().as_u16())
    }

    fn given(text: &str) -> Result<HeaderKey, u16> {
        Ok(HeaderKey::Given(text.into()))
    }

    #[test]
    fn a_quoted_string_and_a_bare_token_are_the_same_key() {
        assert_eq!(key(b"\"k-1\"", true), given("k-1"));
        assert_eq!(key(b"\"k-1\"", false), given("k-1"));
        assert_eq!(key(b"k-1", false), given("k-1"));
        assert_eq!(
            key(b"8e03978e-40d5-43e8-bc93-6894a57f9324", false),
            given("8e03978e-40d5-43e8-bc93-6894a57f9324")
        );
    }

    #[test]
    fn case_02_strict_syntax_wants_a_string() {
        for value in [
            &b"k-1"[..],
            b"12",
            b"?1",
            b":AA==:",
            b"\"a\", \"b\"",
            b"\"a\";p=1",
        ] {
            assert_eq!(key(value, true), Err(400), "{value:?}");
        }
    }

    #[test]
    fn case_30_odd_values_are_valid_or_refused() {
        let long = |n: usize| format!("\"{}\"", "x".repeat(n));

        assert_eq!(key(b"\"\"", false), given(""));
        assert_eq!(key(long(1).as_bytes(), true), given("x"));
        assert_eq!(key(long(255).as_bytes(), true), given(&"x".repeat(255)));
        assert_eq!(key(long(10_000).as_bytes(), true), Err(400));
        assert_eq!(key(b"a\tb", false), Err(400));
        assert_eq!(key("schlüssel".as_bytes(), false), Err(400));
        assert_eq!(key(b"\xff\xfe", false), Err(400));
        let mut twice = HeaderMap::new();
        twice.append(header(), HeaderValue::from_static("a"));
        twice.append(header(), HeaderValue::from_static("a"));
        assert!(read(&twice, &header(), false).is_err());
    }
}
