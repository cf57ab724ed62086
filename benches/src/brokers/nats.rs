//! NATS JetStream.

use std::collections::VecDeque;
use std::sync::Arc;

use async_nats::jetstream::consumer::pull;
use async_nats::jetstream::{self, Context, stream};
use async_nats::{ConnectOptions, HeaderMap, ServerAddr};
use async_trait::async_trait;
use counterfoil_core::Destination;
use counterfoil_core::source::Source;
use counterfoil_nats::{NatsSource, Settings, SourceSettings};
use futures_util::StreamExt as _;
use sqlx::postgres::PgConnection;

use super::{Broker, GROUP, PARTITIONS, Record, WINDOW, fresh_name, insert, partition};

pub(super) struct Nats {
    url: String,
    context: Context,
}

impl Nats {
    pub(super) async fn open(url: &str) -> anyhow::Result<Self> {
        let server: ServerAddr = url.parse()?;
        // The client does not take them from the URL.
        let options = match (server.username(), server.password()) {
            (Some(user), Some(password)) => {
                ConnectOptions::with_user_and_password(user.to_owned(), password.to_owned())
            }
            _ => ConnectOptions::new(),
        };
        let client = options.connect(server).await?;
        Ok(Self {
            url: url.to_owned(),
            context: jetstream::new(client),
        })
    }
}

#[async_trait]
impl Broker for Nats {
    async fn topic(&self) -> anyhow::Result<String> {
        let topic = fresh_name();
        let config = stream::Config {
            name: topic.clone(),
            subjects: (0..PARTITIONS).map(|p| format!("{topic}.{p}")).collect(),
            discard: stream::DiscardPolicy::New,
            ..stream::Config::default()
        };
        self.context.create_stream(config).await?;
        Ok(topic)
    }

    fn destination(&self, topic: &str) -> anyhow::Result<Arc<dyn Destination>> {
        let settings = Settings::new(&self.url, topic).partitions(PARTITIONS.into());
        Ok(Arc::new(counterfoil_nats::Nats::new(settings)?))
    }

    fn source(&self, topic: &str) -> anyhow::Result<Arc<dyn Source>> {
        let settings = SourceSettings::new(&self.url, topic, GROUP).partitions(PARTITIONS.into());
        Ok(Arc::new(NatsSource::new(settings)?))
    }

    async fn publish(&self, topic: &str, records: &[Record]) -> anyhow::Result<()> {
        let mut under_way = VecDeque::with_capacity(WINDOW);
        for record in records {
            let mut headers = HeaderMap::new();
            headers.insert("Nats-Msg-Id", record.id.as_str());
            for (name, value) in &record.attributes {
                headers.insert(format!("ce-{name}").as_str(), value.as_str());
            }
            headers.insert("content-type", "application/json");
            headers.insert("ce-datacontenttype", "application/json");
            let subject = format!("{topic}.{}", partition(&record.key));
            let body = record.body.clone();
            if under_way.len() >= WINDOW
                && let Some(oldest) = under_way.pop_front()
            {
                confirmed(oldest).await?;
            }
            let context = &self.context;
            under_way.push_back(context.publish_with_headers(subject, headers, body).await?);
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
        let stream = self.context.get_stream(topic).await?;
        let config = pull::Config {
            durable_name: Some(GROUP.to_owned()),
            ..pull::Config::default()
        };
        let consumer = stream.create_consumer(config).await?;
        let mut arriving = consumer.messages().await?;
        for _ in 0..messages {
            let message = arriving
                .next()
                .await
                .ok_or_else(|| anyhow::anyhow!("the stream has ended"))??;
            insert(database, &message.payload).await?;
            let acked = message.ack().await;
            acked.map_err(|e| anyhow::anyhow!("not acknowledged: {e}"))?;
        }
        Ok(())
    }
}

async fn confirmed(acking: jetstream::context::PublishAckFuture) -> anyhow::Result<()> {
    acking.await?;
    Ok(())
}
