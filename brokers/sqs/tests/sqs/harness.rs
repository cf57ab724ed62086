//! A server that speaks SQS under the conformance suite.
//!
//! One queue is one group: SQS hands a message to one consumer, whoever it is. A private server keeps
//! its queues and messages over a restart. The server asks for no credentials, so that nobody is a
//! stranger to it; see `answers.rs` for what a service says that does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::{BehaviorVersion, Credentials, Region};
use aws_sdk_sqs::types::{
    Message, MessageAttributeValue, MessageSystemAttributeName as System, QueueAttributeName,
};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use counterfoil_core::source::Source;
use counterfoil_core::{Destination, MessageId};
use counterfoil_sqs::{Settings, SourceSettings, Sqs, SqsSource};
use counterfoil_testkit::broker::harness::{BrokerHarness, Door, Foreign, Manner};
use counterfoil_testkit::server::{self, PrivateSqs};
use tokio::sync::Mutex;

/// A busy machine must not look like a dead consumer. With hundreds of groups out, the server needs
/// seconds for a sign of life in a FIFO queue.
pub(crate) fn visibility(queue: &str) -> Duration {
    let seconds = if queue.ends_with(".fifo") { 8 } else { 5 };
    Duration::from_secs(seconds)
}
/// Long enough for a machine that is busy with other things.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Short, so that an outage is noticed while a test waits.
const HASTY: Duration = Duration::from_secs(5);

/// The server, and the kind of queues that it makes.
pub(crate) struct Servant<const FIFO: bool> {
    pub(crate) url: String,
    pub(crate) client: Client,
    private: Option<Mutex<PrivateSqs>>,
}

/// Queues without order.
pub(crate) type Standard = Servant<false>;
/// Queues with groups.
pub(crate) type Fifo = Servant<true>;

/// A client as any program has one.
pub(crate) fn client(url: &str) -> Client {
    let http = aws_smithy_http_client::Builder::new().build_http();
    let config = aws_sdk_sqs::Config::builder()
        .behavior_version(BehaviorVersion::v2026_01_12())
        .http_client(http)
        .endpoint_url(url)
        .region(Region::new("eu-west-1"))
        .credentials_provider(Credentials::new("key", "secret", None, None, "test"))
        .build();
    Client::from_conf(config)
}

/// Settings of a destination as tests use them.
pub(crate) fn settings(url: &str, queue: &str) -> Settings {
    Settings::new(queue)
        .endpoint(url)
        .credentials("key", "secret")
        .timeout(TIMEOUT)
        .connect_timeout(TIMEOUT / 2)
}

/// Settings of a source as tests use them.
pub(crate) fn source_settings(url: &str, queue: &str) -> SourceSettings {
    SourceSettings::new(queue)
        .endpoint(url)
        .credentials("key", "secret")
        .timeout(TIMEOUT)
        .connect_timeout(TIMEOUT / 2)
        .wait(Duration::from_secs(1))
        .visibility(visibility(queue))
}

/// Both directions, with timeouts that an outage reaches.
fn hasty(url: &str, queue: &str) -> Door {
    let to = settings(url, queue).timeout(HASTY);
    let from = source_settings(url, queue).timeout(HASTY);
    Door {
        destination: Arc::new(Sqs::new(to.connect_timeout(HASTY / 2)).unwrap()),
        source: Arc::new(SqsSource::new(from.connect_timeout(HASTY / 2)).unwrap()),
    }
}

impl<const FIFO: bool> Servant<FIFO> {
    fn at(url: String, private: Option<PrivateSqs>) -> Self {
        Self {
            client: client(&url),
            url,
            private: private.map(Mutex::new),
        }
    }

