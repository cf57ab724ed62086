//! Amazon SQS: a queue whose destination, or a consumer whose source, is there.
//!
//! # Promise
//! Every message of the outbox becomes one message of a queue, always under the same id. It counts
//! as stored only after SQS has said so for this very message. Every other answer, and every way of
//! getting none, has an outcome that says whether it may be stored. What is received is kept from
//! others until it is settled, and deleted only then.
//!
//! # Order
//! A FIFO queue (`orders.fifo`) keeps the messages of an aggregate in order and with one consumer at
//! a time: its group is the partition key. It takes a message that it had within five minutes for a
//! repeat. A standard queue promises neither.
//!
//! # When it is dropped
//! A request in flight is cut off, and its messages may be stored: the relay offers them again under
//! the same ids. What a subscription has not settled comes again after the visibility timeout.
//!
//! ```no_run
//! use counterfoil_sqs::{Settings, SourceSettings, Sqs, SqsSource};
//!
//! let destination = Sqs::new(Settings::new("orders.fifo").region("eu-west-1"))?;
//! let source = SqsSource::new(SourceSettings::new("orders.fifo").region("eu-west-1"))?;
//! # Ok::<(), counterfoil_sqs::SettingsError>(())
//! ```
//!
//! # A message
//! SQS allows ten attributes.
//!
//! | attribute | value |
//! |---|---|
//! | `ce_specversion`, `ce_id`, `ce_source`, `ce_type`, `ce_time`, `ce_subject`, `ce_partitionkey` | see [`counterfoil_core::envelope`] |
//! | `content-type` | what the body is |
//! | `counterfoil-headers` | a JSON object: the other attributes of the envelope with `ce_`, and the message's own headers |
//! | `counterfoil-body` | `base64` or `empty`, when the body is not the payload to the letter |
//!
//! | module | what lives there |
//! |---|---|
//! | `settings`, `place` | what can be configured, and what is refused |
//! | `link` | the way to a queue |
//! | `parcel` | a message as SQS carries it |
//! | `entry` | from a message of the outbox to one of SQS |
//! | `send` | requests of up to ten messages |
//! | `classify` | what an answer means |
//! | `durability` | settings of a queue that lose data |
//! | `destination` | all of it together |
//! | `arrival` | from a message of SQS to an arrival |
//! | `desk` | what is out with the caller, and the signs of life for it |
//! | `settle`, `dead` | how receptions end |
//! | `source` | receiving |
//! | `redrive` | bringing dead letters back |

mod arrival;
mod classify;
mod dead;
mod desk;
mod destination;
mod durability;
mod entry;
mod link;
mod parcel;
mod place;
mod redrive;
mod send;
mod settings;
mod settle;
mod source;
mod width;

pub use destination::Sqs;
pub use redrive::{RedriveError, redrive_dead_letters};
pub use settings::{Settings, SettingsError, SourceSettings};
pub use source::SqsSource;
