//! Kafka.

use async_trait::async_trait;
use counterfoil_core::BoxError;
use counterfoil_kafka::{Kafka, KafkaSource, Settings, SourceSettings};
use counterfoil_testkit::server::PrivateKafka;
use krafka::admin::{CreateTopicsOptions, NewTopic};

use super::{PARTITIONS, Server, TIMEOUT, TOPIC};

pub(super) async fn start() -> Option<Box<dyn Server>> {
    Some(Box::new(PrivateKafka::start().await?))
}

pub(super) fn destination(url: &str, queue: &str) -> Result<Kafka, BoxError> {
    Ok(Kafka::new(Settings::new(url, queue).timeout(TIMEOUT))?)
}

pub(super) fn source(url: &str, consumer: &str) -> Result<KafkaSource, BoxError> {
    let settings = SourceSettings::new(url, TOPIC, consumer).timeout(TIMEOUT * 2);
    Ok(KafkaSource::new(settings)?)
}

#[async_trait]
impl Server for PrivateKafka {
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
        PrivateKafka::pause(self).await;
    }

    fn resume(&mut self) {
        PrivateKafka::resume(self);
    }

    async fn prepare(&self, _: &[&str]) {
        let kafka = krafka::Kafka::builder(self.address());
        let admin = kafka.connect().await.expect("no Kafka").admin();
        let topic = NewTopic::new(TOPIC, PARTITIONS.into(), 1).expect("a topic");
        let made = admin.create_topics([topic], CreateTopicsOptions::default());
        for (_, made) in made.await.expect("no topic") {
            made.expect("no topic");
        }
    }
}
