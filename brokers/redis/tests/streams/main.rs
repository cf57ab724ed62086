//! Messages on their way into streams of a real Redis.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    unreachable_pub,
    reason = "this is test code: a surprise ends the test"
)]

mod broken;
mod entries;
mod log;
mod refused;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::DateTime;
use counterfoil_core::row::RowState;
use counterfoil_core::{
    Aggregate, Code, Delivery, Destination as _, Headers, MessageId, Outcome, Payload,
};
use counterfoil_redis_streams::{RedisStreams, Settings};
use counterfoil_testkit::server::PrivateRedis;

/// Long enough for a machine that is busy with other things.
pub const LONG: Duration = Duration::from_secs(20);

/// An entry: its fields by name, none of them twice.
pub type Entry = BTreeMap<Vec<u8>, Vec<u8>>;

/// A destination that waits for Redis however busy the machine is.
pub fn patient(url: &str, stream: &str) -> RedisStreams {
    build(Settings::new(url, stream))
}

/// The same with other settings.
pub fn build(settings: Settings) -> RedisStreams {
    let settings = settings.timeout(LONG * 2).connect_timeout(LONG);
    RedisStreams::new(settings).unwrap()
}

/// An ordinary message.
pub fn delivery(aggregate: i64, version: i64) -> Delivery {
    Delivery {
        seq: aggregate * 1_000 + version,
        shard: 0,
        epoch: 1,
        id: MessageId::new(),
        queue: Arc::from("q"),
        aggregate: Some(Aggregate::new("order", aggregate)),
        version: Some(version),
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
pub fn of_size(bytes: usize) -> Delivery {
    Delivery {
        payload: Payload::Opaque(vec![b'x'; bytes].into()),
        ..delivery(1, 1)
    }
}

/// Offers one message.
pub async fn one(destination: &RedisStreams, delivery: &Delivery) -> Outcome {
    let outcomes = destination.publish(std::slice::from_ref(delivery)).await;
    assert_eq!(outcomes.len(), 1);
    outcomes.into_iter().next().unwrap()
}

/// Offers it again and again, as the relay does, until it is stored.
pub async fn until_stored(destination: &RedisStreams, delivery: &Delivery) {
    let stored = async {
        loop {
            match one(destination, delivery).await {
                Outcome::Stored => return,
                _ => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    };
    tokio::time::timeout(LONG, stored)
        .await
        .expect("not stored");
}

/// All entries of a stream, oldest first.
pub async fn entries(url: &str, stream: &str) -> Vec<Entry> {
    let client = redis::Client::open(url).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    type Raw = Vec<(String, Vec<(Vec<u8>, Vec<u8>)>)>;
    let all: Raw = redis::cmd("XRANGE")
        .arg(stream)
        .arg("-")
        .arg("+")
        .query_async(&mut connection)
        .await
        .unwrap();
    all.into_iter()
        .map(|(_, fields)| {
            let count = fields.len();
            let entry: Entry = fields.into_iter().collect();
            assert_eq!(entry.len(), count, "a field stands twice");
            entry
        })
        .collect()
}

/// One field of every entry, as text.
pub async fn column(url: &str, stream: &str, field: &str) -> Vec<String> {
    let text = |entry: &Entry| String::from_utf8(entry[field.as_bytes()].clone()).unwrap();
    entries(url, stream).await.iter().map(text).collect()
}

/// Why it failed.
pub fn code(outcome: &Outcome) -> Option<&Code> {
    match outcome {
        Outcome::Retry { code, .. }
        | Outcome::DestinationRefused { code, .. }
        | Outcome::Refused { code, .. } => Some(code),
        _ => None,
    }
}

/// What came of it, in two words.
pub fn label_and_code(outcome: &Outcome) -> (&'static str, &str) {
    (outcome.label(), code(outcome).map_or("", Code::as_str))
}

/// Says something to Redis that it must agree to.
pub async fn ok(redis: &PrivateRedis, command: &str) {
    assert_eq!(redis.say(command).await, "+OK", "{command}");
}
