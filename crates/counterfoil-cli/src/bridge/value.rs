//! From a message to the values of a statement's parameters.

use std::collections::HashMap;

use counterfoil_core::incoming::Incoming;
use counterfoil_core::message::Payload;
use serde_json::value::RawValue;

use super::statement::Parameter;

/// A value that is bound.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Null,
    Whole(i64),
    /// A number with a fraction, as it was written.
    Fraction(String),
    Truth(bool),
    Text(String),
    Bytes(Vec<u8>),
}

/// The values, in the order of the parameters. An error says why there are none: the message can
/// never pass.
pub(super) fn values(
    parameters: &[Parameter],
    incoming: &Incoming,
) -> Result<Vec<Value>, &'static str> {
    let asked = |p: &Parameter| matches!(p, Parameter::Body(_));
    let body = match parameters.iter().any(asked) {
        true => Some(body(incoming)?),
        false => None,
    };
    let one = |parameter: &Parameter| value(parameter, incoming, body);
    Ok(parameters.iter().map(one).collect())
}

fn body(incoming: &Incoming) -> Result<&RawValue, &'static str> {
    serde_json::from_slice(incoming.payload.as_bytes())
        .map_err(|_| "the statement reads its body as JSON, and it is not JSON")
}

fn value(parameter: &Parameter, incoming: &Incoming, body: Option<&RawValue>) -> Value {
    let aggregate = incoming.aggregate.as_ref();
    let text = |text: Option<&str>| text.map_or(Value::Null, |t| Value::Text(t.to_owned()));
    let kind = || aggregate.map(|a| a.kind.as_str()).filter(|k| !k.is_empty());
    match parameter {
        Parameter::Id => Value::Text(incoming.id.to_string()),
        Parameter::EventType => Value::Text(incoming.event_type.clone()),
        Parameter::AggregateType => text(kind()),
        Parameter::AggregateId => text(aggregate.map(|a| a.id.as_str())),
        Parameter::Version => incoming.version.map_or(Value::Null, Value::Whole),
        Parameter::Payload => match &incoming.payload {
            Payload::Json(text) => Value::Text(text.clone()),
            Payload::Opaque(bytes) => Value::Bytes(bytes.to_vec()),
        },
        Parameter::Headers => {
            let json = incoming.headers.to_json();
            Value::Text(json.unwrap_or_else(|| "{}".into()))
        }
        Parameter::Position => Value::Text(incoming.position.clone()),
        Parameter::Body(pointer) => match body.and_then(|b| find(b, pointer)) {
            Some(found) => of_json(found),
            None => Value::Null,
        },
    }
}

/// The part of a document that a pointer names, as it was written: no digit of a number is lost.
fn find<'a>(document: &'a RawValue, pointer: &str) -> Option<&'a RawValue> {
    let mut here = document;
    for step in pointer.split('/').skip(1) {
        let step = step.replace("~1", "/").replace("~0", "~");
        here = match here.get().as_bytes().first()? {
            b'{' => {
                let fields: HashMap<String, &RawValue> = serde_json::from_str(here.get()).ok()?;
                *fields.get(&step)?
            }
            b'[' => {
                let items: Vec<&RawValue> = serde_json::from_str(here.get()).ok()?;
                *items.get(step.parse::<usize>().ok()?)?
            }
            _ => return None,
        };
    }
    Some(here)
}

fn of_json(found: &RawValue) -> Value {
    let text = found.get();
    match text.as_bytes().first() {
        Some(b'n') => Value::Null,
        Some(b't') => Value::Truth(true),
        Some(b'f') => Value::Truth(false),
        Some(b'"') => match serde_json::from_str(text) {
            Ok(text) => Value::Text(text),
            // Half of a pair of surrogates: no text.
            Err(_) => Value::Text(text.to_owned()),
        },
        Some(b'{' | b'[') | None => Value::Text(text.to_owned()),
        Some(_) => match text.parse() {
            Ok(whole) => Value::Whole(whole),
            Err(_) => Value::Fraction(text.to_owned()),
        },
    }
}

#[cfg(test)]
mod tests {
    use counterfoil_core::message::{Aggregate, Headers, MessageId};

    use super::super::statement::Statement;
    use super::*;

    fn incoming(payload: Payload) -> Incoming {
        Incoming {
            id: MessageId::new(),
            key: "k".into(),
            aggregate: Some(Aggregate::new("order", 7)),
            version: Some(3),
            event_type: "OrderPaid".into(),
            payload,
            headers: Headers::new(),
            position: "orders/0@1".into(),
            time: None,
            defect: None,
        }
    }

    #[test]
    fn everything_that_is_known_of_a_message_can_be_bound() {
        let message = incoming(Payload::Json(
            r#"{"a":{"b":[1,2.50,"x",true,null,{"c":1}]},"big":99999999999999999999}"#.into(),
        ));
        let names = "SELECT :id,:type,:aggregate_type,:aggregate_id,:version,:headers,:position,\
                     :body/a/b/0,:body/a/b/1,:body/a/b/2,:body/a/b/3,:body/a/b/4,:body/a/b/5,\
                     :body/none,:body/big";
        let statement = Statement::parse(names).unwrap();

        let found = values(statement.parameters(), &message).unwrap();

        let text = |t: &str| Value::Text(t.to_owned());
        let expected = [
            text(&message.id.to_string()),
            text("OrderPaid"),
            text("order"),
            text("7"),
            Value::Whole(3),
            text("{}"),
            text("orders/0@1"),
            Value::Whole(1),
            Value::Fraction("2.50".into()),
            text("x"),
            Value::Truth(true),
            Value::Null,
            text("{\"c\":1}"),
            Value::Null,
            Value::Fraction("99999999999999999999".into()),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_body_that_is_no_json_can_be_stored_and_not_be_read() {
        let message = incoming(Payload::Opaque(vec![0xff].into()));
        let of = |sql: &str| values(Statement::parse(sql).unwrap().parameters(), &message);

        assert_eq!(of("SELECT :payload").unwrap(), [Value::Bytes(vec![0xff])]);
        assert!(of("SELECT :body/a").unwrap_err().contains("not JSON"));
    }
}
