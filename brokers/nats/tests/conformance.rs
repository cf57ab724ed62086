//! The conformance suite of brokers on a real NATS.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "this is test code: a surprise ends the test"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_nats::jetstream::stream::{Config, DiscardPolicy};
use async_nats::jetstream::{self, Context};
use async_nats::{ConnectOptions, HeaderMap, HeaderName, HeaderValue, ServerAddr};
use async_trait::async_trait;
use bytes::Bytes;
use counterfoil_core::Destination;
use counterfoil_core::source::Source;
use counterfoil_nats::{Nats, NatsSource, Settings, SourceSettings};
use counterfoil_testkit::broker::harness::{BrokerHarness, Door, Foreign, Manner};
use counterfoil_testkit::broker_suite;
use counterfoil_testkit::server::{self, PrivateNats};
use tokio::sync::Mutex;

/// A busy machine must not look like a dead consumer.
const WINDOW: Duration = Duration::from_secs(5);
/// Long enough for a machine that is busy with other things.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Short, so that an outage is noticed while a test waits.
const HASTY: Duration = Duration::from_secs(4);
const PARTITIONS: u16 = 4;

struct Harness {
    url: String,
    private: Option<Mutex<PrivateNats>>,
    made: Mutex<Vec<String>>,
}

impl Harness {
    fn new(url: String, private: Option<PrivateNats>) -> Self {
        Self {
            url,
            private: private.map(Mutex::new),
            made: Mutex::default(),
        }
    }

    fn timeout(&self) -> Duration {
        match self.private {
            Some(_) => HASTY,
            None => TIMEOUT,
        }
    }

    async fn jetstream(&self) -> Context {
        let address: ServerAddr = self.url.parse().unwrap();
        // The client does not read credentials in an address.
        let options = match (address.username(), address.password()) {
            (Some(user), Some(password)) => {
                ConnectOptions::with_user_and_password(user.to_owned(), password.to_owned())
            }
            _ => ConnectOptions::new(),
        };
        jetstream::new(options.connect(address).await.unwrap())
    }

    async fn stream(&self, name: &str, subjects: Vec<String>) {
        let config = Config {
            name: name.to_owned(),
            subjects,
            discard: DiscardPolicy::New,
            ..Config::default()
        };
        self.jetstream().await.create_stream(config).await.unwrap();
        self.made.lock().await.push(name.to_owned());
    }

    fn door(url: &str, topic: &str) -> Door {
        Door {
            destination: destination(url, topic, HASTY),
            source: source(url, topic, "stock", HASTY),
        }
    }
}

fn destination(url: &str, topic: &str, timeout: Duration) -> Arc<dyn Destination> {
    let settings = Settings::new(url, topic)
        .partitions(PARTITIONS)
        .timeout(timeout)
        .connect_timeout(timeout / 2);
    Arc::new(Nats::new(settings).unwrap())
}

fn source(url: &str, topic: &str, group: &str, timeout: Duration) -> Arc<dyn Source> {
    let settings = SourceSettings::new(url, topic, group)
        .partitions(PARTITIONS)
        .ack_wait(WINDOW)
        .timeout(timeout)
        .connect_timeout(timeout / 2);
    Arc::new(NatsSource::new(settings).unwrap())
}

/// As the rules of CloudEvents for NATS have it.
fn decoded(value: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = value.as_bytes();
    while let [first, tail @ ..] = rest {
        let digits = tail.get(..2).filter(|_| *first == b'%');
        let number = digits.and_then(|d| u8::from_str_radix(str::from_utf8(d).ok()?, 16).ok());
        bytes.push(number.unwrap_or(*first));
        rest = &tail[if number.is_some() { 2 } else { 0 }..];
    }
    bytes
}

#[async_trait]
impl BrokerHarness for Harness {
    async fn start() -> Option<Self> {
        Some(Self::new(server::nats()?, None))
    }

    async fn start_private() -> Option<Self> {
        let private = PrivateNats::start().await?;
        Some(Self::new(private.url(), Some(private)))
    }

    async fn clean_up(&self) {
        if self.private.is_none() {
            let jetstream = self.jetstream().await;
            for stream in self.made.lock().await.drain(..) {
                let _ = jetstream.delete_stream(stream).await;
            }
        }
    }

    fn manner(&self) -> Manner {
        Manner {
            prefix: "ce-",
            groups: true,
            window: WINDOW,
            keeps_data: true,
        }
    }

    async fn topic(&self) -> String {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let topic = format!("test-{}-{number}", std::process::id());
        let subjects = (0..PARTITIONS).map(|n| format!("{topic}.{n}")).collect();
        self.stream(&topic, subjects).await;
        let dead = vec![format!("{topic}.DLQ")];
        self.stream(&format!("{topic}-DLQ"), dead).await;
        topic
    }

    async fn destination(&self, topic: &str) -> Arc<dyn Destination> {
        destination(&self.url, topic, self.timeout())
    }

    async fn source(&self, topic: &str, group: &str) -> Arc<dyn Source> {
        source(&self.url, topic, group, self.timeout())
    }

    async fn put(&self, topic: &str, message: &Foreign) {
        let mut headers = HeaderMap::new();
        for (name, value) in &message.headers {
            let name: HeaderName = name.parse().unwrap();
            let value: HeaderValue = str::from_utf8(value).unwrap().parse().unwrap();
            headers.insert(name, value);
        }
        let jetstream = self.jetstream().await;
        let body = message.body.clone();
        let subject = format!("{topic}.0");
        let sent = match headers.is_empty() {
            true => jetstream.publish(subject, body).await,
            false => jetstream.publish_with_headers(subject, headers, body).await,
        };
        sent.unwrap().await.unwrap();
    }

    async fn dead_letters(&self, topic: &str, _group: &str) -> Vec<Foreign> {
        let stream = self
            .jetstream()
            .await
            .get_stream(format!("{topic}-DLQ"))
            .await
            .unwrap();
        let last = stream.cached_info().state.last_sequence;
        let mut letters = Vec::new();
        for sequence in 1..=last {
            let letter = stream.get_raw_message(sequence).await.unwrap();
            let mut headers: Vec<(String, Bytes)> = Vec::new();
            for (name, values) in letter.headers.iter() {
                let name: &str = name.as_ref();
                let values = values.iter().map(|v| Bytes::from(decoded(v.as_str())));
                headers.extend(values.map(|value| (name.to_owned(), value)));
            }
            headers.sort();
            let key = headers.iter().find(|(name, _)| name == "ce-partitionkey");
            letters.push(Foreign {
                key: key.map(|(_, value)| value.clone()),
                headers,
                body: letter.payload,
            });
        }
        letters
    }

    async fn nowhere(&self) -> Door {
        Self::door("nats://127.0.0.1:1", "orders")
    }

    async fn stranger(&self, topic: &str) -> Option<Door> {
        let (before, address) = self.url.split_once('@')?;
        let (user, _) = before.rsplit_once(':')?;
        Some(Self::door(&format!("{user}:wrong@{address}"), topic))
    }

    async fn absent(&self) -> Option<Door> {
        Some(Self::door(&self.url, "nobody.made.this"))
    }

    async fn kill(&self) {
        self.private.as_ref().unwrap().lock().await.kill().await;
    }

    async fn restart(&self) {
        self.private.as_ref().unwrap().lock().await.restart().await;
    }

    async fn pause(&self) {
        self.private.as_ref().unwrap().lock().await.pause().await;
    }

    async fn resume(&self) {
        self.private.as_ref().unwrap().lock().await.resume();
    }
}

broker_suite!(Harness);
