//! The conformance suite of brokers on a real RabbitMQ.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "this is test code: a surprise ends the test"
)]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use counterfoil_core::Destination;
use counterfoil_core::source::Source;
use counterfoil_rabbitmq::{RabbitMq, RabbitMqSource, Settings, SourceSettings};
use counterfoil_testkit::broker::harness::{BrokerHarness, Door, Foreign, Manner};
use counterfoil_testkit::server::{self, PrivateRabbitMq};
use lapin::options::{
    BasicGetOptions, BasicPublishOptions, ExchangeDeleteOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use tokio::sync::Mutex;

const PARTITIONS: usize = 4;
const PREFIX: &str = "cloudEvents_";
const TIMEOUT: Duration = Duration::from_secs(15);
const CONNECT: Duration = Duration::from_secs(5);

struct Rabbit {
    url: String,
    private: Option<Mutex<PrivateRabbitMq>>,
    made: Mutex<BTreeSet<(String, String)>>,
}

impl Rabbit {
    fn new(url: String, private: Option<PrivateRabbitMq>) -> Self {
        Self {
            url,
            private: private.map(Mutex::new),
            made: Mutex::default(),
        }
    }

    fn private(&self) -> &Mutex<PrivateRabbitMq> {
        self.private.as_ref().expect("a server of its own")
    }

    fn to(&self, url: &str, topic: &str) -> Arc<dyn Destination> {
        let settings = Settings::new(url, topic)
            .timeout(TIMEOUT)
            .connect_timeout(CONNECT);
        Arc::new(RabbitMq::new(settings).unwrap())
    }

    fn from(&self, settings: SourceSettings) -> RabbitMqSource {
        let settings = settings.timeout(TIMEOUT).connect_timeout(CONNECT);
        RabbitMqSource::new(settings).unwrap()
    }

    async fn channel(&self) -> (Connection, Channel) {
        let connection = Connection::connect(&self.url, ConnectionProperties::default());
        let connection = connection.await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        (connection, channel)
    }

    fn door(&self, url: &str, topic: &str) -> Door {
        let source = SourceSettings::new(url, topic, "stock").passive();
        Door {
            destination: self.to(url, topic),
            source: Arc::new(self.from(source)),
        }
    }
}

#[async_trait]
impl BrokerHarness for Rabbit {
    async fn start() -> Option<Self> {
        Some(Self::new(server::rabbitmq()?, None))
    }

    async fn start_private() -> Option<Self> {
        let server = PrivateRabbitMq::start().await?;
        Some(Self::new(server.url(), Some(server)))
    }

    async fn clean_up(&self) {
        if self.private.is_some() {
            return;
        }
        let (_connection, channel) = self.channel().await;
        for (topic, group) in self.made.lock().await.iter() {
            let base = format!("{topic}.{group}");
            let mut queues: Vec<String> = (0..PARTITIONS).map(|n| format!("{base}.{n}")).collect();
            queues.push(format!("{base}.DLQ"));
            queues.push(format!("{base}.delay.3000"));
            for queue in queues {
                let options = QueueDeleteOptions::default();
                channel.queue_delete(queue.into(), options).await.unwrap();
            }
            for exchange in [
                format!("{base}.members"),
                format!("{base}.delay.3000"),
                topic.clone(),
            ] {
                let options = ExchangeDeleteOptions::default();
                channel
                    .exchange_delete(exchange.into(), options)
                    .await
                    .unwrap();
            }
        }
    }

    fn manner(&self) -> Manner {
        Manner {
            prefix: PREFIX,
            groups: true,
            // The end of a connection is noticed at once.
            window: Duration::from_secs(1),
            keeps_data: true,
        }
    }

    async fn topic(&self) -> String {
        format!("cf-test-{}", counterfoil_core::MessageId::new())
    }

    async fn destination(&self, topic: &str) -> Arc<dyn Destination> {
        self.to(&self.url, topic)
    }

    async fn source(&self, topic: &str, group: &str) -> Arc<dyn Source> {
        let settings = SourceSettings::new(&self.url, topic, group).partitions(PARTITIONS);
        let source = self.from(settings);
        source.declare().await.unwrap();
        if let Some(private) = &self.private {
            let mut queues = vec![format!("{topic}.{group}.DLQ")];
            queues.extend((0..PARTITIONS).map(|n| format!("{topic}.{group}.{n}")));
            private.lock().await.until_kept(&queues).await;
        }
        self.made.lock().await.insert((topic.into(), group.into()));
        Arc::new(source)
    }

    async fn put(&self, topic: &str, message: &Foreign) {
        let (_connection, channel) = self.channel().await;
        let mut headers = FieldTable::default();
        for (name, value) in &message.headers {
            let value = AMQPValue::LongString(value[..].into());
            headers.insert(name.as_str().into(), value);
        }
        let properties = BasicProperties::default().with_headers(headers);
        let options = BasicPublishOptions::default();
        channel
            .basic_publish(topic.into(), "7".into(), options, &message.body, properties)
            .await
            .unwrap();
        channel.close(200, "OK".into()).await.unwrap();
    }

    async fn dead_letters(&self, topic: &str, group: &str) -> Vec<Foreign> {
        let (_connection, channel) = self.channel().await;
        let mut letters = Vec::new();
        let queue = format!("{topic}.{group}.DLQ");
        let options = BasicGetOptions { no_ack: true };
        while let Some(got) = channel
            .basic_get(queue.as_str().into(), options)
            .await
            .unwrap()
        {
            let p = &got.delivery.properties;
            let text = |name: &str, value: &Option<lapin::types::ShortString>| {
                (
                    name.to_owned(),
                    Bytes::from(value.clone().unwrap().to_string()),
                )
            };
            let mut headers = vec![
                text("content-type", p.content_type()),
                text("message-id", p.message_id()),
            ];
            for (name, value) in p.headers().clone().unwrap().inner() {
                if name.as_str() == "x-delivery-count" {
                    continue;
                }
                let AMQPValue::LongString(value) = value else {
                    panic!("{name}: {value:?}");
                };
                headers.push((name.to_string(), Bytes::copy_from_slice(value.as_bytes())));
            }
            let mut letter = Foreign {
                key: None,
                headers,
                body: got.delivery.data.clone().into(),
            };
            let key = letter.header(&format!("{PREFIX}partitionkey"));
            letter.key = key.map(Bytes::copy_from_slice);
            letters.push(letter);
        }
        letters
    }

    async fn nowhere(&self) -> Door {
        self.door("amqp://127.0.0.1:1/", "t")
    }

    async fn stranger(&self, topic: &str) -> Option<Door> {
        Some(self.door(&self.url.replace("guest:guest", "guest:wrong"), topic))
    }

    async fn absent(&self) -> Option<Door> {
        Some(self.door(&self.url, "cf-test-absent"))
    }

    async fn kill(&self) {
        self.private().lock().await.kill().await;
    }

    async fn restart(&self) {
        self.private().lock().await.restart().await;
    }

    async fn pause(&self) {
        self.private().lock().await.pause().await;
    }

    async fn resume(&self) {
        self.private().lock().await.resume();
    }
}

counterfoil_testkit::broker_suite!(Rabbit);
