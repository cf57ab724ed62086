//! NATS JetStream: a queue whose destination, or a consumer whose source, is a subject that a stream
//! keeps.
//!
//! # Promise
//! Every message is published under its id, and counts as stored only after the stream has answered
//! with its number. Every other answer, and every way of getting none, has an outcome that says
//! whether it may be stored. One message that cannot pass does not spoil the others of its batch.
//! What is received is handed out again until it is settled, and settling is confirmed by the server.
//!
//! # Order
//! The relay has at most one message of an aggregate under way, so a stream holds the messages of a
//! key in order. Keys are spread over the partitions of a subject. The server gives the messages of
//! a partition to one member of a group at a time. When the member changes, the new one hands
//! nothing on before it has everything that the old one did not settle.
//!
//! # When it is dropped
//! The connection closes. A batch in flight is cut off, and may be stored: the relay offers it again
//! under the same ids. What a dropped subscription did not settle is handed out again after
//! `ack_wait`.
//!
//! ```no_run
//! use counterfoil_nats::{Nats, NatsSource, Settings, SourceSettings};
//!
//! let destination = Nats::new(Settings::new("nats://127.0.0.1:4222", "orders"))?;
//! let source = NatsSource::new(SourceSettings::new("nats://127.0.0.1:4222", "orders", "stock"))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # A message
//! | where | what |
//! |---|---|
//! | subject | the configured one, with more than one partition `SUBJECT.N` |
//! | header `Nats-Msg-Id` | the id of the message |
//! | headers `ce-` and the name of an attribute, such as `ce-id` | see [`counterfoil_core::envelope`] |
//! | headers `content-type` and `ce-datacontenttype` | what the payload is |
//! | the name of a header, such as `traceparent` | that header of the message |
//! | payload | the payload, byte for byte |
//!
//! Values are percent-encoded as CloudEvents demands.
//!
//! | module | what lives there |
//! |---|---|
//! | `access` | where the server is, and who we are |
//! | `settings`, `source_settings` | what can be configured, and what is refused |
//! | `subject` | the subjects of partitions |
//! | `percent` | texts in headers |
//! | `entry` | from a message to what is published, and back |
//! | `link` | the connection |
//! | `streams` | finding and making streams |
//! | `classify` | what an answer means |
//! | `durability` | settings of streams that lose data |
//! | `destination` | publishing |
//! | `source`, `subscription` | receiving |
//! | `pump`, `state`, `partition`, `members` | what a subscription does by itself |
//! | `dead` | dead letters |

mod access;
mod classify;
mod dead;
mod destination;
mod durability;
mod entry;
mod link;
mod members;
mod partition;
mod percent;
mod pump;
mod settings;
mod source;
mod source_settings;
mod state;
mod streams;
mod subject;
mod subscription;

pub use destination::Nats;
pub use settings::{Create, Settings, SettingsError};
pub use source::NatsSource;
pub use source_settings::SourceSettings;
