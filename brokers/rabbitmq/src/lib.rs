//! RabbitMQ: a queue whose destination, or a consumer whose source, is there.
//!
//! # Promise
//! Every message is published as persistent, always under the same id. It counts as stored only after
//! RabbitMQ has confirmed it and did not return it: an exchange without a queue stores nothing. Every
//! other answer, and every way of getting none, has an outcome that says whether the message may be
//! there. What is received is acknowledged only when the caller says so.
//!
//! # Order
//! A topic has 64 routing keys, and the partition key of a message chooses one. A group binds them to
//! its queues. Each queue has a single active consumer, so the messages of a key are with one consumer
//! at a time, in the order in which they were stored. A message that is given back, or delayed, comes
//! behind those that are under way.
//!
//! # When it is dropped
//! Connections close at once. A batch in flight is cut off, and its messages may exist: the relay
//! offers them again under the same ids. What was received and not settled goes to others.
//!
//! ```no_run
//! use counterfoil_rabbitmq::{RabbitMq, Settings};
//!
//! let settings = Settings::new("amqp://relay@127.0.0.1:5672/", "orders")
//!     .password(std::env::var("RABBITMQ_PASSWORD")?);
//! let destination = RabbitMq::new(settings)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # A message
//! | part | value |
//! |---|---|
//! | header `cloudEvents_` and the name of an attribute, such as `cloudEvents_id` | see [`counterfoil_core::envelope`] |
//! | header under its own name, such as `traceparent` | that header of the message |
//! | property `content-type` | what the body is |
//! | property `message-id` | the id again |
//! | property `delivery-mode` | 2, persistent |
//! | body | the payload, byte for byte |
//!
//! | module | what lives there |
//! |---|---|
//! | `settings`, `access` | what can be configured, and what is refused |
//! | `names` | exchanges and queues, and which message goes where |
//! | `link` | the connection |
//! | `outgoing` | from a message to what is published |
//! | `publisher` | publishing with confirms |
//! | `classify` | what an answer means |
//! | `destination` | all of that together |
//! | `topology` | what is declared |
//! | `durability` | queues that lose messages |
//! | `arrival` | from what was handed out to an arrival |
//! | `members` | who reads which partition |
//! | `lane`, `subscription`, `source` | receiving |

mod access;
mod arrival;
mod classify;
mod destination;
mod durability;
mod lane;
mod link;
mod members;
mod names;
mod outgoing;
mod publisher;
mod settings;
mod source;
mod subscription;
mod topology;

pub use destination::RabbitMq;
pub use settings::{Settings, SettingsError, SourceSettings};
pub use source::RabbitMqSource;
