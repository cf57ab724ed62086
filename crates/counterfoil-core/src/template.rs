//! Names of topics, streams and routing keys that depend on the message.
//!
//! # Promise
//! The same message always gives the same name. A placeholder that a message has nothing for becomes
//! `none`. A message cannot bring placeholders of its own.

use crate::row::Delivery;

/// Stands for what a message does not have.
const NONE: &str = "none";

/// What a placeholder stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// `{aggregate-type}`
    AggregateType,
    /// `{aggregate-id}`
    AggregateId,
    /// `{event-type}`
    EventType,
}

impl Field {
    fn name(self) -> &'static str {
        match self {
            Field::AggregateType => "aggregate-type",
            Field::AggregateId => "aggregate-id",
            Field::EventType => "event-type",
        }
    }

    fn of(self, delivery: &Delivery) -> &str {
        let aggregate = delivery.aggregate.as_ref();
        let text = match self {
            Field::AggregateType => aggregate.map_or("", |a| &a.kind),
            Field::AggregateId => aggregate.map_or("", |a| &a.id),
            Field::EventType => &delivery.event_type,
        };
        match text.is_empty() {
            true => NONE,
            false => text,
        }
    }
}

/// A name, perhaps with placeholders.
///
/// ```
/// use counterfoil_core::template::{Field, Template};
///
/// let name = Template::parse("events.{event-type}", &[Field::EventType]);
/// assert_eq!(name.map(|n| n.filled(|_| "Paid")), Ok("events.Paid".into()));
/// assert!(Template::parse("events.{queue}", &[Field::EventType]).is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    given: String,
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Field(Field),
}

impl Template {
    /// Reads a name in which these placeholders may stand. The error says what the name has that it
    /// may not have.
    pub fn parse(given: &str, known: &[Field]) -> Result<Self, String> {
        let names = || {
            let all: Vec<String> = known.iter().map(|f| format!("{{{}}}", f.name())).collect();
            match all.split_last() {
                Some((last, [])) => last.clone(),
                Some((last, before)) => format!("{} and {last}", before.join(", ")),
                None => "none".to_owned(),
            }
        };
        let mut parts = Vec::new();
        let mut rest = given;
        while let Some(at) = rest.find(['{', '}']) {
            let (text, tail) = rest.split_at(at);
            parts.push(Part::Text(text.to_owned()));
            let inside = tail.strip_prefix('{').and_then(|t| t.split_once('}'));
            let Some((name, after)) = inside else {
                return Err(format!(
                    "has a brace that is not closed or not opened; {} are the placeholders",
                    names()
                ));
            };
            let field = known.iter().find(|field| field.name() == name);
            parts.push(Part::Field(*field.ok_or_else(|| {
                format!(
                    "has the unknown placeholder {{{name}}}; {} are the placeholders",
                    names()
                )
            })?));
            rest = after;
        }
        parts.push(Part::Text(rest.to_owned()));
        Ok(Self {
            given: given.to_owned(),
            parts,
        })
    }

    /// The name as it was given.
    pub fn given(&self) -> &str {
        &self.given
    }

    /// The name for this message.
    pub fn of(&self, delivery: &Delivery) -> String {
        self.filled(|field| field.of(delivery))
    }

    /// The name with these texts in the places of the placeholders.
    pub fn filled<'a>(&'a self, mut text: impl FnMut(Field) -> &'a str) -> String {
        let parts = self.parts.iter().map(|part| match part {
            Part::Text(text) => text.as_str(),
            Part::Field(field) => text(*field),
        });
        parts.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::message::{Aggregate, Headers, MessageId, Payload};
    use crate::row::RowState;

    const ALL: [Field; 3] = [Field::AggregateType, Field::AggregateId, Field::EventType];

    fn delivery(aggregate: Option<Aggregate>, event_type: &str) -> Delivery {
        Delivery {
            seq: 1,
            shard: 0,
            epoch: 1,
            id: MessageId::new(),
            queue: Arc::from("q"),
            aggregate,
            version: None,
            event_type: event_type.into(),
            payload: Payload::Json("{}".into()),
            headers: Headers::new(),
            attempt: 1,
            crashes: 0,
            created_at: chrono::Utc::now(),
            state: RowState::New,
            defect: None,
        }
    }

    fn name(given: &str, delivery: &Delivery) -> String {
        Template::parse(given, &ALL).unwrap().of(delivery)
    }

    #[test]
    fn placeholders_are_filled_from_the_message() {
        let paid = delivery(Some(Aggregate::new("order", 42)), "Paid");

        assert_eq!(name("orders", &paid), "orders");
        assert_eq!(name("{event-type}", &paid), "Paid");
        let all = "a:{aggregate-type}:b:{event-type}:c{aggregate-id}";
        assert_eq!(name(all, &paid), "a:order:b:Paid:c42");
    }

    #[test]
    fn what_a_message_does_not_have_is_none() {
        let all = "{aggregate-type}.{aggregate-id}.{event-type}";

        assert_eq!(name(all, &delivery(None, "")), "none.none.none");
        let nameless = delivery(Some(Aggregate::new("", "")), "Paid");
        assert_eq!(name(all, &nameless), "none.none.Paid");
    }

    #[test]
    fn a_message_cannot_bring_placeholders_of_its_own() {
        let odd = delivery(None, "{aggregate-type}");

        assert_eq!(name("{event-type}", &odd), "{aggregate-type}");
    }

    #[test]
    fn what_is_no_placeholder_is_refused_and_the_others_are_named() {
        for wrong in ["{", "}", "a}b", "{a", "{}", "{queue}", "{{event-type}}"] {
            let refused = Template::parse(wrong, &ALL).unwrap_err();
            assert!(
                refused.contains("{aggregate-id} and {event-type}"),
                "{refused}"
            );
        }
        let unknown_here = Template::parse("{aggregate-id}", &[Field::EventType]);
        assert!(unknown_here.unwrap_err().contains("{event-type} are"));
    }
}