    /// Makes a queue, and another one for its dead letters.
    pub(crate) async fn queue(&self, redrive: bool) -> String {
        let stem = format!("t-{}", MessageId::new());
        let suffix = if FIFO { ".fifo" } else { "" };
        let (name, grave) = (format!("{stem}{suffix}"), format!("{stem}-DLQ{suffix}"));
        let arn = self.create(&grave, None).await;
        let policy = format!(r#"{{"deadLetterTargetArn":"{arn}","maxReceiveCount":"1000"}}"#);
        self.create(&name, redrive.then_some(policy)).await;
        name
    }

    async fn create(&self, name: &str, policy: Option<String>) -> String {
        let mut request = self.client.create_queue().queue_name(name);
        if FIFO {
            request = request.attributes(QueueAttributeName::FifoQueue, "true");
        }
        if let Some(policy) = policy {
            request = request.attributes(QueueAttributeName::RedrivePolicy, policy);
        }
        request.send().await.expect("no queue can be made");
        let shown = self
            .client
            .get_queue_attributes()
            .queue_url(self.queue_url(name).await)
            .attribute_names(QueueAttributeName::QueueArn)
            .send()
            .await
            .expect("the queue is not there");
        shown.attributes.unwrap()[&QueueAttributeName::QueueArn].clone()
    }

    /// The URL of a queue.
    pub(crate) async fn queue_url(&self, name: &str) -> String {
        let asked = self.client.get_queue_url().queue_name(name).send().await;
        asked.expect("no such queue").queue_url.unwrap()
    }

    /// Takes what lies in a queue, and deletes it.
    pub(crate) async fn drain(&self, name: &str) -> Vec<Message> {
        let url = self.queue_url(name).await;
        let mut all = Vec::new();
        loop {
            let received = self
                .client
                .receive_message()
                .queue_url(&url)
                .max_number_of_messages(10)
                .message_attribute_names("All")
                .message_system_attribute_names(System::All)
                .send()
                .await
                .expect("nothing can be received");
            let messages = received.messages.unwrap_or_default();
            if messages.is_empty() {
                return all;
            }
            for message in messages {
                self.client
                    .delete_message()
                    .queue_url(&url)
                    .receipt_handle(message.receipt_handle.clone().unwrap())
                    .send()
                    .await
                    .expect("nothing can be deleted");
                all.push(message);
            }
        }
    }
}

/// What the book says about reading a message, written down once more.
pub(crate) fn read(message: Message) -> Foreign {
    let mut headers: BTreeMap<String, Bytes> = BTreeMap::new();
    let mut body = Bytes::from(message.body.unwrap_or_default());
    for (name, attribute) in message.message_attributes.unwrap_or_default() {
        let value = attribute.string_value.unwrap_or_default();
        match (name.as_str(), value.as_str()) {
            ("counterfoil-headers", json) => {
                let all: BTreeMap<String, String> = serde_json::from_str(json).unwrap();
                headers.extend(all.into_iter().map(|(n, v)| (n, Bytes::from(v))));
            }
            ("counterfoil-body", "base64") => body = STANDARD.decode(&body).unwrap().into(),
            ("counterfoil-body", _) => body = Bytes::new(),
            _ => {
                headers.insert(name, value.into());
            }
        }
    }
    Foreign {
        key: headers.get("ce_partitionkey").cloned(),
        headers: headers.into_iter().collect(),
        body,
    }
}

#[async_trait]
impl<const FIFO: bool> BrokerHarness for Servant<FIFO> {
    async fn start() -> Option<Self> {
        Some(Self::at(server::sqs()?, None))
    }

    async fn start_private() -> Option<Self> {
        let private = PrivateSqs::start().await?;
        Some(Self::at(private.url(), Some(private)))
    }

    async fn clean_up(&self) {
        if let Some(private) = &self.private {
            private.lock().await.kill().await;
        }
    }

    fn manner(&self) -> Manner {
        Manner {
            prefix: "ce_",
            groups: false,
            window: visibility(if FIFO { ".fifo" } else { "" }),
            keeps_data: true,
        }
    }

    async fn topic(&self) -> String {
        self.queue(true).await
    }

    async fn destination(&self, topic: &str) -> Arc<dyn Destination> {
        match self.private {
            Some(_) => hasty(&self.url, topic).destination,
            None => Arc::new(Sqs::new(settings(&self.url, topic)).unwrap()),
        }
    }

    async fn source(&self, topic: &str, _group: &str) -> Arc<dyn Source> {
        match self.private {
            Some(_) => hasty(&self.url, topic).source,
            None => Arc::new(SqsSource::new(source_settings(&self.url, topic)).unwrap()),
        }
    }

    async fn put(&self, topic: &str, message: &Foreign) {
        let body = std::str::from_utf8(&message.body).unwrap();
        let mut request = self
            .client
            .send_message()
            .queue_url(self.queue_url(topic).await)
            .message_body(body);
        for (name, value) in &message.headers {
            let value = std::str::from_utf8(value).unwrap();
            let attribute = MessageAttributeValue::builder()
                .data_type("String")
                .string_value(value);
            request = request.message_attributes(name, attribute.build().unwrap());
        }
        if FIFO {
            let key = message.key.as_deref().unwrap_or(b"none");
            request = request
                .message_group_id(std::str::from_utf8(key).unwrap())
                .message_deduplication_id(MessageId::new().to_string());
        }
        request.send().await.expect("nothing can be sent");
    }

    async fn dead_letters(&self, topic: &str, _group: &str) -> Vec<Foreign> {
        let grave = match topic.strip_suffix(".fifo") {
            Some(stem) => format!("{stem}-DLQ.fifo"),
            None => format!("{topic}-DLQ"),
        };
        self.drain(&grave).await.into_iter().map(read).collect()
    }

    async fn nowhere(&self) -> Door {
        // Port 1 of this machine is nobody's.
        let url = "http://127.0.0.1:1";
        let queue = format!(
            "{url}/000000000000/nobody{}",
            if FIFO { ".fifo" } else { "" }
        );
        hasty(url, &queue)
    }

    async fn stranger(&self, _topic: &str) -> Option<Door> {
        None
    }

    async fn absent(&self) -> Option<Door> {
        let queue = if FIFO { "absent.fifo" } else { "absent" };
        Some(Door {
            destination: self.destination(queue).await,
            source: self.source(queue, "").await,
        })
    }

    async fn kill(&self) {
        self.own().lock().await.kill().await;
    }

    async fn restart(&self) {
        self.own().lock().await.restart().await;
    }

    async fn pause(&self) {
        self.own().lock().await.pause().await;
    }

    async fn resume(&self) {
        self.own().lock().await.resume();
    }
}

impl<const FIFO: bool> Servant<FIFO> {
    fn own(&self) -> &Mutex<PrivateSqs> {
        self.private.as_ref().expect("the server is everybody's")
    }
}
