//! The conformance suite of brokers on Redis Streams: with partitions, and with one stream for all.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "this is test code: a surprise ends the test"
)]

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use counterfoil_core::source::Source;
use counterfoil_core::{Destination, MessageId};
use counterfoil_redis_streams::{RedisStreams, RedisStreamsSource, Settings, SourceSettings};
use counterfoil_testkit::broker::harness::{BrokerHarness, Door, Foreign, Manner};
use counterfoil_testkit::server::{self, PrivateRedis};
use redis::aio::MultiplexedConnection;
use tokio::sync::Mutex;

mod partitions {
    use super::*;
    counterfoil_testkit::broker_suite!(RedisHarness<4>);
}

mod one_stream {
    use super::*;
    counterfoil_testkit::broker_suite!(RedisHarness<0>);
}

/// Small, so that the suite is quick.
const LARGEST: usize = 2 * 1024 * 1024;
/// A busy machine must not look like a dead consumer.
const MISSED_AFTER: Duration = Duration::from_secs(5);
/// Long enough for a machine that is busy with other things.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Short, so that an outage is noticed while a test waits.
const HASTY: Duration = Duration::from_secs(4);

/// Redis with so many partitions, or with one stream.
struct RedisHarness<const PARTITIONS: u16> {
    url: String,
    private: Option<Mutex<PrivateRedis>>,
    topics: Mutex<Vec<String>>,
}

impl<const PARTITIONS: u16> RedisHarness<PARTITIONS> {
    fn at(url: String, private: Option<PrivateRedis>) -> Self {
        Self {
            url,
            private: private.map(Mutex::new),
            topics: Mutex::default(),
        }
    }

    fn door(url: &str, topic: &str) -> Door {
        Door {
            destination: Self::to(url, topic, HASTY),
            source: Self::from(url, topic, "stock", HASTY),
        }
    }

    fn timeout(&self) -> Duration {
        match self.private {
            Some(_) => HASTY,
            None => TIMEOUT,
        }
    }

    fn to(url: &str, topic: &str, timeout: Duration) -> Arc<dyn Destination> {
        let mut settings = Settings::new(url, topic)
            .timeout(timeout)
            .connect_timeout(timeout / 2)
            .max_payload(LARGEST);
        if PARTITIONS > 0 {
            settings = settings.partitions(PARTITIONS);
        }
        Arc::new(RedisStreams::new(settings).unwrap())
    }

    fn from(url: &str, topic: &str, group: &str, timeout: Duration) -> Arc<dyn Source> {
        let mut settings = SourceSettings::new(url, topic, group)
            .timeout(timeout)
            .connect_timeout(timeout / 2)
            .missed_after(MISSED_AFTER);
        if PARTITIONS > 0 {
            settings = settings.partitions(PARTITIONS);
        }
        Arc::new(RedisStreamsSource::new(settings).unwrap())
    }

    async fn connection(&self) -> MultiplexedConnection {
        let client = redis::Client::open(self.url.as_str()).unwrap();
        client.get_multiplexed_async_connection().await.unwrap()
    }

    async fn private(&self) -> tokio::sync::MutexGuard<'_, PrivateRedis> {
        self.private.as_ref().unwrap().lock().await
    }
}

#[async_trait]
impl<const PARTITIONS: u16> BrokerHarness for RedisHarness<PARTITIONS> {
    async fn start() -> Option<Self> {
        Some(Self::at(server::redis()?, None))
    }

    async fn start_private() -> Option<Self> {
        let redis = PrivateRedis::start_durable().await?;
        Some(Self::at(redis.url(), Some(redis)))
    }

    async fn clean_up(&self) {
        if self.private.is_some() {
            return;
        }
        let mut connection = self.connection().await;
        for topic in &*self.topics.lock().await {
            let ours: Vec<String> = redis::cmd("KEYS")
                .arg(format!("{topic}*"))
                .query_async(&mut connection)
                .await
                .unwrap();
            for key in ours {
                let _: i64 = redis::cmd("DEL")
                    .arg(key)
                    .query_async(&mut connection)
                    .await
                    .unwrap();
            }
        }
    }

    fn manner(&self) -> Manner {
        Manner {
            prefix: "ce_",
            groups: true,
            window: MISSED_AFTER,
            keeps_data: true,
        }
    }

    fn largest_payload(&self) -> Option<usize> {
        Some(LARGEST)
    }

    async fn topic(&self) -> String {
        let topic = format!("suite-{}", MessageId::new());
        self.topics.lock().await.push(topic.clone());
        topic
    }

    async fn destination(&self, topic: &str) -> Arc<dyn Destination> {
        Self::to(&self.url, topic, self.timeout())
    }

    async fn source(&self, topic: &str, group: &str) -> Arc<dyn Source> {
        Self::from(&self.url, topic, group, self.timeout())
    }

    async fn put(&self, topic: &str, message: &Foreign) {
        let stream = match PARTITIONS {
            0 => topic.to_owned(),
            _ => format!("{topic}.1"),
        };
        let mut add = redis::cmd("XADD");
        add.arg(stream).arg("*");
        if let Some(key) = &message.key {
            add.arg("ce_partitionkey").arg(&key[..]);
        }
        for (name, value) in &message.headers {
            add.arg(name).arg(&value[..]);
        }
        add.arg("data").arg(&message.body[..]);
        let _: String = add.query_async(&mut self.connection().await).await.unwrap();
    }

    async fn dead_letters(&self, topic: &str, _group: &str) -> Vec<Foreign> {
        type Raw = Vec<(String, Vec<(String, Vec<u8>)>)>;
        let all: Raw = redis::cmd("XRANGE")
            .arg(format!("{topic}.DLQ"))
            .arg("-")
            .arg("+")
            .query_async(&mut self.connection().await)
            .await
            .unwrap();
        let foreign = |(_, fields): (String, Vec<(String, Vec<u8>)>)| {
            let mut letter = Foreign::default();
            for (name, value) in fields {
                let value = Bytes::from(value);
                if name == "ce_partitionkey" {
                    letter.key = Some(value.clone());
                }
                match name.as_str() {
                    "data" => letter.body = value,
                    _ => letter.headers.push((name, value)),
                }
            }
            letter
        };
        all.into_iter().map(foreign).collect()
    }

    async fn nowhere(&self) -> Door {
        Self::door("redis://127.0.0.1:1/", "nowhere")
    }

    async fn stranger(&self, topic: &str) -> Option<Door> {
        let url = self.url.replacen("redis://", "redis://nobody:wrong@", 1);
        Some(Self::door(&url, topic))
    }

    async fn absent(&self) -> Option<Door> {
        // Redis makes a stream when the first entry comes.
        None
    }

    async fn kill(&self) {
        self.private().await.kill().await;
    }

    async fn restart(&self) {
        self.private().await.restart().await;
    }

    async fn pause(&self) {
        self.private().await.pause().await;
    }

    async fn resume(&self) {
        self.private().await.resume();
    }
}
