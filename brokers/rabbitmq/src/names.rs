//! The names of exchanges and queues, and which message goes where.
//!
//! # Promise
//! The same partition key always goes to the same slot of a topic and to the same partition of a
//! queue. No two groups, partitions or helpers have one name.
//!
//! A topic `T` is a direct exchange `T` with 64 routing keys, `0` to `63`: the slots. A group binds
//! every slot to one of its queues, so that it misses nothing whatever its number of queues is.

use counterfoil_core::Delivery;
use counterfoil_core::template::{Field, Template};

use crate::settings::SettingsError;

/// How many routing keys a topic has.
pub(crate) const SLOTS: usize = 64;
/// The names that are made of it are somewhat longer, and 255 is the most.
const LONGEST: usize = 200;
/// Stand behind the name of a group or queue.
const TAKEN: [&str; 3] = ["DLQ", "delay", "members"];
const FIELDS: [Field; 3] = [Field::AggregateType, Field::AggregateId, Field::EventType];

/// Where messages go to or come from, as it was given.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    /// Every group of this topic.
    Topic(String),
    /// This queue.
    Queue(String),
    /// An exchange of somebody else's, and a routing key.
    Exchange(String, String),
}

/// Where a destination sends.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    Topic(String),
    Queue { name: String, partitions: usize },
    Exchange { name: String, key: Template },
}

impl Target {
    pub(crate) fn new(place: &Place, partitions: usize) -> Result<Self, SettingsError> {
        if partitions > 1 && !matches!(place, Place::Queue(_)) {
            return Err(SettingsError::NoPartitions);
        }
        Ok(match place {
            Place::Topic(name) => Target::Topic(checked("topic", name)?),
            Place::Queue(name) => Target::Queue {
                name: checked("queue", name)?,
                partitions,
            },
            Place::Exchange(name, key) => Target::Exchange {
                name: within("exchange", name)?,
                key: routing_key(key)?,
            },
        })
    }

    /// For people.
    pub(crate) fn shown(&self) -> String {
        match self {
            Target::Topic(name) => format!("topic {name}"),
            Target::Queue { name, .. } => format!("queue {name}"),
            Target::Exchange { name, .. } => format!("exchange {name}"),
        }
    }

    /// The exchange and the routing key of this message.
    pub(crate) fn of(&self, delivery: &Delivery, key: Option<&str>) -> (String, String) {
        // Without a key there is no order to keep, and the id spreads them.
        let place = |count| match key {
            Some(key) => spread(key.as_bytes(), count),
            None => spread(delivery.id.to_string().as_bytes(), count),
        };
        match self {
            Target::Topic(name) => (name.clone(), place(SLOTS).to_string()),
            Target::Queue { name, partitions } => {
                let queue = partition(name, *partitions, place(*partitions));
                (String::new(), queue)
            }
            Target::Exchange { name, key } => (name.clone(), key.of(delivery)),
        }
    }
}

/// The queues of a group.
#[derive(Debug, Clone)]
pub(crate) struct Queues {
    /// The topic whose exchange they are bound to.
    pub(crate) topic: Option<String>,
    /// What all their names begin with.
    pub(crate) base: String,
    /// One for each partition.
    pub(crate) all: Vec<String>,
}

impl Queues {
    pub(crate) fn new(
        place: &Place,
        group: Option<&str>,
        partitions: usize,
    ) -> Result<Self, SettingsError> {
        let (topic, base) = match (place, group) {
            (Place::Topic(topic), Some(group)) => {
                let topic = checked("topic", topic)?;
                let base = format!("{topic}.{}", group_name(group)?);
                (Some(topic), checked("topic and group", &base)?)
            }
            (Place::Topic(name) | Place::Queue(name) | Place::Exchange(name, _), _) => {
                (None, checked("queue", name)?)
            }
        };
        let all = (0..partitions).map(|n| partition(&base, partitions, n));
        Ok(Self {
            all: all.collect(),
            topic,
            base,
        })
    }

    /// Where what cannot pass lies.
    pub(crate) fn dead_letters(&self) -> String {
        format!("{}.DLQ", self.base)
    }

    /// Where members of the group tell each other that they are there.
    pub(crate) fn members(&self) -> String {
        format!("{}.members", self.base)
    }

    /// Where messages wait that come again after so many milliseconds.
    pub(crate) fn delay(&self, milliseconds: u32) -> String {
        format!("{}.delay.{milliseconds}", self.base)
    }

    /// What people know it by.
    pub(crate) fn origin(&self) -> &str {
        self.topic.as_deref().unwrap_or(&self.base)
    }
}

/// The name of one partition: there is no number where there is one only.
fn partition(base: &str, partitions: usize, n: usize) -> String {
    match partitions {
        1 => base.to_owned(),
        _ => format!("{base}.{n}"),
    }
}

