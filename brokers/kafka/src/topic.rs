//! The name of the topic that a message goes to.
//!
//! # Promise
//! The same aggregate type and event type always give the same name. A placeholder that a message
//! has nothing for becomes `none`. A name that Kafka would not take is never asked for.

use counterfoil_core::template::{Field, Template};
use counterfoil_core::{Code, Delivery, Outcome};

use crate::settings::SettingsError;

const LONGEST: usize = 249;
const FIELDS: [Field; 2] = [Field::AggregateType, Field::EventType];

/// A name, perhaps with placeholders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TopicName(Template);

impl TopicName {
    /// Reads a name such as `events.{aggregate-type}`.
    pub(crate) fn parse(given: &str) -> Result<Self, SettingsError> {
        let name = Template::parse(given, &FIELDS).map_err(SettingsError::Topic)?;
        // With something harmless in every place, what is wrong is wrong for every message.
        let example = name.filled(|_| "x");
        check(&example).map_err(|problem| SettingsError::Topic(problem.into()))?;
        Ok(Self(name))
    }

    /// The name as it was given.
    pub(crate) fn given(&self) -> &str {
        self.0.given()
    }

    /// The topic of this message, or why there is none.
    pub(crate) fn of(&self, delivery: &Delivery) -> Result<String, Outcome> {
        let name = self.0.of(delivery);
        match check(&name) {
            Ok(()) => Ok(name),
            Err(problem) => {
                let shown: String = name.chars().take(LONGEST).collect();
                let error = format!("the name of the topic {shown:?} {problem}");
                Err(Outcome::refused(Code::VALIDATION_ERROR, error))
            }
        }
    }
}

/// Whether Kafka takes a topic of this name; if not, what is wrong with it.
pub(crate) fn check(name: &str) -> Result<(), &'static str> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    match name {
        "" => Err("is empty"),
        "." | ".." => Err("is no name but a place"),
        long if long.len() > LONGEST => Err("has more than 249 characters"),
        odd if !odd.chars().all(fits) => {
            Err("has characters other than letters, digits, `.`, `_` and `-`")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::delivery;
    use counterfoil_core::Aggregate;

    fn name(given: &str, delivery: &Delivery) -> String {
        TopicName::parse(given).unwrap().of(delivery).unwrap()
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
            name("a.{aggregate-type}.b.{event-type}.c", &paid),
            "a.order.b.Paid.c"
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
    fn a_message_whose_topic_kafka_would_not_take_is_refused() {
        for odd in ["{aggregate-type}", "größe", "a b", "a/b", &"x".repeat(250)] {
            let odd = Delivery {
                event_type: odd.to_owned(),
                ..delivery()
            };

            let refused = TopicName::parse("{event-type}").unwrap().of(&odd);

            assert_eq!(refused.unwrap_err().label(), "refused");
        }
    }

    #[test]
    fn names_that_mean_something_else_are_refused() {
        for wrong in [
            "",
            ".",
            "..",
            "a b",
            "a:b",
            "{event-type}/x",
            "{",
            "}",
            "a}b",
            "{a",
            "{}",
            "{queue}",
            "{{event-type}}",
        ] {
            let refused = TopicName::parse(wrong);
            assert!(matches!(refused, Err(SettingsError::Topic(_))), "{wrong}");
        }
    }
}
