//! RabbitMQ.

use std::collections::VecDeque;
use std::sync::Arc;

use async_trait::async_trait;
use counterfoil_core::Destination;
use counterfoil_core::source::Source;
use counterfoil_rabbitmq::{RabbitMqSource, Settings, SourceSettings};
use futures_util::StreamExt as _;
use futures_util::stream::select_all;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Confirmation, Connection, ConnectionProperties};
use sqlx::postgres::PgConnection;

use super::{Broker, GROUP, PARTITIONS, Record, WINDOW, fresh_name, insert, partition};

/// Survives a restart.
const PERSISTENT: u8 = 2;

pub(super) struct RabbitMq {
    url: String,
    connection: Connection,
}

impl RabbitMq {
    pub(super) async fn open(url: &str) -> anyhow::Result<Self> {
        let connection = Connection::connect(url, ConnectionProperties::default()).await?;
        Ok(Self {
            url: url.to_owned(),
            connection,
        })
    }

    fn driver(&self, topic: &str) -> anyhow::Result<RabbitMqSource> {
        let settings = SourceSettings::new(&self.url, topic, GROUP).partitions(PARTITIONS.into());
        Ok(RabbitMqSource::new(settings)?)
    }
}

#[async_trait]
impl Broker for RabbitMq {
    /// The quorum queues of the driver, which the bare client uses as well.
    async fn topic(&self) -> anyhow::Result<String> {
        let topic = fresh_name();
        self.driver(&topic)?.declare().await?;
        Ok(topic)
    }

    fn destination(&self, topic: &str) -> anyhow::Result<Arc<dyn Destination>> {
        let settings = Settings::new(&self.url, topic);
        Ok(Arc::new(counterfoil_rabbitmq::RabbitMq::new(settings)?))
    }

    fn source(&self, topic: &str) -> anyhow::Result<Arc<dyn Source>> {
        Ok(Arc::new(self.driver(topic)?))
    }

    async fn publish(&self, topic: &str, records: &[Record]) -> anyhow::Result<()> {
        let channel = self.connection.create_channel().await?;
        channel
            .confirm_select(ConfirmSelectOptions::default())
            .await?;
        let mandatory = BasicPublishOptions {
            mandatory: true,
            ..BasicPublishOptions::default()
        };
        let mut under_way = VecDeque::with_capacity(WINDOW);
        for record in records {
            let mut headers = FieldTable::default();
            for (name, value) in &record.attributes {
                let value = AMQPValue::LongString(value.as_str().into());
                headers.insert(format!("cloudEvents_{name}").into(), value);
            }
            let properties = BasicProperties::default()
                .with_content_type("application/json".into())
                .with_message_id(record.id.as_str().into())
                .with_delivery_mode(PERSISTENT)
                .with_headers(headers);
            if under_way.len() >= WINDOW
                && let Some(oldest) = under_way.pop_front()
            {
                confirmed(oldest).await?;
            }
            let slot = partition(&record.key).to_string();
            let sent = channel
                .basic_publish(
                    topic.into(),
                    slot.into(),
                    mandatory,
                    &record.body,
                    properties,
                )
                .await?;
            under_way.push_back(sent);
        }
        for left in under_way {
            confirmed(left).await?;
        }
        Ok(())
    }

    async fn consume(
        &self,
        topic: &str,
        messages: u64,
        database: &mut PgConnection,
    ) -> anyhow::Result<()> {
        let channel = self.connection.create_channel().await?;
        let prefetch = u16::try_from(WINDOW)?;
        channel
            .basic_qos(prefetch, BasicQosOptions::default())
            .await?;
        let mut arriving = Vec::new();
        for p in 0..PARTITIONS {
            let queue = format!("{topic}.{GROUP}.{p}");
            let options = BasicConsumeOptions::default();
            let tag = format!("bare-{p}");
            let consumer = channel
                .basic_consume(queue.into(), tag.into(), options, FieldTable::default())
                .await?;
            arriving.push(consumer);
        }
        let mut arriving = select_all(arriving);
        for _ in 0..messages {
            let delivery = arriving
                .next()
                .await
                .ok_or_else(|| anyhow::anyhow!("the queue has ended"))??;
            insert(database, &delivery.data).await?;
            delivery.ack(BasicAckOptions::default()).await?;
        }
        Ok(())
    }
}

async fn confirmed(sent: impl Future<Output = lapin::Result<Confirmation>>) -> anyhow::Result<()> {
    match sent.await? {
        Confirmation::Ack(None) => Ok(()),
        other => anyhow::bail!("not stored: {other:?}"),
    }
}
