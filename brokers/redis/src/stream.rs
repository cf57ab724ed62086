//! The name of the stream that a message goes to.
//!
//! # Promise
//! The same aggregate type and event type always give the same name. A placeholder that a message
//! has nothing for becomes `none`.

use counterfoil_core::Delivery;
use counterfoil_core::template::{Field, Template};

use crate::settings::SettingsError;

const FIELDS: [Field; 2] = [Field::AggregateType, Field::EventType];

/// A name, perhaps with placeholders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StreamName(Template);

impl StreamName {
    /// Reads a name such as `events:{aggregate-type}`.
    pub(crate) fn parse(given: &str) -> Result<Self, SettingsError> {
        if given.is_empty() {
            return Err(SettingsError::Stream("is empty".into()));
        }
        let name = Template::parse(given, &FIELDS).map_err(SettingsError::Stream)?;
        Ok(Self(name))
    }

    /// The name as it was given.
    pub(crate) fn given(&self) -> &str {
        self.0.given()
    }

    /// The stream of this message.
    pub(crate) fn of(&self, delivery: &Delivery) -> String {
        self.0.of(delivery)
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
