//! All of it together: a message becomes a record, an answer becomes an outcome.
//!
//! # Promise
//! One outcome per message, in order, all of them within the timeout. What was handed over and not
//! answered is never called unavailable, and what was certainly not sent is never called
//! unconfirmed.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::envelope::Source;
use counterfoil_core::{Capabilities, Code, Delivery, Destination, Outcome};
use krafka::Record;
use krafka::producer::DeliveryHandle;
use tokio::time::{Instant, timeout_at};

use crate::classify::{after, before, is_over};
use crate::link::{Link, Live};
use crate::record;
use crate::settings::{Settings, SettingsError};
use crate::topic::TopicName;

/// While one batch waits for its answers, the next ones are on their way.
const CONCURRENCY: usize = 4;
/// The relay's own cut comes this much after ours, which knows more about what was sent.
const GRACE: Duration = Duration::from_secs(1);

/// Adds each message to a topic.
///
/// See [`Settings`] for what can be configured and an example.
pub struct Kafka {
    link: Link,
    topic: TopicName,
    source: Source,
    timeout: Duration,
    max_batch: usize,
    max_payload: usize,
}

impl Kafka {
    /// Builds the destination. Nothing is connected yet.
    pub fn new(settings: Settings) -> Result<Self, SettingsError> {
        let checked = settings.check()?;
        Ok(Self {
            timeout: checked.times.whole,
            link: Link::new(checked.access, checked.times, checked.max_payload),
            topic: checked.topic,
            source: checked.source,
            max_batch: checked.max_batch,
            max_payload: checked.max_payload,
        })
    }

    fn record(&self, delivery: &Delivery) -> Result<Record, Outcome> {
        let topic = self.topic.of(delivery)?;
        record::of(delivery, &self.source, topic, self.max_payload)
    }

    /// Hands records over, and waits for what comes of them.
    async fn send(&self, records: Vec<(usize, Record)>, outcomes: &mut Outcomes) {
        let deadline = Instant::now() + self.timeout;
        let live = match timeout_at(deadline, self.link.take()).await {
            Ok(Ok(live)) => live,
            Ok(Err(outcome)) => return outcomes.note_all(&records, &outcome),
            Err(_) => return outcomes.note_all(&records, &self.no_time()),
        };
        let mut topics = BTreeMap::new();
        let mut under_way = Vec::with_capacity(records.len());
        for (place, record) in records {
            if !topics.contains_key(&record.topic) {
                let found = self.find(&live, &record.topic, deadline).await;
                topics.insert(record.topic.clone(), found);
            }
            match &topics[&record.topic] {
                Some(failure) => outcomes.note(place, failure.clone()),
                None => match self.enqueue(&live, record, deadline).await {
                    Ok(handle) => under_way.push((place, handle)),
                    Err(failure) => outcomes.note(place, failure),
                },
            }
        }
        for (place, handle) in under_way {
            let outcome = self.confirmed(&live, handle, deadline).await;
            outcomes.note(place, outcome);
        }
    }

    /// Whether this topic cannot be written to, and why. Asked once for all of a batch: the answer
    /// "not there" takes its time.
    async fn find(&self, live: &Arc<Live>, topic: &str, deadline: Instant) -> Option<Outcome> {
        match timeout_at(deadline, live.producer.partitions_for(topic)).await {
            Ok(Ok(_)) => {
                self.link.look_at(live, topic);
                None
            }
            Ok(Err(error)) => {
                if is_over(&error) {
                    self.link.discard(live).await;
                }
                Some(before(&error))
            }
            Err(_) => Some(self.no_time()),
        }
    }

    async fn enqueue(
        &self,
        live: &Arc<Live>,
        record: Record,
        deadline: Instant,
    ) -> Result<DeliveryHandle, Outcome> {
        match timeout_at(deadline, live.producer.enqueue(record)).await {
            Ok(Ok(handle)) => Ok(handle),
            Ok(Err(error)) => {
                if is_over(&error) {
                    self.link.discard(live).await;
                }
                Err(before(&error))
            }
            Err(_) => Err(self.no_time()),
        }
    }

    async fn confirmed(
        &self,
        live: &Arc<Live>,
        handle: DeliveryHandle,
        deadline: Instant,
    ) -> Outcome {
        match timeout_at(deadline, handle).await {
            Ok(Ok(_)) => Outcome::Stored,
            Ok(Err(error)) => {
                if is_over(&error) {
                    self.link.discard(live).await;
                }
                after(&error)
            }
            Err(_) => {
                let error = format!("no confirmation within {:?}", self.timeout);
                Outcome::retry(Code::UNCONFIRMED, error)
            }
        }
    }

    fn no_time(&self) -> Outcome {
        let error = format!("not sent: no time left of {:?}", self.timeout);
        Outcome::Unavailable { error }
    }
}

/// The outcomes of a batch.
struct Outcomes(Vec<Option<Outcome>>);

impl Outcomes {
    fn note(&mut self, place: usize, outcome: Outcome) {
        self.0[place] = Some(outcome);
    }

    fn note_all(&mut self, records: &[(usize, Record)], outcome: &Outcome) {
        for (place, _) in records {
            self.note(*place, outcome.clone());
        }
    }
}

#[async_trait]
impl Destination for Kafka {
    fn describe(&self) -> String {
        format!(
            "kafka topic {} at {}",
            self.topic.given(),
            self.link.shown()
        )
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            max_batch: self.max_batch,
            concurrency: CONCURRENCY,
            timeout: Some(self.timeout + GRACE),
        }
    }

    async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome> {
        let mut outcomes = Outcomes(vec![None; batch.len()]);
        let mut records = Vec::with_capacity(batch.len());
        for (place, delivery) in batch.iter().enumerate() {
            match self.record(delivery) {
                Ok(record) => records.push((place, record)),
                Err(refused) => outcomes.note(place, refused),
            }
        }
        if !records.is_empty() {
            self.send(records, &mut outcomes).await;
        }
        let unknown = || Outcome::retry(Code::UNCONFIRMED, "nothing is known about this message");
        let known = outcomes.0.into_iter();
        known
            .map(|outcome| outcome.unwrap_or_else(unknown))
            .collect()
    }
}

impl fmt::Debug for Kafka {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kafka")
            .field("servers", &self.link.shown())
            .field("topic", &self.topic.given())
            .finish_non_exhaustive()
    }
}
