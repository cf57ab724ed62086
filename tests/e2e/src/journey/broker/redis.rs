//! Redis Streams.

use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::BoxError;
use counterfoil_redis_streams::{RedisStreams, RedisStreamsSource, Settings, SourceSettings};
use counterfoil_testkit::server::PrivateRedis;

use super::{PARTITIONS, Server, TIMEOUT, TOPIC};

pub(super) async fn start() -> Option<Box<dyn Server>> {
    Some(Box::new(PrivateRedis::start_durable().await?))
}

pub(super) fn destination(url: &str, queue: &str) -> Result<RedisStreams, BoxError> {
    let settings = Settings::new(url, queue)
        .partitions(PARTITIONS.into())
        .timeout(TIMEOUT);
    Ok(RedisStreams::new(settings)?)
}

pub(super) fn source(url: &str, consumer: &str) -> Result<RedisStreamsSource, BoxError> {
    let settings = SourceSettings::new(url, TOPIC, consumer)
        .partitions(PARTITIONS.into())
        .missed_after(Duration::from_secs(2))
        .timeout(TIMEOUT);
    Ok(RedisStreamsSource::new(settings)?)
}

#[async_trait]
impl Server for PrivateRedis {
    fn url(&self) -> String {
        self.url()
    }

    async fn kill(&mut self) {
        self.kill().await;
    }

    async fn restart(&mut self) {
        self.restart().await;
    }

    async fn pause(&mut self) {
        PrivateRedis::pause(self).await;
    }

    fn resume(&mut self) {
        PrivateRedis::resume(self);
    }

    /// A group begins at the beginning of the streams.
    async fn prepare(&self, _: &[&str]) {}
}
