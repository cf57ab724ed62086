//! Receiving from a real Redis: what the suite for all brokers does not ask.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    unreachable_pub,
    reason = "this is test code: a surprise ends the test"
)]

mod groups;
mod refused;
mod tls;
mod trimming;

use std::time::Duration;

use counterfoil_core::MessageId;
use counterfoil_core::source::{Arrival, Settle, Source as _, SourceError, Subscription};
use counterfoil_redis_streams::{RedisStreamsSource, SourceSettings};
use counterfoil_testkit::server;
use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, cmd};
use tokio::time::{Instant, timeout};

/// Long enough for a machine that is busy with other things.
pub const LONG: Duration = Duration::from_secs(60);
/// Longer than any test takes: nobody is missed.
pub const NEVER: Duration = Duration::from_secs(3_600);

/// A stream of a test's own.
pub struct Stream {
    /// Its Redis.
    pub url: String,
    /// Its name, or that of its partitions.
    pub name: String,
    connection: MultiplexedConnection,
}

impl Stream {
    /// Absent: skip the test.
    pub async fn new() -> Option<Self> {
        let url = server::redis()?;
        Some(Self::at(&url).await)
    }

    /// On this server.
    pub async fn at(url: &str) -> Self {
        let client = redis::Client::open(url).unwrap();
        Self {
            url: url.to_owned(),
            name: format!("receiving-{}", MessageId::new()),
            connection: client.get_multiplexed_async_connection().await.unwrap(),
        }
    }

    /// The settings of a source that waits for Redis however busy the machine is.
    pub fn settings(&self, group: &str) -> SourceSettings {
        SourceSettings::new(&self.url, &self.name, group)
            .timeout(LONG)
            .connect_timeout(LONG / 2)
            .missed_after(NEVER)
    }

    /// Says one command.
    pub async fn say<T: FromRedisValue>(&self, words: &[&str]) -> T {
        let mut command = cmd(words[0]);
        command.arg(&words[1..]);
        let mut connection = self.connection.clone();
        command.query_async(&mut connection).await.unwrap()
    }

    /// Adds entries whose bodies are these.
    pub async fn add(&self, stream: &str, bodies: &[&str]) {
        for body in bodies {
            let _: String = self.say(&["XADD", stream, "*", "data", body]).await;
        }
    }

    /// Removes everything of this test.
    pub async fn clean_up(self) {
        let keys: Vec<String> = self.say(&["KEYS", &format!("{}*", self.name)]).await;
        for key in keys {
            let _: i64 = self.say(&["DEL", &key]).await;
        }
    }
}

/// A new member.
pub async fn join(settings: SourceSettings) -> Box<dyn Subscription> {
    let source = RedisStreamsSource::new(settings).unwrap();
    source.subscribe().await.unwrap()
}

/// Receives so many.
pub async fn take(member: &mut dyn Subscription, count: usize) -> Vec<Arrival> {
    let mut all = Vec::new();
    while all.len() < count {
        let received = timeout(LONG, member.receive(count - all.len())).await;
        all.extend(received.expect("nothing comes").unwrap());
    }
    all
}

/// Their bodies.
pub fn bodies(arrivals: &[Arrival]) -> Vec<String> {
    let text = |a: &Arrival| String::from_utf8(a.body.to_vec()).unwrap();
    arrivals.iter().map(text).collect()
}

/// Settles all of them in the same way.
pub async fn settle(
    member: &mut dyn Subscription,
    arrivals: &[Arrival],
    how: Settle,
) -> Result<(), SourceError> {
    let all = arrivals.iter().map(|a| (a.tag, how.clone())).collect();
    member.settle(all).await
}

/// Waits until something is so.
pub async fn until(what: &str, mut look: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !look().await {
        assert!(Instant::now() < deadline, "not within {LONG:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// An ordinary message.
pub fn delivery() -> counterfoil_core::Delivery {
    use counterfoil_core::row::RowState;
    use counterfoil_core::{Aggregate, Headers, Payload};

    counterfoil_core::Delivery {
        seq: 1,
        shard: 0,
        epoch: 1,
        id: MessageId::new(),
        queue: std::sync::Arc::from("q"),
        aggregate: Some(Aggregate::new("order", 1)),
        version: Some(1),
        event_type: "OrderPaid".into(),
        payload: Payload::Json("{}".into()),
        headers: Headers::new(),
        attempt: 1,
        crashes: 0,
        created_at: chrono::DateTime::UNIX_EPOCH,
        state: RowState::New,
        defect: None,
    }
}
