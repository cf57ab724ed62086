//! The suite that every broker passes, on a real Kafka.

#![allow(clippy::unwrap_used, reason = "a surprise ends the test")]

use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use bytes::Bytes;
use counterfoil_core::Destination;
use counterfoil_core::source::Source;
use counterfoil_kafka::{KafkaSource, Settings, SourceSettings};
use counterfoil_testkit::broker::harness::{BrokerHarness, Door, Foreign, Manner};
use counterfoil_testkit::server::{self, Certificate, PrivateKafka};
use krafka::admin::{CreateTopicsOptions, DeleteTopicsOptions, NewTopic};
use krafka::consumer::AutoOffsetReset;
use krafka::{Kafka, Record};
use tokio::sync::Mutex;

counterfoil_testkit::broker_suite!(Harness);

/// Long enough for a machine that is busy with other things.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Short, so that an outage is noticed while a test waits.
const HASTY: Duration = Duration::from_secs(4);
const PARTITIONS: i32 = 4;

struct Harness {
    url: String,
    timeout: Duration,
    private: Mutex<Option<PrivateKafka>>,
    made: std::sync::Mutex<Vec<String>>,
}

impl Harness {
    fn of(url: String, private: Option<PrivateKafka>) -> Self {
        Self {
            url,
            timeout: if private.is_some() { HASTY } else { TIMEOUT },
            private: Mutex::new(private),
            made: std::sync::Mutex::default(),
        }
    }

    async fn kafka(&self) -> Kafka {
        let servers = self.url.trim_start_matches("kafka://");
        Kafka::builder(servers).connect().await.unwrap()
    }
}

fn destination(url: &str, topic: &str, timeout: Duration) -> Arc<dyn Destination> {
    let settings = Settings::new(url, topic).timeout(timeout);
    Arc::new(counterfoil_kafka::Kafka::new(settings).unwrap())
}

fn source(url: &str, topic: &str, group: &str, timeout: Duration) -> Arc<dyn Source> {
    let settings = SourceSettings::new(url, topic, group).timeout(timeout);
    Arc::new(KafkaSource::new(settings).unwrap())
}

fn door(url: &str, topic: &str) -> Door {
    Door {
        destination: destination(url, topic, HASTY),
        source: source(url, topic, "stock", HASTY),
    }
}

fn fresh_name() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("orders-{}-{}-{count}", now.as_nanos(), std::process::id())
}

#[async_trait]
impl BrokerHarness for Harness {
    async fn start() -> Option<Self> {
        Some(Self::of(server::kafka()?, None))
    }

    async fn start_private() -> Option<Self> {
        let private = PrivateKafka::start().await?;
        Some(Self::of(private.url(), Some(private)))
    }

    async fn clean_up(&self) {
        let private = self.private.lock().await.take();
        let made = std::mem::take(&mut *self.made.lock().unwrap());
        if private.is_none() && !made.is_empty() {
            let admin = self.kafka().await.admin();
            let _ = admin
                .delete_topics(made, DeleteTopicsOptions::default())
                .await;
        }
    }

    fn manner(&self) -> Manner {
        Manner {
            prefix: "ce_",
            groups: true,
            window: Duration::from_secs(3),
            keeps_data: true,
        }
    }

    async fn topic(&self) -> String {
        let name = fresh_name();
        let letters = format!("{name}.DLQ");
        let topics = [&name, &letters].map(|t| NewTopic::new(t, PARTITIONS, 1).unwrap());
        let admin = self.kafka().await.admin();
        let made = admin.create_topics(topics, CreateTopicsOptions::default());
        for (_, made) in made.await.unwrap() {
            made.unwrap();
        }
        self.made.lock().unwrap().extend([name.clone(), letters]);
        name
    }

    async fn destination(&self, topic: &str) -> Arc<dyn Destination> {
        destination(&self.url, topic, self.timeout)
    }

    async fn source(&self, topic: &str, group: &str) -> Arc<dyn Source> {
        let group = format!("{topic}-{group}");
        source(&self.url, topic, &group, self.timeout)
    }

    async fn put(&self, topic: &str, message: &Foreign) {
        let kafka = self.kafka().await;
        let producer = kafka.producer().build().await.unwrap();
        let mut record = Record::new(topic, message.body.clone());
        record.key.clone_from(&message.key);
        let headers = message.headers.iter();
        record.headers = headers.map(|(n, v)| (n.clone(), Some(v.clone()))).collect();
        let _ = producer.send(record).await.unwrap();
        producer.close().await.unwrap();
    }

    async fn dead_letters(&self, topic: &str, _group: &str) -> Vec<Foreign> {
        let kafka = self.kafka().await;
        let reader = kafka
            .consumer_without_group()
            .auto_offset_reset(AutoOffsetReset::Earliest);
        let reader = reader.build().await.unwrap();
        reader.subscribe([format!("{topic}.DLQ")]).await.unwrap();
        let mut found = Vec::new();
        loop {
            let records = reader.poll(Duration::from_millis(500)).await.unwrap();
            if records.is_empty() {
                break;
            }
            found.extend(records.into_iter().map(|record| {
                Foreign {
                    key: record.key,
                    headers: record
                        .headers
                        .into_iter()
                        .map(|(name, value)| (name, value.unwrap_or_default()))
                        .collect(),
                    body: record.value.unwrap_or_else(Bytes::new),
                }
            }));
        }
        reader.close().await.unwrap();
        found
    }

    async fn nowhere(&self) -> Door {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        door(&format!("kafka://{address}"), "orders")
    }

    async fn stranger(&self, topic: &str) -> Option<Door> {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let certificate = Certificate {
            chain: made.cert.pem(),
            key: made.signing_key.serialize_pem(),
        };
        let private = PrivateKafka::start_closed(&certificate).await?;
        let address = private.address_with_password();
        *self.private.lock().await = Some(private);
        Some(door(&format!("kafka://relay:wrong@{address}"), topic))
    }

    async fn absent(&self) -> Option<Door> {
        Some(door(&self.url, "not-there"))
    }

    async fn kill(&self) {
        self.private.lock().await.as_mut().unwrap().kill().await;
    }

    async fn restart(&self) {
        self.private.lock().await.as_mut().unwrap().restart().await;
    }

    async fn pause(&self) {
        self.private.lock().await.as_ref().unwrap().pause().await;
    }

    async fn resume(&self) {
        self.private.lock().await.as_ref().unwrap().resume();
    }
}
