//! The nouns and rules of Counterfoil, without any I/O.
//!
//! # Promise
//! Nothing in this crate opens a socket, reads a file or asks for the time of day behind the
//! caller's back. Policies are pure functions of (state, event, now); drivers implement the traits.
//!
//! | module | what lives there |
//! |---|---|
//! | [`message`] | what an application enqueues |
//! | [`row`] | what a store hands to the relay, and the rules that make a delivery of it |
//! | [`envelope`] | how a message looks on every broker |
//! | [`code`] | the reasons that operators see |
//! | [`policy`] | backoff |
//! | [`destination`] | where deliveries go, and what may come back |
//! | [`source`] | where messages come from, and how a reception ends |
//! | [`store`] | the seam between engine and database |
//! | [`desk`] | the seam between operators and database |
//! | [`balance`] | who should own which shard |
//! | [`fit`] | how much a read brings into memory |
//! | [`mark`] | how far a reader may skip ahead without losing or reordering anything |
//! | [`schema`] | migrations, and which program may read which schema |
//! | [`guard`] | request idempotency: keys, records, rules |
//! | [`inbox`] | which message takes effect, and which waits, is a repeat, or came too late |
//! | [`incoming`] | from what a broker handed out to what a consumer processes |
//! | [`route`] | which destinations an event type goes to |
//! | [`template`] | names that depend on the message |
//! | [`host`] | whether a server is on this machine |
//! | [`error_text`] | how much of an error is kept |
//! | [`hex`] | bytes as hexadecimal digits |
//! | [`span`] | lengths of time as databases take them |

pub mod balance;
pub mod code;
pub mod desk;
pub mod destination;
pub mod envelope;
pub mod error_text;
pub mod explain;
pub mod fit;
pub mod guard;
pub mod hex;
pub mod host;
pub mod inbox;
pub mod incoming;
pub mod mark;
pub mod message;
pub mod policy;
pub mod presence;
pub mod route;
pub mod row;
pub mod schema;
pub mod source;
pub mod span;
pub mod store;
pub mod template;

pub use code::Code;
pub use destination::{Capabilities, Destination, Outcome};
pub use message::{Aggregate, Headers, Message, MessageError, MessageId, Payload};
pub use row::{Delivery, RawRow};
pub use store::{Store, StoreError};

/// Any error, boxed: the source of an error of ours.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
