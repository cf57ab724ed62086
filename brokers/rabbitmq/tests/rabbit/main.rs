//! What the shared suite does not ask: RabbitMQ's own ways to say no.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    unreachable_pub,
    reason = "this is test code: a surprise ends the test"
)]

mod handover;
mod passive;
mod refused;
mod tls;

use std::sync::Arc;
use std::time::Duration;

use chrono::DateTime;
use counterfoil_core::row::RowState;
use counterfoil_core::{
    Aggregate, Code, Delivery, Destination as _, Headers, MessageId, Outcome, Payload,
};
use counterfoil_rabbitmq::{RabbitMq, Settings};
use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties};

/// Long enough for a machine that is busy with other things.
pub const LONG: Duration = Duration::from_secs(30);

/// A destination that waits however busy the machine is.
pub fn build(settings: Settings) -> RabbitMq {
    let settings = settings.timeout(LONG * 2).connect_timeout(LONG);
    RabbitMq::new(settings).unwrap()
}

/// An ordinary message.
pub fn delivery(aggregate: i64) -> Delivery {
    Delivery {
        seq: aggregate,
        shard: 0,
        epoch: 1,
        id: MessageId::new(),
        queue: Arc::from("q"),
        aggregate: Some(Aggregate::new("order", aggregate)),
        version: Some(1),
        event_type: "OrderPaid".into(),
        payload: Payload::Json("{}".into()),
        headers: Headers::new(),
        attempt: 1,
        crashes: 0,
        created_at: DateTime::UNIX_EPOCH,
        state: RowState::New,
        defect: None,
    }
}

/// A message of this many bytes.
pub fn of_size(aggregate: i64, bytes: usize) -> Delivery {
    Delivery {
        payload: Payload::Opaque(vec![b'x'; bytes].into()),
        ..delivery(aggregate)
    }
}

/// Offers one message.
pub async fn one(destination: &RabbitMq, delivery: &Delivery) -> Outcome {
    let mut outcomes = destination.publish(std::slice::from_ref(delivery)).await;
    assert_eq!(outcomes.len(), 1);
    outcomes.remove(0)
}

/// What came of it, in two words.
pub fn label_and_code(outcome: &Outcome) -> (&'static str, &str) {
    let code = match outcome {
        Outcome::Retry { code, .. }
        | Outcome::DestinationRefused { code, .. }
        | Outcome::Refused { code, .. } => Some(code),
        _ => None,
    };
    (outcome.label(), code.map_or("", Code::as_str))
}

/// A name that no other test uses.
pub fn own_name() -> String {
    format!("cf-test-{}", MessageId::new())
}

/// A way to RabbitMQ that is not ours.
pub async fn channel(url: &str) -> (Connection, Channel) {
    let connection = Connection::connect(url, ConnectionProperties::default());
    let connection = connection.await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    (connection, channel)
}

/// A queue that goes when nobody is connected to it any more.
pub async fn passing_queue(channel: &Channel, name: &str, arguments: FieldTable) {
    let options = QueueDeclareOptions {
        exclusive: false,
        auto_delete: true,
        ..QueueDeclareOptions::default()
    };
    let declared = channel.queue_declare(name.into(), options, arguments).await;
    declared.unwrap();
}

/// How many messages lie in a queue.
pub async fn count(channel: &Channel, name: &str) -> u32 {
    let options = QueueDeclareOptions {
        passive: true,
        ..QueueDeclareOptions::default()
    };
    let queue = channel.queue_declare(name.into(), options, FieldTable::default());
    queue.await.unwrap().message_count()
}
