//! The key that a request carries: given, generated, or derived from the request or task in
//! whose handler the call is made.
//!
//! # Promise
//! A derived key is the same whenever the same handler runs for the same request or message, and
//! differs for every other one, whoever its caller is.

use counterfoil::guard::Context;
use counterfoil_core::guard::Key;
use http::HeaderValue;

use super::error::Invalid;

/// The longest key, as the guard has it.
const MAX: usize = 255;

/// The key of one step of the work under this key, for calls to other services.
///
/// It carries the digest of the whole key, not the caller's own text: that is unique for its caller
/// only, and the other service sees all of them come from one.
pub fn step_key(key: &Key, step: &str) -> String {
    format!("{step}:{}", key.digest())
}

/// The key of one step of the guarded request or task in which the calling code runs.
pub(super) fn of_current(step: &str) -> Result<String, Invalid> {
    if let Some(request) = Context::current() {
        return Ok(step_key(request.key(), step));
    }
    match counterfoil::current() {
        // Not the key that the message carries: its siblings carry the same one.
        Some(task) => Ok(format!("{step}:{}", task.id)),
        None => Err(Invalid::NoRequest(step.to_owned())),
    }
}

pub(super) fn generated() -> String {
    uuid::Uuid::now_v7().to_string()
}

/// The key as a string of structured fields: in quotes.
pub(super) fn header(key: &str) -> Result<HeaderValue, Invalid> {
    let wrong = |why| Invalid::Key(key.to_owned(), why);
    if key.is_empty() {
        return Err(wrong("it is empty"));
    }
    if key.len() > MAX {
        return Err(wrong("it has more than 255 bytes"));
    }
    if !key.bytes().all(|b| matches!(b, b' '..=b'~')) {
        return Err(wrong("only printable ASCII characters are allowed"));
    }
    let mut text = String::with_capacity(key.len() + 2);
    text.push('"');
    for c in key.chars() {
        if matches!(c, '"' | '\\') {
            text.push('\\');
        }
        text.push(c);
    }
    text.push('"');
    HeaderValue::from_str(&text).map_err(|_| wrong("it does not fit into a header"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_a_string_in_quotes_that_a_strict_parser_reads_back() {
        for key in ["order-7", "a b", r#"a"b\c"#, "a,b;c", &"x".repeat(255)] {
            let value = header(key).unwrap();

            let item: sfv::Item = sfv::Parser::new(value.as_bytes()).parse().unwrap();

            let read = match item.bare_item {
                sfv::BareItem::String(text) => text.as_str().to_owned(),
                other => panic!("{other:?}"),
            };
            assert_eq!(read, key);
        }
        for key in ["", "a\nb", "schlüssel", "\u{7f}", &"x".repeat(256)] {
            assert!(header(key).is_err(), "{key:?}");
        }
    }

    #[tokio::test]
    async fn a_step_has_one_key_for_one_request_and_another_for_every_other() {
        let request = |scope: &str, key: &str| Key::new(scope, "pay", key).unwrap();
        let alice = request("alice", "1");
        let of = |key: Key| {
            let context = Context::new(key, 0, 1);
            context.scope(async { of_current("charge-card").unwrap() })
        };

        let first = of(alice.clone()).await;

        assert_eq!(of(alice.clone()).await, first);
        assert_eq!(step_key(&alice, "charge-card"), first);
        assert_ne!(step_key(&alice, "refund"), first);
        assert_ne!(of(request("bob", "1")).await, first, "both call it 1");
        assert_ne!(of(request("alice", "2")).await, first);
        let longest = request("alice", &"x".repeat(255));
        assert!(header(&of(longest).await).is_ok());
        assert!(matches!(of_current("x"), Err(Invalid::NoRequest(_))));
    }
}
