//! Redis Streams: a queue whose destination is a stream, and a stream as a source of messages.
//!
//! # Promise
//! Every message becomes one entry of a stream, always under the same id. It counts as stored only
//! after Redis has answered with the number of the entry. Every other answer, and every way of
//! getting none, has an outcome that says whether the entry may exist. One message that cannot pass
//! does not spoil the others of its batch.
//!
//! A source hands every entry out at least once, and again until it is acknowledged, whoever dies
//! meanwhile. Nothing is trimmed that a group still needs, and nothing at all unless it is asked for.
//!
//! # Order
//! The relay has at most one message of an aggregate under way. The next one is sent only after
//! Redis has confirmed this one, so it stands behind it in the stream, however many batches are
//! under way and whatever connection they use. A copy that was sent before a connection broke may
//! arrive late, even behind later messages. It has the id of a message that is already there.
//!
//! A source keeps that order with partitions: each has one consumer of the group at a time. Members
//! of a group that share one stream get the messages of an aggregate side by side.
//!
//! # When it is dropped
//! The connection closes. A batch in flight is cut off, and its entries may exist: the relay offers
//! them again under the same ids. What a subscription has not settled is handed out again.
//!
//! ```no_run
//! use counterfoil_redis_streams::{RedisStreams, Settings};
//!
//! let settings = Settings::new("redis://127.0.0.1:6379/0", "orders")
//!     .password(std::env::var("REDIS_PASSWORD")?);
//! let destination = RedisStreams::new(settings)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # An entry
//! | field | value |
//! |---|---|
//! | `ce_` and the name of an attribute, such as `ce_id` | see [`counterfoil_core::envelope`] |
//! | `content-type` | what `data` is |
//! | the name of a header, such as `traceparent` | that header of the message |
//! | `data` | the payload, byte for byte |
//!
//! | module | what lives there |
//! |---|---|
//! | `settings`, `source_settings` | what can be configured, and what is refused |
//! | `address`, `server` | where Redis is, and connections to it |
//! | `stream` | the name of the stream that a message goes to |
//! | `entry` | from a message to `XADD` |
//! | `partition` | which of several streams |
//! | `link` | the connection of a destination |
//! | `classify` | what an answer means |
//! | `durability` | settings of Redis that lose data |
//! | `destination` | all of it together |
//! | `source` | a source, and membership in its group |
//! | `group` | what a member says to Redis |
//! | `hold` | what a member has |
//! | `pump`, `keeper` | the tasks of a member: reading, and signs of life |
//! | `settle` | how receptions end |
//! | `arrival` | from an entry to what is handed out, and to a dead letter |

mod address;
mod arrival;
mod classify;
mod destination;
mod durability;
mod entry;
mod group;
mod hold;
mod keeper;
mod link;
mod partition;
mod pump;
mod server;
mod settings;
mod settle;
mod source;
mod source_settings;
mod stream;

pub use destination::RedisStreams;
pub use settings::{Settings, SettingsError};
pub use source::RedisStreamsSource;
pub use source_settings::SourceSettings;
