//! JSON in one spelling, so that two texts that mean the same have the same hash.
//!
//! # Promise
//! Fields come in the order of their names, without white space. A text in which a name occurs
//! twice in one object is refused, because two readers may see two different things in it. So is a
//! text that is nested deeper than serde_json reads.
//!
//! Different numbers stay different, however many digits they have. A fraction has one spelling
//! (`1.50` is `1.5`, `1e2` is `100.0`) if a double holds it exactly as it is written; otherwise it
//! keeps its own. `1` and `1.0` stay different.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

/// A text that has no canonical form.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct CanonicalError(#[source] serde_json::Error);

/// The canonical text of a value.
pub fn of<T: Serialize + ?Sized>(value: &T) -> Result<String, CanonicalError> {
    let text = serde_json::to_vec(value).map_err(CanonicalError)?;
    text_of(&text, &[])
}

/// The canonical text of a JSON text, without the top-level fields that are named here.
pub fn text_of(json: &[u8], ignored: &[String]) -> Result<String, CanonicalError> {
    let numbers = Cell::new(json);
    let mut from = serde_json::Deserializer::from_slice(json);
    let mut value = Reader(&numbers)
        .deserialize(&mut from)
        .and_then(|value| from.end().map(|()| value))
        .map_err(CanonicalError)?;
    if let Value::Object(fields) = &mut value {
        fields.retain(|name, _| !ignored.contains(name));
    }
    let mut text = String::with_capacity(json.len());
    value.write(&mut text).map_err(CanonicalError)?;
    Ok(text)
}

/// A JSON value whose fields are in order and unique.
enum Value {
    /// As it is written: a number, `true`, `false` or `null`.
    Plain(String),
    String(String),
    Array(Vec<Value>),
    Object(BTreeMap<String, Value>),
}

impl Value {
    fn write(&self, to: &mut String) -> serde_json::Result<()> {
        match self {
            Value::Plain(text) => to.push_str(text),
            Value::String(text) => to.push_str(&serde_json::to_string(text)?),
            Value::Array(items) => {
                let mut before = '[';
                for item in items {
                    to.push(std::mem::replace(&mut before, ','));
                    item.write(to)?;
                }
                to.push_str(if items.is_empty() { "[]" } else { "]" });
            }
            Value::Object(fields) => {
                let mut before = '{';
                for (name, value) in fields {
                    to.push(std::mem::replace(&mut before, ','));
                    to.push_str(&serde_json::to_string(name)?);
                    to.push(':');
                    value.write(to)?;
                }
                to.push_str(if fields.is_empty() { "{}" } else { "}" });
            }
        }
        Ok(())
    }
}

/// Reads a value. What it is told of a number may be rounded, so it goes through the text next to
/// the parser, number by number.
#[derive(Clone, Copy)]
struct Reader<'a, 'j>(&'a Cell<&'j [u8]>);

impl Reader<'_, '_> {
    /// The next number of the text, in its one spelling.
    fn number(self) -> Value {
        let (number, rest) = next_number(self.0.get());
        self.0.set(rest);
        let number = String::from_utf8_lossy(number);
        Value::Plain(spelled(&number).unwrap_or_else(|| number.into_owned()))
    }
}

