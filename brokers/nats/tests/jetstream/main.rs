//! What is special about NATS, on a real one. The rest is in the conformance suite.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    unreachable_pub,
    reason = "this is test code: a surprise ends the test"
)]

mod dead;
mod log;
mod login;
mod members;
mod refused;
mod streams;

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::stream::{Config, DiscardPolicy};
use async_nats::jetstream::{self, Context};
use chrono::DateTime;
use counterfoil_core::row::RowState;
use counterfoil_core::source::{Arrival, Settle, Source as _, Subscription};
use counterfoil_core::{
    Aggregate, Code, Delivery, Destination as _, Headers, MessageId, Outcome, Payload,
};
use counterfoil_nats::{Nats, NatsSource, Settings, SourceSettings};
use counterfoil_testkit::server::PrivateNats;

/// Long enough for a machine that is busy with other things.
pub const LONG: Duration = Duration::from_secs(30);
/// After which a silent member is replaced.
pub const WINDOW: Duration = Duration::from_secs(2);

/// A stream for this subject and its partitions.
pub fn stream(name: &str, subject: &str) -> Config {
    Config {
        name: name.into(),
        subjects: vec![subject.into()],
        discard: DiscardPolicy::New,
        ..Config::default()
    }
}

/// The client, to look at the server with.
pub async fn context(nats: &PrivateNats) -> Context {
    jetstream::new(async_nats::connect(nats.url()).await.unwrap())
}

/// Makes a stream.
pub async fn make(nats: &PrivateNats, config: Config) {
    context(nats).await.create_stream(config).await.unwrap();
}

/// A destination that waits however busy the machine is.
pub fn build(settings: Settings) -> Nats {
    Nats::new(settings.timeout(LONG).connect_timeout(LONG / 2)).unwrap()
}

/// A source that does, with a short window.
pub fn source(settings: SourceSettings) -> NatsSource {
    source_within(settings, WINDOW)
}

/// The same with another window.
pub fn source_within(settings: SourceSettings, window: Duration) -> NatsSource {
    let settings = settings.timeout(LONG).connect_timeout(LONG / 2);
    NatsSource::new(settings.ack_wait(window)).unwrap()
}

/// A new member.
pub async fn join(nats: &PrivateNats, subject: &str, partitions: u16) -> Box<dyn Subscription> {
    join_within(nats, subject, partitions, WINDOW).await
}

/// The same with another window.
pub async fn join_within(
    nats: &PrivateNats,
    subject: &str,
    partitions: u16,
    window: Duration,
) -> Box<dyn Subscription> {
    let settings = SourceSettings::new(nats.url(), subject, "stock").partitions(partitions);
    let source = source_within(settings, window);
    source.subscribe().await.unwrap()
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
pub async fn one(destination: &Nats, delivery: &Delivery) -> Outcome {
    let outcomes = destination.publish(std::slice::from_ref(delivery)).await;
    assert_eq!(outcomes.len(), 1);
    outcomes.into_iter().next().unwrap()
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

/// Publishes these versions of one aggregate, one after the other.
pub async fn publish(nats: &PrivateNats, subject: &str, versions: std::ops::Range<i64>) {
    let destination = build(Settings::new(nats.url(), subject));
    for version in versions {
        assert_eq!(
            one(&destination, &delivery(1, version)).await,
            Outcome::Stored
        );
    }
}

/// Receives so many.
pub async fn take(member: &mut Box<dyn Subscription>, count: usize) -> Vec<Arrival> {
    let mut all = Vec::new();
    while all.len() < count {
        let received = tokio::time::timeout(LONG, member.receive(count - all.len()));
        all.extend(received.await.expect("nothing comes").unwrap());
    }
    all
}

/// Settles: their effects are committed.
pub async fn done(member: &mut Box<dyn Subscription>, arrivals: &[Arrival]) {
    let settled = arrivals.iter().map(|a| (a.tag, Settle::Done)).collect();
    member.settle(settled).await.unwrap();
}

/// Their versions, in the order in which they came.
pub fn versions(arrivals: &[Arrival]) -> Vec<i64> {
    let version = |a: &Arrival| a.text("ce-aggregateversion").unwrap().parse().unwrap();
    arrivals.iter().map(version).collect()
}
