//! RabbitMQ.

use async_trait::async_trait;
use counterfoil_core::BoxError;
use counterfoil_rabbitmq::{RabbitMq, RabbitMqSource, Settings, SourceSettings};
use counterfoil_testkit::server::PrivateRabbitMq;

use super::{PARTITIONS, Server, TIMEOUT, TOPIC};

pub(super) async fn start() -> Option<Box<dyn Server>> {
    Some(Box::new(PrivateRabbitMq::start().await?))
}

pub(super) fn destination(url: &str, queue: &str) -> Result<RabbitMq, BoxError> {
    let settings = Settings::new(url, queue).timeout(TIMEOUT);
    Ok(RabbitMq::new(settings)?)
}

pub(super) fn source(url: &str, consumer: &str) -> Result<RabbitMqSource, BoxError> {
    let settings = SourceSettings::new(url, TOPIC, consumer)
        .partitions(PARTITIONS.into())
        .timeout(TIMEOUT);
    Ok(RabbitMqSource::new(settings)?)
}

#[async_trait]
impl Server for PrivateRabbitMq {
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
        PrivateRabbitMq::pause(self).await;
    }

    fn resume(&mut self) {
        PrivateRabbitMq::resume(self);
    }

    /// A queue gets what is published from the moment on at which it is there.
    async fn prepare(&self, consumers: &[&str]) {
        for consumer in consumers {
            let source = source(&self.url(), consumer).expect("no source");
            source.declare().await.expect("no queues");
        }
    }
}
