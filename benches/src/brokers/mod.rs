//! The brokers under test, each with its bare client library.
//!
//! # Promise
//! The bare client sends the same bytes to the same server with the same durability as the driver,
//! as many at a time as the driver may have under way, and waits for the same confirmation. It reads
//! no database and keeps no order: it is the limit.

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

use async_trait::async_trait;
use bytes::Bytes;
use counterfoil_core::envelope::{Envelope, Source as From};
use counterfoil_core::message::{Aggregate, Headers, Payload};
use counterfoil_core::row::RowState;
use counterfoil_core::source::Source;
use counterfoil_core::{Delivery, Destination, MessageId};
use sqlx::postgres::PgConnection;

/// Over so many partitions messages are spread.
pub const PARTITIONS: u8 = 4;
/// Messages that a bare client has under way.
pub const WINDOW: usize = 500;

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

impl Kind {
    /// The broker at the address that the environment names.
    pub async fn open(self) -> anyhow::Result<Box<dyn Broker>> {
        Ok(match self {
            #[cfg(feature = "kafka")]
            Self::Kafka => Box::new(kafka::Kafka::open(&url("KAFKA")?).await?),
            #[cfg(feature = "nats")]
            Self::Nats => Box::new(nats::Nats::open(&url("NATS")?).await?),
            #[cfg(feature = "rabbitmq")]
            Self::Rabbitmq => Box::new(rabbitmq::RabbitMq::open(&url("RABBITMQ")?).await?),
            #[cfg(feature = "redis")]
            Self::Redis => Box::new(redis::Redis::open(&url("REDIS")?).await?),
            #[cfg(feature = "sqs")]
            Self::Sqs => Box::new(sqs::Sqs::open(&url("SQS")?).await?),
        })
    }
}

fn url(broker: &str) -> anyhow::Result<String> {
    let variable = format!("COUNTERFOIL_TEST_{broker}_URL");
    std::env::var(&variable)
        .map_err(|_| anyhow::anyhow!("set {variable}, or run `cargo xtask bench brokers`"))
}

/// A message as it is on the wire.
#[derive(Debug, Clone)]
pub struct Record {
    /// Its id.
    pub id: String,
    /// By which it is ordered.
    pub key: String,
    /// The attributes, without a prefix.
    pub attributes: Vec<(&'static str, String)>,
    /// The payload.
    pub body: Bytes,
}

impl Record {
    /// What the relay sends for a message of the bench.
    pub fn of(n: u64) -> Self {
        let delivery = Delivery {
            id: MessageId::new(),
            aggregate: Some(Aggregate::new("order", n % 20_000)),
            version: i64::try_from(n).ok(),
            event_type: "OrderPaid".into(),
            payload: Payload::Json(format!("\"{n:0>254}\"")),
            seq: 0,
            shard: 0,
            epoch: 1,
            queue: Arc::from(crate::subject::QUEUE),
            headers: Headers::default(),
            attempt: 1,
            crashes: 0,
            created_at: chrono::Utc::now(),
            state: RowState::New,
            defect: None,
        };
        let source = From::default();
        let envelope = Envelope::of(&delivery, &source);
        let attributes = envelope.attributes.iter();
        Self {
            id: delivery.id.to_string(),
            key: format!("order/{}", n % 20_000),
            attributes: attributes.map(|(n, v)| (*n, v.to_string())).collect(),
            body: Bytes::copy_from_slice(envelope.body),
        }
    }
}

/// A broker with its driver and its bare client.
#[async_trait]
pub trait Broker: Send + Sync {
    /// Makes a topic that nobody has used, with what a group needs to get everything.
    async fn topic(&self) -> anyhow::Result<String>;

    /// The driver that sends to it.
    fn destination(&self, topic: &str) -> anyhow::Result<Arc<dyn Destination>>;

    /// The driver that receives from it.
    fn source(&self, topic: &str) -> anyhow::Result<Arc<dyn Source>>;

    /// The bare client: sends everything, [`WINDOW`] at a time, and waits for all confirmations.
    async fn publish(&self, topic: &str, records: &[Record]) -> anyhow::Result<()>;

    /// The bare client: receives so many, one INSERT and one acknowledgement for each.
    async fn consume(
        &self,
        topic: &str,
        messages: u64,
        database: &mut PgConnection,
    ) -> anyhow::Result<()>;
}

/// The group that consumes.
const GROUP: &str = "bench";

/// A name that nobody has used.
fn fresh_name() -> String {
    format!("bench-{}", MessageId::new().as_uuid().simple())
}

/// Where a key belongs: the same place for the same key.
fn partition(key: &str) -> u8 {
    let sum = key
        .bytes()
        .fold(0u32, |sum, b| sum.wrapping_mul(31).wrapping_add(b.into()));
    u8::try_from(sum % u32::from(PARTITIONS)).unwrap_or(0)
}

/// What a consumer does that nobody guards: one row, committed by itself.
async fn insert(database: &mut PgConnection, body: &[u8]) -> anyhow::Result<()> {
    let text = std::str::from_utf8(body)?;
    sqlx::query("INSERT INTO business (name, amount) VALUES ($1, 1)")
        .bind(text)
        .execute(database)
        .await?;
    Ok(())
}
