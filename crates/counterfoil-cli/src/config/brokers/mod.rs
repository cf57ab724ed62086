//! Brokers: the sections of the file in which messages go to them and come from them.
//!
//! Each module has both directions of one broker. A key that is absent is left to its driver.

pub(super) mod kafka;
pub(super) mod nats;
pub(super) mod rabbitmq;
pub(super) mod redis;
pub(super) mod sqs;

use std::sync::Arc;

use counterfoil_core::Destination;
use counterfoil_core::source::Source;
use counterfoil_engine::QueueSpec;

use super::at::At;
use super::queue::Keys;
use super::settings::Judge;

/// Where a consumer's messages come from.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum From {
    /// `type = "kafka"`
    Kafka(kafka::From),
    /// `type = "rabbitmq"`
    RabbitMq(rabbitmq::From),
    /// `type = "nats"`
    Nats(nats::From),
    /// `type = "redis"`
    Redis(redis::From),
    /// `type = "sqs"`
    Sqs(sqs::From),
}

impl From {
    /// The words that `type` may be.
    pub(super) const TYPES: [&'static str; 5] = ["kafka", "rabbitmq", "nats", "redis", "sqs"];

    /// The source, unless something is wrong with it. Nothing is opened yet.
    pub(super) fn source(&self, consumer: &str, at: &mut At<'_, '_>) -> Option<Arc<dyn Source>> {
        match self {
            From::Kafka(from) => kafka::source(from, consumer, at),
            From::RabbitMq(from) => rabbitmq::source(from, consumer, at),
            From::Nats(from) => nats::source(from, consumer, at),
            From::Redis(from) => redis::source(from, consumer, at),
            From::Sqs(from) => sqs::source(from, at),
        }
    }
}

/// The queue of a destination, unless something is wrong with it.
pub(super) fn queue(
    name: &str,
    keys: &Keys,
    judge: &mut Judge<'_>,
    make: impl FnOnce(&mut At<'_, '_>) -> Option<Arc<dyn Destination>>,
) -> Option<QueueSpec> {
    // Both are asked, so that what is wrong with one does not hide the other.
    let policies = keys.judge(name, judge);
    let destination = make(&mut At::destination(name, judge));
    Some(policies?.queue(name, destination?))
}

/// A section from which messages come.
macro_rules! from {
    ($(#[$doc:meta])* $kind:literal, {
        $($(#[$about:meta])* $key:ident: $type:ty,)*
    }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Default, PartialEq, serde::Deserialize)]
        #[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
        pub(crate) struct From {
            /// Always the same.
            pub(crate) r#type: String,
            $($(#[$about])* pub(crate) $key: $type,)*
        }
    };
}
pub(super) use from;

/// Hands on what is there: durations, numbers and texts.
#[allow(
    unused_macros,
    reason = "used by drivers that were left out of the build"
)]
macro_rules! given {
    ($settings:ident, $section:ident, spans: [$($span:ident),*], values: [$($value:ident),*]) => {
        $(if let Some(span) = $section.$span {
            $settings = $settings.$span(span.0);
        })*
        $(if let Some(value) = $section.$value.clone() {
            $settings = $settings.$value(value);
        })*
    };
}
#[allow(
    unused_imports,
    reason = "used by drivers that were left out of the build"
)]
pub(super) use given;

#[cfg(test)]
mod tests;
