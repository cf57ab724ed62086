//! NATS JetStream.

use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::BoxError;
use counterfoil_nats::{Create, Nats, NatsSource, Settings, SourceSettings};
use counterfoil_testkit::server::PrivateNats;

use super::{PARTITIONS, Server, TIMEOUT, TOPIC};

pub(super) async fn start() -> Option<Box<dyn Server>> {
    Some(Box::new(PrivateNats::start().await?))
}

pub(super) fn destination(url: &str, queue: &str) -> Result<Nats, BoxError> {
    let settings = Settings::new(url, queue)
        .partitions(PARTITIONS.into())
        .create(Create::new())
        .timeout(TIMEOUT);
    Ok(Nats::new(settings)?)
}

pub(super) fn source(url: &str, consumer: &str) -> Result<NatsSource, BoxError> {
    let settings = SourceSettings::new(url, TOPIC, consumer)
        .partitions(PARTITIONS.into())
        .create(Create::new())
        .ack_wait(Duration::from_secs(2))
        .timeout(TIMEOUT);
    Ok(NatsSource::new(settings)?)
}

#[async_trait]
impl Server for PrivateNats {
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
        PrivateNats::pause(self).await;
    }

    fn resume(&mut self) {
        PrivateNats::resume(self);
    }

    /// The first who comes makes the stream, and a group begins at its beginning.
    async fn prepare(&self, _: &[&str]) {}
}
