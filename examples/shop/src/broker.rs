//! The only place that knows which broker it is.
//!
//! | `BROKER_URL` | broker | feature |
//! |---|---|---|
//! | `redis://host:port/` | Redis Streams | `redis` (the default) |
//! | `kafka://host:port` | Kafka; make the topic `shop-orders` first | `kafka` |
//! | `amqp://user:password@host:port/vhost` | RabbitMQ | `rabbitmq` |
//! | `nats://host:port` | NATS JetStream | `nats` |
//! | `sqs://key:secret@host:port/queue` | an SQS at an address of its own; make the queue first | `sqs` |

use std::sync::Arc;

use counterfoil::Destination;
use counterfoil::source::Source;

use crate::Any;

/// What a service uses that is not told anything else.
pub const DEFAULT: &str = "redis://127.0.0.1:6379/";

/// The topic, stream, subject or exchange.
#[cfg(any(
    feature = "kafka",
    feature = "nats",
    feature = "rabbitmq",
    feature = "redis"
))]
const TOPIC: &str = "shop-orders";
/// Over so many partitions orders are spread. Both services know the same number.
#[cfg(any(feature = "nats", feature = "rabbitmq", feature = "redis"))]
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
        #[cfg(feature = "rabbitmq")]
        "amqp" | "amqps" => {
            use counterfoil_rabbitmq::{RabbitMq, Settings};
            // Each group has its own partitions.
            Ok(Arc::new(RabbitMq::new(Settings::new(url, TOPIC))?))
        }
        #[cfg(feature = "nats")]
        "nats" | "tls" => {
            use counterfoil_nats::{Create, Nats, Settings};
            let settings = Settings::new(url, TOPIC)
                .partitions(PARTITIONS.into())
                .create(Create::new());
            Ok(Arc::new(Nats::new(settings)?))
        }
        #[cfg(feature = "sqs")]
        "sqs" | "sqss" => {
            use counterfoil_sqs::{Settings, Sqs};
            let (endpoint, queue) = sqs(url)?;
            let settings = Settings::new(queue).endpoint(endpoint).region("us-east-1");
            Ok(Arc::new(Sqs::new(settings)?))
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
        #[cfg(feature = "rabbitmq")]
        "amqp" | "amqps" => {
            use counterfoil_rabbitmq::{RabbitMqSource, SourceSettings};
            let settings = SourceSettings::new(url, TOPIC, group).partitions(PARTITIONS.into());
            Ok(Arc::new(RabbitMqSource::new(settings)?))
        }
        #[cfg(feature = "nats")]
        "nats" | "tls" => {
            use counterfoil_nats::{Create, NatsSource, SourceSettings};
            let settings = SourceSettings::new(url, TOPIC, group)
                .partitions(PARTITIONS.into())
                .create(Create::new());
            Ok(Arc::new(NatsSource::new(settings)?))
        }
        // Whoever reads a queue is its group.
        #[cfg(feature = "sqs")]
        "sqs" | "sqss" => {
            use counterfoil_sqs::{SourceSettings, SqsSource};
            let (endpoint, queue) = sqs(url)?;
            let settings = SourceSettings::new(queue)
                .endpoint(endpoint)
                .region("us-east-1");
            Ok(Arc::new(SqsSource::new(settings)?))
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

/// `sqs://key:secret@host:port/queue` → the address of the service, and the queue.
#[cfg(feature = "sqs")]
fn sqs(url: &str) -> Result<(String, String), Any> {
    let secure = url.starts_with("sqss:");
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
    match rest.rsplit_once('/') {
        Some((host, queue)) if !host.is_empty() && !queue.is_empty() => {
            let scheme = if secure { "https" } else { "http" };
            Ok((format!("{scheme}://{host}"), queue.to_owned()))
        }
        _ => Err("BROKER_URL of SQS has the form sqs://key:secret@host:port/queue".into()),
    }
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

    #[cfg(feature = "sqs")]
    #[test]
    fn the_queue_is_the_path_of_its_url() {
        let (endpoint, queue) = sqs("sqs://a:b@127.0.0.1:9324/orders.fifo").unwrap();

        assert_eq!(endpoint, "http://a:b@127.0.0.1:9324");
        assert_eq!(queue, "orders.fifo");
        assert!(sqs("sqs://127.0.0.1").is_err());
    }
}
