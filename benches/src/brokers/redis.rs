//! Redis Streams.

use std::sync::Arc;

use async_trait::async_trait;
use counterfoil_core::Destination;
use counterfoil_core::source::Source;
use counterfoil_redis_streams::{RedisStreams, RedisStreamsSource, Settings, SourceSettings};
use redis::Value;
use redis::aio::MultiplexedConnection;
use redis::streams::{StreamReadOptions, StreamReadReply};
use sqlx::postgres::PgConnection;

use super::{Broker, GROUP, PARTITIONS, Record, WINDOW, fresh_name, insert, partition};

pub(super) struct Redis {
    url: String,
    connection: MultiplexedConnection,
}

impl Redis {
    pub(super) async fn open(url: &str) -> anyhow::Result<Self> {
        let client = redis::Client::open(url)?;
        Ok(Self {
            url: url.to_owned(),
            connection: client.get_multiplexed_async_connection().await?,
        })
    }
}

#[async_trait]
impl Broker for Redis {
    async fn topic(&self) -> anyhow::Result<String> {
        Ok(fresh_name())
    }

    fn destination(&self, topic: &str) -> anyhow::Result<Arc<dyn Destination>> {
        let settings = Settings::new(&self.url, topic).partitions(PARTITIONS.into());
        Ok(Arc::new(RedisStreams::new(settings)?))
    }

    fn source(&self, topic: &str) -> anyhow::Result<Arc<dyn Source>> {
        let settings = SourceSettings::new(&self.url, topic, GROUP).partitions(PARTITIONS.into());
        Ok(Arc::new(RedisStreamsSource::new(settings)?))
    }

    async fn publish(&self, topic: &str, records: &[Record]) -> anyhow::Result<()> {
        let mut connection = self.connection.clone();
        for window in records.chunks(WINDOW) {
            let mut pipe = redis::pipe();
            for record in window {
                let stream = format!("{topic}.{}", partition(&record.key));
                let command = pipe.cmd("XADD").arg(stream).arg("*");
                for (name, value) in &record.attributes {
                    command.arg(format!("ce_{name}")).arg(value);
                }
                command.arg("content-type").arg("application/json");
                command.arg("data").arg(&record.body[..]);
            }
            let ids: Vec<String> = pipe.query_async(&mut connection).await?;
            anyhow::ensure!(ids.len() == window.len(), "some were not stored");
        }
        Ok(())
    }

    async fn consume(
        &self,
        topic: &str,
        messages: u64,
        database: &mut PgConnection,
    ) -> anyhow::Result<()> {
        use redis::AsyncCommands as _;
        let mut connection = self.connection.clone();
        let streams: Vec<String> = (0..PARTITIONS).map(|p| format!("{topic}.{p}")).collect();
        for stream in &streams {
            let _: Value = connection
                .xgroup_create_mkstream(stream, GROUP, "0")
                .await?;
        }
        let news = vec![">"; streams.len()];
        let options = StreamReadOptions::default()
            .group(GROUP, "bare")
            .count(WINDOW);
        let mut done = 0;
        while done < messages {
            let read: StreamReadReply = connection.xread_options(&streams, &news, &options).await?;
            for key in read.keys {
                for entry in key.ids {
                    let body: Vec<u8> = entry.get("data").unwrap_or_default();
                    insert(database, &body).await?;
                    let _: u64 = connection.xack(&key.key, GROUP, &[&entry.id]).await?;
                    done += 1;
                }
            }
        }
        Ok(())
    }
}