/// The first number of a text that is JSON, and what comes behind it.
fn next_number(json: &[u8]) -> (&[u8], &[u8]) {
    let mut at = 0;
    while let Some(byte) = json.get(at) {
        match byte {
            b'"' => {
                at += 1;
                while json.get(at).is_some_and(|b| *b != b'"') {
                    at += if json[at] == b'\\' { 2 } else { 1 };
                }
                at += 1;
            }
            b'-' | b'0'..=b'9' => {
                let digits = json[at..].iter();
                let end = digits
                    .take_while(|b| matches!(b, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E'))
                    .count();
                return json[at..].split_at(end);
            }
            _ => at += 1,
        }
    }
    (b"", b"")
}

/// A fraction as a double spells it, if that is the same number: up to 15 digits always are, unless
/// it is too small for a double.
fn spelled(number: &str) -> Option<String> {
    let (mantissa, _) = number.split_once(['e', 'E']).unwrap_or((number, ""));
    if mantissa.len() == number.len() && !number.contains('.') {
        return None;
    }
    let digits = mantissa.bytes().filter(u8::is_ascii_digit).count();
    let zero = !mantissa.bytes().any(|b| matches!(b, b'1'..=b'9'));
    let value: f64 = number.parse().ok()?;
    let held = digits <= 15 && (zero || value.is_normal());
    held.then(|| serde_json::to_string(&value).ok()).flatten()
}

impl<'de> DeserializeSeed<'de> for Reader<'_, '_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_, '_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Plain("null".into()))
    }

    fn visit_bool<E: de::Error>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Plain(v.to_string()))
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<Value, E> {
        Ok(self.number())
    }

    fn visit_u64<E: de::Error>(self, _: u64) -> Result<Value, E> {
        Ok(self.number())
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<Value, E> {
        Ok(self.number())
    }

    fn visit_str<E: de::Error>(self, v: &str) -> Result<Value, E> {
        Ok(Value::String(v.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = from.next_element_seed(self)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let mut fields = BTreeMap::new();
        while let Some(name) = from.next_key::<String>()? {
            let value = from.next_value_seed(self)?;
            if fields.contains_key(&name) {
                return Err(de::Error::custom(format_args!(
                    "the field {name:?} occurs twice"
                )));
            }
            fields.insert(name, value);
        }
        Ok(Value::Object(fields))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn canonical(text: &str) -> Result<String, String> {
        text_of(text.as_bytes(), &[]).map_err(|e| e.to_string())
    }

    #[test]
    fn case_33_order_and_white_space_do_not_matter() {
        let one = canonical(r#"{"b":[1,2,{"y":null,"x":true}],"a":"ü"}"#).unwrap();
        let two = canonical("{ \"a\" : \"\\u00fc\",\n \"b\": [1, 2, {\"x\":true, \"y\":null}] }");

        assert_eq!(Ok(one), two);
    }

    #[test]
    fn a_name_that_occurs_twice_is_refused() {
        let error = canonical(r#"{"a":1,"b":{"c":1,"c":2}}"#).unwrap_err();

        assert!(error.contains("\"c\" occurs twice"), "{error}");
    }

    #[test]
    fn a_very_deep_text_is_refused_and_not_followed() {
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);

        assert!(canonical(&deep).is_err());
    }

    #[test]
    fn ignored_fields_are_left_out_at_the_top_only() {
        let text = text_of(br#"{"at":1,"x":{"at":2}}"#, &["at".into()]).unwrap();

        assert_eq!(text, r#"{"x":{"at":2}}"#);
    }

    #[test]
    fn bytes_that_are_not_text_are_refused() {
        assert!(text_of(b"{\"a\":\"\xff\"}", &[]).is_err());
        assert!(text_of(b"", &[]).is_err());
    }

    #[test]
    fn different_numbers_stay_different() {
        let apart = [
            ("18446744073709551616", "18446744073709551617"),
            ("-9223372036854775809", "-9223372036854775810"),
            ("0.10000000000000000001", "0.10000000000000000002"),
            ("1e-400", "0.0"),
            ("2.5e-324", "4.9e-324"),
            ("1", "1.0"),
            ("0.0", "-0.0"),
        ];
        for (one, other) in apart {
            assert_ne!(canonical(one).unwrap(), canonical(other).unwrap());
        }
    }

    #[test]
    fn one_fraction_has_one_spelling() {
        for (one, other) in [("1.5", "1.50"), ("1e2", "100.0"), ("0.0", "0e7")] {
            assert_eq!(canonical(one), canonical(other));
        }
    }

    #[test]
    fn numbers_are_told_from_what_looks_like_them() {
        let text = r#"{"7":"8 \\\" 9","a":[-1,{"b":20.5e1,"c":"\\"}],"d":"","e":3}"#;

        assert_eq!(
            canonical(text).unwrap(),
            text.replace("20.5e1", "205.0").as_str()
        );
    }

    proptest! {
        /// Of integers the text is the number.
        #[test]
        fn integers_of_any_length_keep_their_digits(number in "-?[1-9][0-9]{0,60}", other in "[1-9][0-9]{0,60}") {
            let text = format!("[{other}, {number} , \"{other}\"]");
            prop_assert_eq!(canonical(&text), Ok(format!("[{other},{number},\"{other}\"]")));
        }

        #[test]
        fn the_canonical_text_is_its_own_canonical_text(text in "[\\[\\]{}:,\"a-c0-9 .eE+-]{0,60}") {
            if let Ok(once) = canonical(&text) {
                prop_assert_eq!(canonical(&once), Ok(once.clone()));
            }
        }
    }
}
