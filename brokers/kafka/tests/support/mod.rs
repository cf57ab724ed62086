//! What the tests beside the suite share.

use std::future::Future;
use std::time::Duration;

use krafka::Kafka;
use krafka::admin::{CreateTopicsOptions, NewTopic};
use tokio::time::timeout;

/// Long enough for a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(90);

/// The answer, which comes in the end.
pub(crate) async fn patiently<T>(answer: impl Future<Output = T>) -> T {
    timeout(PATIENCE, answer).await.unwrap()
}

/// Makes a topic with these settings.
pub(crate) async fn make_topic(
    servers: &str,
    name: &str,
    partitions: i32,
    settings: &[(&str, &str)],
) {
    let kafka = Kafka::builder(servers).connect().await.unwrap();
    let mut topic = NewTopic::new(name, partitions, 1).unwrap();
    for (name, value) in settings {
        topic = topic.with_config(*name, *value);
    }
    let admin = kafka.admin();
    let made = admin.create_topics([topic], CreateTopicsOptions::default());
    for (_, made) in made.await.unwrap() {
        made.unwrap();
    }
}
