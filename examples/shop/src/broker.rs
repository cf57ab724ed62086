//! The only place that knows which broker it is.
//!
//! | `BROKER_URL` | broker | feature |
//! |---|---|---|
//! | `redis://host:port/` | Redis Streams | `redis` (the default) |
//! | `kafka://host:port` | Kafka; make the topic `shop-orders` first | `kafka` |
//! | `nats://host:port` | NATS JetStream | `nats` |

use std::sync::Arc;

use counterfoil::Destination;
use counterfoil::source::Source;

use crate::Any;

/// What a service uses that is not told anything else.
pub const DEFAULT: &str = "redis://127.0.0.1:6379/";

/// The topic, stream, subject or exchange.
#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
const TOPIC: &str = "shop-orders";
/// Over so many partitions orders are spread. Both services know the same number.
#[cfg(any(feature = "nats", feature = "redis"))]
const PARTITIONS: u8 = 4;

/// Where the order service sends to.
pub fn destination(url: &str) -> Result<Arc<dyn Destination>, Any> {
    match scheme(url) {
        #[cfg(feature = "redis")]
        "redis" | "rediss" => {
            use counterfoil_redis_streams::{RedisStreams, Settings};
            let settings = Settings::new(url, TOPIC).partitions(PARTITIONS.into());
            Ok(Arc::new(RedisStreams::new(settings)?))
        }
        #[cfg(feature = "kafka")]
        "kafka" | "kafkas" => {
            use counterfoil_kafka::{Kafka, Settings};
            Ok(Arc::new(Kafka::new(Settings::new(url, TOPIC))?))
        }
        #[cfg(feature = "nats")]
        "nats" | "tls" => {
            use counterfoil_nats::{Create, Nats, Settings};
            let settings = Settings::new(url, TOPIC)
                .partitions(PARTITIONS.into())
                .create(Create::new());
            Ok(Arc::new(Nats::new(settings)?))
        }
        other => Err(unknown(other)),
    }
}

/// Where the services of this group receive from. They share the messages.
#[allow(
    unused_variables,
    reason = "not every broker has groups, and not every build has a broker"
)]
pub fn source(url: &str, group: &str) -> Result<Arc<dyn Source>, Any> {
    match scheme(url) {
        #[cfg(feature = "redis")]
        "redis" | "rediss" => {
            use counterfoil_redis_streams::{RedisStreamsSource, SourceSettings};
            let settings = SourceSettings::new(url, TOPIC, group).partitions(PARTITIONS.into());
            Ok(Arc::new(RedisStreamsSource::new(settings)?))
        }
        #[cfg(feature = "kafka")]
        "kafka" | "kafkas" => {
            use counterfoil_kafka::{KafkaSource, SourceSettings};
            let settings = SourceSettings::new(url, TOPIC, group);
            Ok(Arc::new(KafkaSource::new(settings)?))
        }
        #[cfg(feature = "nats")]
        "nats" | "tls" => {
            use counterfoil_nats::{Create, NatsSource, SourceSettings};
            let settings = SourceSettings::new(url, TOPIC, group)
                .partitions(PARTITIONS.into())
                .create(Create::new());
            Ok(Arc::new(NatsSource::new(settings)?))
        }
        other => Err(unknown(other)),
    }
}

fn scheme(url: &str) -> &str {
    url.split(':').next().unwrap_or_default()
}

fn unknown(scheme: &str) -> Any {
    format!(
        "BROKER_URL begins with {scheme:?}: no broker of this build has that. \
         See the table in src/broker.rs, and build with the feature of the broker"
    )
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_that_this_build_does_not_know_is_named() {
        let error = destination("gopher://127.0.0.1").err().unwrap().to_string();

        assert!(error.contains("gopher"), "{error}");
        assert!(source("", "stock").is_err());
    }

    #[cfg(feature = "redis")]
    #[test]
    fn the_scheme_chooses_the_broker() {
        let url = "redis://127.0.0.1:1/";

        assert!(destination(url).unwrap().describe().contains(TOPIC));
        assert!(source(url, "stock").unwrap().describe().contains(TOPIC));
    }
}
