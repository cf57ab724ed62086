//! Where messages come from: durable pull consumers, one for each partition and group.
//!
//! # Promise
//! Whoever subscribes has been let in: the server is there, takes our credentials, has the stream,
//! and has a consumer of this group for each partition. What is there already is used as it is.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::source::{Features, HeaderValues, Source, SourceError, Subscription};
use futures_util::future::try_join_all;
use serde_json::{Value, json};

use crate::durability;
use crate::link::{Live, Trouble};
use crate::pump::{PRIORITY_GROUP, Pump};
use crate::settings::SettingsError;
use crate::source_settings::{CheckedSource, SourceSettings};
use crate::state::Shared;
use crate::streams;
use crate::subscription::NatsSubscription;

/// JetStream knows no consumer of this name.
const NO_CONSUMER: u64 = 10_014;

/// Receives the messages of a subject that a stream keeps.
///
/// See [`SourceSettings`] for what can be configured and an example.
pub struct NatsSource {
    settings: Arc<CheckedSource>,
    /// Whether the stream's settings were looked at.
    looked: AtomicBool,
}

impl NatsSource {
    /// Builds the source. Nothing is connected yet.
    pub fn new(settings: SourceSettings) -> Result<Self, SettingsError> {
        Ok(Self {
            settings: Arc::new(settings.check()?),
            looked: AtomicBool::new(false),
        })
    }

    /// A connection to a server that can do what is needed, and the stream.
    async fn enter(&self) -> Result<(Live, String), Trouble> {
        let settings = &self.settings;
        let live = Live::open(&settings.access, settings.connect_timeout).await?;
        if !live.client.is_server_compatible(2, 11, 0) {
            let version = live.client.server_info().version;
            return Err(Trouble::Refused(format!(
                "version 2.11 of NATS or a later one is needed, this is {version}"
            )));
        }
        let subjects = settings.subjects.all();
        let name = settings.subjects.stream_name();
        let wait = settings.timeout;
        let stream = streams::provide(&live, &subjects, &name, settings.create, wait).await?;
        Ok((live, stream))
    }

    async fn begin(&self) -> Result<NatsSubscription, Trouble> {
        let (live, stream) = self.enter().await?;
        if !self.looked.swap(true, Ordering::Relaxed) {
            let config = streams::config(&live, &stream, self.settings.timeout).await?;
            durability::judge(&stream, &config);
        }
        let partitions = 0..self.settings.subjects.partitions();
        let consumers = partitions.map(|n| provide_consumer(&self.settings, &live, &stream, n));
        try_join_all(consumers).await?;

        let inbox = live.client.new_inbox();
        let me = inbox.rsplit('.').next().unwrap_or(&inbox).to_owned();
        let settings = Arc::clone(&self.settings);
        let shared = Arc::new(Shared::new(live, settings, stream, me));
        let client = &shared.live.client;
        let lost = |_| Trouble::Unavailable("the connection broke".to_owned());
        let messages = client.subscribe(format!("{inbox}.*")).await.map_err(lost)?;
        let talk = client.subscribe(shared.talk.clone()).await.map_err(lost)?;
        let pump = Pump::new(Arc::clone(&shared), inbox);
        let task = tokio::spawn(pump.run(messages, talk));
        Ok(NatsSubscription::new(shared, task))
    }
}

/// Sees to it that there is a consumer for this partition, and that it is as the settings say.
async fn provide_consumer(
    settings: &CheckedSource,
    live: &Live,
    stream: &str,
    number: u16,
) -> Result<(), Trouble> {
    let name = settings.consumer(number);
    let filter = settings.subjects.of(number);
    let wanted = json!({
        "durable_name": name,
        "ack_policy": "explicit",
        "deliver_policy": "all",
        "replay_policy": "instant",
        "ack_wait": nanos(settings.ack_wait),
        "max_ack_pending": settings.max_in_flight,
        "max_deliver": -1,
        "filter_subject": filter,
        "priority_policy": "pinned_client",
        "priority_groups": [PRIORITY_GROUP],
        "priority_timeout": nanos(settings.ack_wait),
    });
    let subject = format!("CONSUMER.INFO.{stream}.{name}");
    match live.ask(&subject, &json!({}), settings.timeout).await {
        Ok(info) if fits(&info["config"], &wanted) => return Ok(()),
        Ok(_)
        | Err(Trouble::Api {
            code: NO_CONSUMER, ..
        }) => {}
        Err(other) => return Err(other),
    }
    let subject = format!("CONSUMER.CREATE.{stream}.{name}.{filter}");
    let question = json!({ "stream_name": stream, "config": wanted });
    match live.ask(&subject, &question, settings.timeout).await {
        Ok(_) => Ok(()),
        Err(Trouble::Api { error, .. }) => Err(Trouble::Refused(format!(
            "the consumer {name} cannot be made or changed: {error}"
        ))),
        Err(other) => Err(other),
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Whether everything that is wanted is so.
fn fits(found: &Value, wanted: &Value) -> bool {
    let wanted = wanted.as_object().into_iter().flatten();
    wanted
        .into_iter()
        .all(|(name, value)| found[name] == *value)
}

#[async_trait]
impl Source for NatsSource {
    fn describe(&self) -> String {
        let CheckedSource {
            subjects, access, ..
        } = &*self.settings;
        format!("nats subject {} at {}", subjects.base(), access.shown)
    }

    fn features(&self) -> Features {
        Features {
            ordering_key: true,
            native_dedup: true,
            delay: true,
            dead_letters: true,
            // The server's limit is on payload and headers together.
            largest_payload: None,
            headers: HeaderValues::Text,
        }
    }

    async fn retention(&self) -> Result<Option<Duration>, SourceError> {
        let (live, stream) = self.enter().await?;
        let config = streams::config(&live, &stream, self.settings.timeout).await?;
        let age = config["max_age"].as_u64().filter(|age| *age > 0);
        Ok(age.map(Duration::from_nanos))
    }

    async fn subscribe(&self) -> Result<Box<dyn Subscription>, SourceError> {
        Ok(Box::new(self.begin().await?))
    }
}

impl fmt::Debug for NatsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsSource")
            .field("server", &self.settings.access.shown)
            .field("subject", &self.settings.subjects.base())
            .field("group", &self.settings.group)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_consumer_fits_when_everything_that_is_wanted_is_so() {
        let wanted = json!({ "ack_policy": "explicit", "ack_wait": 5, "groups": ["a"] });
        let found = json!({ "ack_policy": "explicit", "ack_wait": 5, "groups": ["a"], "more": 1 });

        assert!(fits(&found, &wanted));
        assert!(!fits(&json!({ "ack_policy": "explicit" }), &wanted));
        assert!(!fits(&Value::Null, &wanted));
    }
}
