//! The name of the stream that a message goes to.
//!
//! # Promise
//! The same aggregate type and event type always give the same name. A placeholder that a message
//! has nothing for becomes `none`.

use counterfoil_core::Delivery;

use crate::settings::SettingsError;

/// Stands for what a message does not have.
const NONE: &str = "none";
const KNOWN: &str = "{aggregate-type} and {event-type}";

/// A name, perhaps with placeholders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StreamName {
    given: String,
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    AggregateType,
    EventType,
}

impl StreamName {
    /// Reads a name such as `events:{aggregate-type}`.
    pub(crate) fn parse(given: &str) -> Result<Self, SettingsError> {
        let bad = |problem: String| SettingsError::Stream(problem);
        if given.is_empty() {
            return Err(bad("is empty".into()));
        }
        let mut parts = Vec::new();
        let mut rest = given;
        while let Some(at) = rest.find(['{', '}']) {
            let (text, tail) = rest.split_at(at);
            push_text(&mut parts, text);
            let inside = tail.strip_prefix('{').and_then(|t| t.split_once('}'));
            let Some((name, after)) = inside else {
                return Err(bad(format!(
                    "has a brace that is not closed or not opened; {KNOWN} are the placeholders"
                )));
            };
            parts.push(match name {
                "aggregate-type" => Part::AggregateType,
                "event-type" => Part::EventType,
                other => {
                    return Err(bad(format!(
                        "has the unknown placeholder {{{other}}}; {KNOWN} are the placeholders"
                    )));
                }
            });
            rest = after;
        }
        push_text(&mut parts, rest);
        Ok(Self {
            given: given.to_owned(),
            parts,
        })
    }

    /// The name as it was given.
    pub(crate) fn given(&self) -> &str {
        &self.given
    }

    /// The stream of this message.
    pub(crate) fn of(&self, delivery: &Delivery) -> String {
        let kind = delivery.aggregate.as_ref().map(|a| a.kind.as_str());
        let parts = self.parts.iter().map(|part| match part {
            Part::Text(text) => text,
            Part::AggregateType => or_none(kind.unwrap_or_default()),
            Part::EventType => or_none(&delivery.event_type),
        });
        parts.collect()
    }
}

fn push_text(parts: &mut Vec<Part>, text: &str) {
    if !text.is_empty() {
        parts.push(Part::Text(text.to_owned()));
    }
}

fn or_none(text: &str) -> &str {
    match text.is_empty() {
        true => NONE,
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::tests::delivery;
    use counterfoil_core::Aggregate;

    fn name(given: &str, delivery: &Delivery) -> String {
        StreamName::parse(given).unwrap().of(delivery)
    }

    #[test]
    fn placeholders_are_filled_from_the_message() {
        let paid = Delivery {
            aggregate: Some(Aggregate::new("order", 1)),
            event_type: "Paid".into(),
            ..delivery()
        };

        assert_eq!(name("orders", &paid), "orders");
        assert_eq!(name("{event-type}", &paid), "Paid");
        assert_eq!(
            name("a:{aggregate-type}:b:{event-type}:c", &paid),
            "a:order:b:Paid:c"
        );
    }

    #[test]
    fn what_a_message_does_not_have_is_none() {
        let bare = Delivery {
            aggregate: None,
            event_type: String::new(),
            ..delivery()
        };
        let untyped = Delivery {
            aggregate: Some(Aggregate::new("", 1)),
            ..delivery()
        };

        assert_eq!(name("{aggregate-type}.{event-type}", &bare), "none.none");
        assert_eq!(name("{aggregate-type}", &untyped), "none");
    }

    #[test]
    fn a_message_cannot_bring_placeholders_of_its_own() {
        let odd = Delivery {
            event_type: "{aggregate-type}".into(),
            ..delivery()
        };

        assert_eq!(name("{event-type}", &odd), "{aggregate-type}");
    }

    #[test]
    fn names_that_mean_something_else_are_refused() {
        for wrong in ["", "{", "}", "a}b", "{a", "{}", "{queue}", "{{event-type}}"] {
            let refused = StreamName::parse(wrong);
            assert!(matches!(refused, Err(SettingsError::Stream(_))), "{wrong}");
        }
    }
}
