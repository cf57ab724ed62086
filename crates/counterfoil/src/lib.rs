#![doc = include_str!("../docs/guide.md")]

mod after;
mod builder;
mod database;
pub mod discovery;
pub mod guard;
mod handle;
pub mod inbox;
mod once;
mod tx;
pub mod write;

pub use after::{Current, current};
pub use builder::{Builder, Error};
pub use counterfoil_core::guard::{Fingerprint, Key, Rules};
pub use counterfoil_core::message::{
    Aggregate, Headers, Message, MessageError, MessageId, Payload, header,
};
pub use counterfoil_core::policy::Backoff;
pub use counterfoil_core::store::{Enqueued, Retention, StoreError};
pub use counterfoil_core::{
    Capabilities, Code, Delivery, Destination, Outcome, desk, explain, source,
};
/// Calls of a dependency that may be tried again, inside limits: retries, budget, breaker, bulkhead.
pub use counterfoil_engine::pipeline as resilience;
pub use counterfoil_engine::{
    HandlerAnswer, Nudge, OnPark, QueueSpec, Settings, SettingsError, Task, TaskError, TaskOptions,
};
pub use counterfoil_macros::{guarded, task};
pub use database::Database;
pub use guard::Guard;
pub use handle::Counterfoil;
pub use once::{Once, insert_once};
#[doc(hidden)]
pub use tx::Slot;
pub use tx::Tx;
pub use write::Applied;

/// Signed webhooks as a destination.
#[cfg(feature = "webhook")]
pub use counterfoil_webhook as webhook;

/// Kafka as a destination and a source.
#[cfg(feature = "kafka")]
pub use counterfoil_kafka as kafka;

/// NATS JetStream as a destination and a source.
#[cfg(feature = "nats")]
pub use counterfoil_nats as nats;

/// RabbitMQ as a destination and a source.
#[cfg(feature = "rabbitmq")]
pub use counterfoil_rabbitmq as rabbitmq;

/// Amazon SQS as a destination and a source.
#[cfg(feature = "sqs")]
pub use counterfoil_sqs as sqs;

/// Redis Streams as a destination and a source.
#[cfg(feature = "redis-streams")]
pub use counterfoil_redis_streams as redis_streams;

/// PostgreSQL.
#[cfg(feature = "postgres")]
pub use database::Postgres;

/// MySQL and MariaDB.
#[cfg(feature = "mysql")]
pub use database::MySql;

/// SQLite.
#[cfg(feature = "sqlite")]
pub use database::Sqlite;
