//! JSON in one spelling, so that two texts that mean the same have the same hash.
//!
//! # Promise
//! Fields come in the order of their names, without white space. A text in which a name occurs
//! twice in one object is refused, because two readers may see two different things in it. So is a
//! text that is nested deeper than serde_json reads.
//!
//! Numbers keep the digits with which serde_json reads them: `1` and `1.0` stay different.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Serialize, Serializer};

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
    let mut value: Value = serde_json::from_slice(json).map_err(CanonicalError)?;
    if let Value::Object(fields) = &mut value {
        fields.retain(|name, _| !ignored.contains(name));
    }
    serde_json::to_string(&value).map_err(CanonicalError)
}

/// A JSON value whose fields are in order and unique.
enum Value {
    Null,
    Bool(bool),
    Number(serde_json::Number),
    String(String),
    Array(Vec<Value>),
    Object(BTreeMap<String, Value>),
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::Null => to.serialize_unit(),
            Value::Bool(v) => to.serialize_bool(*v),
            Value::Number(v) => v.serialize(to),
            Value::String(v) => to.serialize_str(v),
            Value::Array(v) => v.serialize(to),
            Value::Object(v) => v.serialize(to),
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: de::Error>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }

    fn visit_i64<E: de::Error>(self, v: i64) -> Result<Value, E> {
        Ok(Value::Number(v.into()))
    }

    fn visit_u64<E: de::Error>(self, v: u64) -> Result<Value, E> {
        Ok(Value::Number(v.into()))
    }

    fn visit_f64<E: de::Error>(self, v: f64) -> Result<Value, E> {
        serde_json::Number::from_f64(v)
            .map(Value::Number)
            .ok_or_else(|| E::custom("a number that JSON cannot hold"))
    }

    fn visit_str<E: de::Error>(self, v: &str) -> Result<Value, E> {
        Ok(Value::String(v.to_owned()))
    }

    fn visit_string<E: de::Error>(self, v: String) -> Result<Value, E> {
        Ok(Value::String(v))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = from.next_element()? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let mut fields = BTreeMap::new();
        while let Some((name, value)) = from.next_entry::<String, Value>()? {
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

    proptest! {
        #[test]
        fn the_canonical_text_is_its_own_canonical_text(text in "[\\[\\]{}:,\"a-c0-9 .eE+-]{0,60}") {
            if let Ok(once) = canonical(&text) {
                prop_assert_eq!(canonical(&once), Ok(once.clone()));
            }
        }
    }
}
