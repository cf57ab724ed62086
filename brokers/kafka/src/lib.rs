//! Kafka: a queue whose destination is a topic, or a consumer whose source is one.
//!
//! # Promise
//! Every message becomes a record of a topic, always under the same id. It counts as stored only
//! after the broker has confirmed it, with all replicas that are in sync. Every other answer, and
//! every way of getting none, has an outcome that says whether the record may exist. One message
//! that cannot pass does not spoil the others of its batch.
//!
//! Who receives gets every record at least once, and again until it is settled. The offset of the
//! group never passes a record that is not settled.
//!
//! # Order
//! The key of a record is what orders the message, so all of one aggregate are in one partition.
//! The relay has at most one message of an aggregate under way, and the next one is sent only after
//! this one is confirmed. One member of a group has a partition at a time.
//!
//! # When it is dropped
//! A destination closes its connections; a batch in flight is cut off, its records may exist, and
//! the relay offers them again under the same ids. A subscription leaves its group in the
//! background; what was not settled goes to the others.
//!
//! ```no_run
//! use counterfoil_kafka::{Kafka, KafkaSource, Settings, SourceSettings};
//!
//! let url = "kafka://127.0.0.1:9092";
//! let destination = Kafka::new(Settings::new(url, "orders"))?;
//! let source = KafkaSource::new(SourceSettings::new(url, "orders", "stock"))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # A record
//! | part | value |
//! |---|---|
//! | key | the attribute `partitionkey`; none without an aggregate |
//! | header `ce_` and the name of an attribute, such as `ce_id` | see [`counterfoil_core::envelope`] |
//! | header `content-type` | what the value is |
//! | the name of a header, such as `traceparent` | that header of the message |
//! | value | the payload, byte for byte |
//!
//! | module | what lives there |
//! |---|---|
//! | `settings` | what can be configured, and what is refused |
//! | `access` | addresses, TLS, and who we are |
//! | `topic` | the name of the topic that a message goes to |
//! | `record` | from a message to a record and back |
//! | `link` | the producer |
//! | `classify` | what an error means |
//! | `durability` | settings of a topic that lose data |
//! | `destination` | all of it together, for sending |
//! | `ledger` | what was fetched, who has it, and up to where everything is settled |
//! | `membership` | being a member of a group |
//! | `source` | all of it together, for receiving |

mod access;
mod classify;
mod destination;
mod durability;
mod ledger;
mod link;
mod membership;
mod record;
mod settings;
mod source;
mod topic;

pub use access::Mechanism;
pub use destination::Kafka;
pub use settings::{Settings, SettingsError, SourceSettings};
pub use source::KafkaSource;
