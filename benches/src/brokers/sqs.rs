//! A server that speaks SQS, with queues that keep the order of each aggregate.

use std::sync::Arc;

use async_trait::async_trait;
use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::{BehaviorVersion, Credentials, Region};
use aws_sdk_sqs::types::{
    MessageAttributeValue, QueueAttributeName, SendMessageBatchRequestEntry as Entry,
};
use counterfoil_core::Destination;
use counterfoil_core::source::Source;
use counterfoil_sqs::{Settings, SourceSettings, SqsSource};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use sqlx::postgres::PgConnection;

use super::{Broker, Record, fresh_name, insert};

/// The most entries of one request.
const REQUEST: usize = 10;
/// Requests at one time.
const TOGETHER: usize = 8;
/// Attributes that a message carries by themselves; the rest goes into one of them together.
const OWN: [&str; 4] = ["id", "source", "specversion", "type"];

pub(super) struct Sqs {
    url: String,
    client: Client,
}

impl Sqs {
    pub(super) async fn open(url: &str) -> anyhow::Result<Self> {
        let http = aws_smithy_http_client::Builder::new().build_http();
        let config = aws_sdk_sqs::Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .http_client(http)
            .endpoint_url(url)
            .region(Region::new("eu-west-1"))
            .credentials_provider(Credentials::new("key", "secret", None, None, "bench"))
            .build();
        Ok(Self {
            url: url.to_owned(),
            client: Client::from_conf(config),
        })
    }

    async fn queue_url(&self, name: &str) -> anyhow::Result<String> {
        let found = self.client.get_queue_url().queue_name(name).send().await?;
        found
            .queue_url
            .ok_or_else(|| anyhow::anyhow!("the queue has no URL"))
    }

    async fn send(&self, queue: &str, records: &[Record]) -> anyhow::Result<()> {
        let entries: Result<Vec<Entry>, _> = records.iter().enumerate().map(entry).collect();
        let sent = self
            .client
            .send_message_batch()
            .queue_url(queue)
            .set_entries(Some(entries?))
            .send()
            .await?;
        anyhow::ensure!(sent.failed.is_empty(), "not stored: {:?}", sent.failed);
        Ok(())
    }
}

fn entry((n, record): (usize, &Record)) -> anyhow::Result<Entry> {
    let mut entry = Entry::builder()
        .id(n.to_string())
        .message_body(std::str::from_utf8(&record.body)?)
        .message_group_id(record.key.replace('/', "_"))
        .message_deduplication_id(&record.id);
    let mut rest = serde_json::Map::new();
    for (name, value) in &record.attributes {
        match OWN.contains(name) {
            true => entry = entry.message_attributes(format!("ce_{name}"), text(value)?),
            false => drop(rest.insert(format!("ce_{name}"), value.as_str().into())),
        }
    }
    let rest = serde_json::Value::Object(rest).to_string();
    let entry = entry
        .message_attributes("content-type", text("application/json")?)
        .message_attributes("counterfoil-headers", text(&rest)?);
    Ok(entry.build()?)
}

fn text(value: &str) -> anyhow::Result<MessageAttributeValue> {
    let attribute = MessageAttributeValue::builder().data_type("String");
    Ok(attribute.string_value(value).build()?)
}

#[async_trait]
impl Broker for Sqs {
    async fn topic(&self) -> anyhow::Result<String> {
        let topic = format!("{}.fifo", fresh_name());
        self.client
            .create_queue()
            .queue_name(&topic)
            .attributes(QueueAttributeName::FifoQueue, "true")
            .send()
            .await?;
        Ok(topic)
    }

    fn destination(&self, topic: &str) -> anyhow::Result<Arc<dyn Destination>> {
        let settings = Settings::new(topic)
            .endpoint(&self.url)
            .credentials("key", "secret");
        Ok(Arc::new(counterfoil_sqs::Sqs::new(settings)?))
    }

    fn source(&self, topic: &str) -> anyhow::Result<Arc<dyn Source>> {
        let settings = SourceSettings::new(topic)
            .endpoint(&self.url)
            .credentials("key", "secret");
        Ok(Arc::new(SqsSource::new(settings)?))
    }

    async fn publish(&self, topic: &str, records: &[Record]) -> anyhow::Result<()> {
        let queue = self.queue_url(topic).await?;
        let mut under_way = FuturesUnordered::new();
        for some in records.chunks(REQUEST) {
            if under_way.len() >= TOGETHER
                && let Some(sent) = under_way.next().await
            {
                sent?;
            }
            under_way.push(self.send(&queue, some));
        }
        while let Some(sent) = under_way.next().await {
            sent?;
        }
        Ok(())
    }

    async fn consume(
        &self,
        topic: &str,
        messages: u64,
        database: &mut PgConnection,
    ) -> anyhow::Result<()> {
        let queue = self.queue_url(topic).await?;
        let mut done = 0;
        while done < messages {
            let received = self
                .client
                .receive_message()
                .queue_url(&queue)
                .max_number_of_messages(10)
                .wait_time_seconds(1)
                .message_attribute_names("All")
                .send()
                .await?;
            for message in received.messages.unwrap_or_default() {
                insert(database, message.body.unwrap_or_default().as_bytes()).await?;
                self.client
                    .delete_message()
                    .queue_url(&queue)
                    .set_receipt_handle(message.receipt_handle)
                    .send()
                    .await?;
                done += 1;
            }
        }
        Ok(())
    }
}
