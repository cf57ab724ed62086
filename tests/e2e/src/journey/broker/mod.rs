//! The brokers of the journey: one of a test's own, and the way to it for processes.
//!
//! # Promise
//! Processes use the drivers as an application does, with timeouts and windows so short that a
//! death is noticed while a test waits. A broker is killed only when it still has afterwards what it
//! has confirmed; another one is frozen instead.

#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "sqs")]
mod sqs;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::source::Source;
use counterfoil_core::{BoxError, Destination};

/// How long a driver waits for an answer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Over so many partitions messages are spread.
#[cfg(any(
    feature = "kafka",
    feature = "nats",
    feature = "rabbitmq",
    feature = "redis"
))]
const PARTITIONS: u8 = 8;
/// The queue of the outbox, and the topic at the broker.
const TOPIC: &str = "journey";

/// Which broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
#[non_exhaustive]
pub enum Kind {
    /// Kafka.
    #[cfg(feature = "kafka")]
    Kafka,
    /// NATS JetStream.
    #[cfg(feature = "nats")]
    Nats,
    /// RabbitMQ.
    #[cfg(feature = "rabbitmq")]
    Rabbitmq,
    /// Redis Streams.
    #[cfg(feature = "redis")]
    Redis,
    /// Amazon SQS.
    #[cfg(feature = "sqs")]
    Sqs,
}

/// A broker of one test's own.
#[async_trait]
pub trait Server: Send + Sync {
    /// Its address for processes.
    fn url(&self) -> String;

    /// Whether it has its messages after a kill.
    fn survives(&self) -> bool {
        true
    }

    /// Ends it without warning.
    async fn kill(&mut self);

    /// Starts it again at its address.
    async fn restart(&mut self);

    /// Freezes it.
    async fn pause(&mut self);

    /// Lets it go on.
    fn resume(&mut self);

    /// Makes what consumers with these names need before the first message comes.
    async fn prepare(&self, consumers: &[&str]);
}

impl Kind {
    /// The name on the command line.
    pub fn name(self) -> String {
        let value = clap::ValueEnum::to_possible_value(&self);
        value.map_or_else(String::new, |v| v.get_name().to_owned())
    }

    /// Whether the server for tests handles tens of messages a second, and not thousands.
    pub fn is_slow(self) -> bool {
        self.name() == "sqs"
    }

    /// Starts a broker. Absent when it cannot be had, which has then been said.
    pub async fn start(self) -> Option<Box<dyn Server>> {
        match self {
            #[cfg(feature = "kafka")]
            Self::Kafka => kafka::start().await,
            #[cfg(feature = "nats")]
            Self::Nats => nats::start().await,
            #[cfg(feature = "rabbitmq")]
            Self::Rabbitmq => rabbitmq::start().await,
            #[cfg(feature = "redis")]
            Self::Redis => redis::start().await,
            #[cfg(feature = "sqs")]
            Self::Sqs => sqs::start().await,
        }
    }

    /// The queues of the outbox that a message goes to, so that each of the consumers gets it.
    #[allow(unused_variables, reason = "most brokers have groups")]
    pub fn queues(self, consumers: &[&str]) -> Vec<String> {
        // Whoever reads a queue is its group: each consumer has one of its own.
        #[cfg(feature = "sqs")]
        if self == Self::Sqs {
            return consumers.iter().map(|name| own_queue(name)).collect();
        }
        vec![TOPIC.to_owned()]
    }

    /// Where the relay sends what waits in a queue of the outbox.
    pub fn destination(self, url: &str, queue: &str) -> Result<Arc<dyn Destination>, BoxError> {
        Ok(match self {
            #[cfg(feature = "kafka")]
            Self::Kafka => Arc::new(kafka::destination(url, queue)?),
            #[cfg(feature = "nats")]
            Self::Nats => Arc::new(nats::destination(url, queue)?),
            #[cfg(feature = "rabbitmq")]
            Self::Rabbitmq => Arc::new(rabbitmq::destination(url, queue)?),
            #[cfg(feature = "redis")]
            Self::Redis => Arc::new(redis::destination(url, queue)?),
            #[cfg(feature = "sqs")]
            Self::Sqs => Arc::new(sqs::destination(url, queue)?),
        })
    }

    /// Where a consumer with this name receives from.
    pub fn source(self, url: &str, consumer: &str) -> Result<Arc<dyn Source>, BoxError> {
        Ok(match self {
            #[cfg(feature = "kafka")]
            Self::Kafka => Arc::new(kafka::source(url, consumer)?),
            #[cfg(feature = "nats")]
            Self::Nats => Arc::new(nats::source(url, consumer)?),
            #[cfg(feature = "rabbitmq")]
            Self::Rabbitmq => Arc::new(rabbitmq::source(url, consumer)?),
            #[cfg(feature = "redis")]
            Self::Redis => Arc::new(redis::source(url, consumer)?),
            #[cfg(feature = "sqs")]
            Self::Sqs => Arc::new(sqs::source(url, &own_queue(consumer))?),
        })
    }
}

#[cfg(feature = "sqs")]
fn own_queue(consumer: &str) -> String {
    format!("{TOPIC}-{consumer}")
}
