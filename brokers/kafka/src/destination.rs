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
use krafka::producer::{DeliveryHandle, Producer};
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

    async fn send(&self, batch: &[Delivery], records: Vec<Placed>, outcomes: &mut Outcomes) {
        let deadline = Instant::now() + self.timeout;
        let live = match timeout_at(deadline, self.link.take()).await {
            Ok(Ok(live)) => live,
            Ok(Err(outcome)) => return outcomes.note_all(&records, &outcome),
            Err(_) => return outcomes.note_all(&records, &self.no_time()),
        };
        let way = Way {
            live: &live,
            producer: &live.producer,
            deadline,
        };
        let large = self.send_along(&way, records, outcomes).await;
        // A batch that is too large says nothing about each of its messages.
        let again = |place: usize| Some((place, self.record(&batch[place]).ok()?));
        let large: Vec<Placed> = large.into_iter().filter_map(again).collect();
        if large.is_empty() {
            return;
        }
        let producer = match timeout_at(deadline, live.alone()).await {
            Ok(Ok(producer)) => producer,
            Ok(Err(error)) => return outcomes.note_all(&large, &before(&error)),
            Err(_) => return outcomes.note_all(&large, &self.no_time()),
        };
        self.send_along(&Way { producer, ..way }, large, outcomes)
            .await;
    }

    /// Hands records over, and waits for what comes of them. Those that were found too large.
    async fn send_along(
        &self,
        way: &Way<'_>,
        records: Vec<Placed>,
        outcomes: &mut Outcomes,
    ) -> Vec<usize> {
        let mut topics = BTreeMap::new();
        let mut under_way = Vec::with_capacity(records.len());
        for (place, record) in records {
            if !topics.contains_key(&record.topic) {
                let found = self.find(way, &record.topic).await;
                topics.insert(record.topic.clone(), found);
            }
            match &topics[&record.topic] {
                Some(failure) => outcomes.note(place, failure.clone()),
                None => match self.enqueue(way, record).await {
                    Ok(handle) => under_way.push((place, handle)),
                    Err(failure) => outcomes.note(place, failure),
                },
            }
        }
        let mut large = Vec::new();
        for (place, handle) in under_way {
            let outcome = self.confirmed(way, handle).await;
            if matches!(&outcome, Outcome::Refused { code, .. } if *code == Code::TOO_LARGE) {
                large.push(place);
            }
            outcomes.note(place, outcome);
        }
        large
    }

    /// Whether this topic cannot be written to, and why. Asked once for all of a batch: the answer
    /// "not there" takes its time.
    async fn find(&self, way: &Way<'_>, topic: &str) -> Option<Outcome> {
        match timeout_at(way.deadline, way.producer.partitions_for(topic)).await {
            Ok(Ok(_)) => {
                self.link.look_at(way.live, topic);
                None
            }
            Ok(Err(error)) => {
                if is_over(&error) {
                    self.link.discard(way.live).await;
                }
                Some(before(&error))
            }
            Err(_) => Some(self.no_time()),
        }
    }

    async fn enqueue(&self, way: &Way<'_>, record: Record) -> Result<DeliveryHandle, Outcome> {
        match timeout_at(way.deadline, way.producer.enqueue(record)).await {
            Ok(Ok(handle)) => Ok(handle),
            Ok(Err(error)) => {
                if is_over(&error) {
                    self.link.discard(way.live).await;
                }
                Err(before(&error))
            }
            Err(_) => Err(self.no_time()),
        }
    }

    async fn confirmed(&self, way: &Way<'_>, handle: DeliveryHandle) -> Outcome {
        match timeout_at(way.deadline, handle).await {
            Ok(Ok(_)) => Outcome::Stored,
            Ok(Err(error)) => {
                if is_over(&error) {
                    self.link.discard(way.live).await;
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

/// A record, and where in the batch its message stands.
type Placed = (usize, Record);

/// How records go.
#[derive(Clone, Copy)]
struct Way<'a> {
    live: &'a Arc<Live>,
    producer: &'a Producer,
    deadline: Instant,
}

/// The outcomes of a batch.
struct Outcomes(Vec<Option<Outcome>>);

impl Outcomes {
    fn note(&mut self, place: usize, outcome: Outcome) {
        self.0[place] = Some(outcome);
    }

    fn note_all(&mut self, records: &[Placed], outcome: &Outcome) {
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
            self.send(batch, records, &mut outcomes).await;
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