/// Where a key lies. FNV-1a with 64 bits, folded: never another one, or the order would be lost.
pub(crate) fn spread(key: &[u8], count: usize) -> usize {
    let hash = key.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let folded = (hash >> 32) ^ (hash & 0xffff_ffff);
    usize::try_from(folded % count.max(1) as u64).unwrap_or_default()
}

fn within(what: &'static str, name: &str) -> Result<String, SettingsError> {
    let bad = |problem: String| SettingsError::Name(what, problem);
    if name.is_empty() {
        return Err(bad("is empty".into()));
    }
    if name.len() > LONGEST {
        return Err(bad(format!(
            "has {} bytes; {LONGEST} are the most",
            name.len()
        )));
    }
    if name.chars().any(char::is_control) {
        return Err(bad("has characters that cannot be seen".into()));
    }
    Ok(name.to_owned())
}

fn checked(what: &'static str, name: &str) -> Result<String, SettingsError> {
    let name = within(what, name)?;
    match name.starts_with("amq.") {
        true => {
            let text = "begins with `amq.`, which RabbitMQ keeps for itself";
            Err(SettingsError::Name(what, text.into()))
        }
        false => Ok(name),
    }
}

fn group_name(name: &str) -> Result<&str, SettingsError> {
    let bad = |problem: String| Err(SettingsError::Name("group", problem));
    let legal = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) || !name.chars().all(legal) {
        return bad("has letters, digits, `-` and `_`, and begins with a letter".into());
    }
    if TAKEN.contains(&name) {
        return bad(format!("is not one of {}", TAKEN.join(", ")));
    }
    Ok(name)
}

/// A routing key, perhaps with placeholders.
fn routing_key(given: &str) -> Result<Template, SettingsError> {
    let bad = |problem: String| SettingsError::Name("routing key", problem);
    if given.len() > LONGEST {
        return Err(bad(format!("has more than {LONGEST} bytes")));
    }
    Template::parse(given, &FIELDS).map_err(bad)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outgoing::tests::delivery;

    fn topic(topic: &str, group: &str, partitions: usize) -> Result<Queues, SettingsError> {
        Queues::new(&Place::Topic(topic.into()), Some(group), partitions)
    }

    #[test]
    fn keys_lie_where_they_always_lay() {
        let places: Vec<usize> = ["order/1", "order/2", "order/3", ""]
            .map(|key| spread(key.as_bytes(), SLOTS))
            .into();
        assert_eq!(
            places,
            [4, 17, 30, 1],
            "messages under way would lose their order"
        );
    }

    #[test]
    fn keys_spread_over_all_places() {
        for count in [1, 3, 64] {
            let mut hits = vec![0; count];
            for n in 0..count * 1_000 {
                hits[spread(format!("order/{n}").as_bytes(), count)] += 1;
            }
            assert!(hits.iter().all(|n| (700..1_300).contains(n)), "{hits:?}");
        }
    }

    #[test]
    fn a_message_goes_where_its_key_lies() {
        let to = |place: Place, partitions| {
            let target = Target::new(&place, partitions).unwrap();
            target.of(&delivery(), Some("order/1"))
        };
        assert_eq!(to(Place::Topic("t".into()), 1), ("t".into(), "4".into()));
        assert_eq!(to(Place::Queue("q".into()), 1), ("".into(), "q".into()));
        let some = to(Place::Queue("q".into()), 4);
        assert_eq!(some, ("".into(), "q.0".into()));
        let key = "a.{aggregate-type}.{aggregate-id}.{event-type}";
        let some = to(Place::Exchange("x".into(), key.into()), 1);
        assert_eq!(some, ("x".into(), "a.order.42.OrderPaid".into()));
    }

    #[test]
    fn a_group_has_queues_and_helpers_of_its_own() {
        let one = topic("orders", "stock", 1).unwrap();
        assert_eq!(one.all, ["orders.stock"]);
        let three = topic("orders", "stock", 3).unwrap();
        assert_eq!(
            three.all,
            ["orders.stock.0", "orders.stock.1", "orders.stock.2"]
        );
        assert_eq!(three.dead_letters(), "orders.stock.DLQ");
        assert_eq!(three.delay(250), "orders.stock.delay.250");
        assert_eq!(three.origin(), "orders");
    }

    #[test]
    fn names_that_mean_something_else_are_refused() {
        for group in ["", "0", "a.b", "DLQ", "delay", "members", "größe"] {
            assert!(topic("orders", group, 1).is_err(), "{group}");
        }
        for name in ["", "amq.direct", "a\n", &"x".repeat(201)] {
            assert!(topic(name, "g", 1).is_err(), "{name}");
            assert!(
                Target::new(&Place::Queue(name.into()), 1).is_err(),
                "{name}"
            );
        }
        for key in ["{", "}", "{a", "{}", "{queue}"] {
            assert!(routing_key(key).is_err(), "{key}");
        }
        // The exchanges that every RabbitMQ has can be sent to.
        let fine = Place::Exchange("amq.topic".into(), String::new());
        assert!(Target::new(&fine, 1).is_ok());
    }
}
