//! What a relay process says to the receiver in the test's process, one JSON object a line.
//!
//! One connection carries one offer: the relay says [`Call`], the receiver answers [`Reply`], the
//! relay says [`Seen`]. A receiver that hangs up in between leaves the relay in doubt, as a network
//! would.

use counterfoil_core::{Delivery, MessageId};
use serde::{Deserialize, Serialize};

/// One message as it is offered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// The number of its row.
    pub seq: i64,
    /// The shard of its aggregate.
    pub shard: u16,
    /// The fencing number under which it is offered.
    pub epoch: i64,
    /// Its identity.
    pub id: MessageId,
    /// The queue it waits in.
    pub queue: String,
    /// What its order is kept for.
    pub aggregate: String,
    /// The producer's number within the aggregate.
    pub version: i64,
    /// What happened.
    pub event: String,
    /// Which attempt this is.
    pub attempt: u32,
}

impl From<&Delivery> for Item {
    fn from(delivery: &Delivery) -> Self {
        Self {
            seq: delivery.seq,
            shard: delivery.shard,
            epoch: delivery.epoch,
            id: delivery.id,
            queue: delivery.queue.to_string(),
            aggregate: delivery
                .aggregate
                .as_ref()
                .map(|a| a.id.clone())
                .unwrap_or_default(),
            version: delivery.version.unwrap_or_default(),
            event: delivery.event_type.clone(),
            attempt: delivery.attempt,
        }
    }
}

/// What the receiver makes of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// Stored: this is the delivery.
    Stored,
    /// Not stored; it may pass another time.
    Failed,
    /// Not stored, and it never will be.
    Refused,
    /// Nobody is at home: certainly not stored, and nobody's fault.
    Away,
    /// The connection is closed without an answer. Nothing is stored.
    HungUp,
}

/// Messages are offered.
#[derive(Debug, Serialize, Deserialize)]
pub struct Call {
    /// The process that offers.
    pub relay: String,
    /// The messages.
    pub items: Vec<Item>,
}

/// The answer, one for each message.
#[derive(Debug, Serialize, Deserialize)]
pub struct Reply {
    /// In the order of the call.
    pub verdicts: Vec<Verdict>,
}

/// The answer has arrived.
#[derive(Debug, Serialize, Deserialize)]
pub struct Seen {}

/// A value as one line.
pub fn line<T: Serialize>(value: &T) -> String {
    let mut text = serde_json::to_string(value).expect("no value of ours is without a JSON form");
    text.push('\n');
    text
}
