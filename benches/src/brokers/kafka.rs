//! Kafka.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use counterfoil_core::Destination;
use counterfoil_core::source::Source;
use counterfoil_kafka::{KafkaSource, Settings, SourceSettings};
use krafka::admin::{CreateTopicsOptions, NewTopic};
use krafka::consumer::AutoOffsetReset;
use krafka::producer::Acks;
use sqlx::postgres::PgConnection;

use super::{Broker, GROUP, PARTITIONS, Record, WINDOW, fresh_name, insert};

pub(super) struct Kafka {
    url: String,
    kafka: krafka::Kafka,
}

impl Kafka {
    pub(super) async fn open(url: &str) -> anyhow::Result<Self> {
        let servers = url.trim_start_matches("kafka://");
        Ok(Self {
            url: url.to_owned(),
            kafka: krafka::Kafka::builder(servers).connect().await?,
        })
    }
}

#[async_trait]
impl Broker for Kafka {
    async fn topic(&self) -> anyhow::Result<String> {
        let topic = fresh_name();
        let new = NewTopic::new(&topic, PARTITIONS.into(), 1)?;
        let made = self
            .kafka
            .admin()
            .create_topics([new], CreateTopicsOptions::default())
            .await?;
        for (_, made) in made {
            made?;
        }
        Ok(topic)
    }

    fn destination(&self, topic: &str) -> anyhow::Result<Arc<dyn Destination>> {
        let settings = Settings::new(&self.url, topic);
        Ok(Arc::new(counterfoil_kafka::Kafka::new(settings)?))
    }

    fn source(&self, topic: &str) -> anyhow::Result<Arc<dyn Source>> {
        // Groups are known to the whole server: each topic has one of its own.
        let settings = SourceSettings::new(&self.url, topic, topic);
        Ok(Arc::new(KafkaSource::new(settings)?))
    }

    async fn publish(&self, topic: &str, records: &[Record]) -> anyhow::Result<()> {
        let producer = self
            .kafka
            .producer()
            .acks(Acks::All)
            .idempotent(true)
            .linger(Duration::ZERO)
            .batch_size(256 * 1024)
            .build()
            .await?;
        let mut under_way = VecDeque::with_capacity(WINDOW);
        for record in records {
            let mut sent = krafka::Record::new(topic, record.body.clone());
            sent.key = Some(Bytes::copy_from_slice(record.key.as_bytes()));
            let attributes = record.attributes.iter();
            sent.headers = attributes
                .map(|(n, v)| {
                    (
                        format!("ce_{n}"),
                        Some(Bytes::copy_from_slice(v.as_bytes())),
                    )
                })
                .collect();
            let json = Bytes::from_static(b"application/json");
            sent.headers.push(("content-type".to_owned(), Some(json)));
            if under_way.len() >= WINDOW
                && let Some(oldest) = under_way.pop_front()
            {
                let _ = oldest.await?;
            }
            under_way.push_back(producer.enqueue(sent).await?);
        }
        for left in under_way {
            let _ = left.await?;
        }
        producer.close().await?;
        Ok(())
    }

    async fn consume(
        &self,
        topic: &str,
        messages: u64,
        database: &mut PgConnection,
    ) -> anyhow::Result<()> {
        let consumer = self
            .kafka
            .consumer(format!("{topic}-{GROUP}"))
            .auto_offset_reset(AutoOffsetReset::Earliest)
            .enable_auto_commit(false)
            .build()
            .await?;
        consumer.subscribe([topic]).await?;
        let mut done = 0;
        while done < messages {
            for record in consumer.poll(Duration::from_secs(1)).await? {
                insert(database, record.value.as_deref().unwrap_or_default()).await?;
                done += 1;
            }
            // Positions, not messages: once for what came together.
            consumer.commit().await?;
        }
        consumer.close().await?;
        Ok(())
    }
}
