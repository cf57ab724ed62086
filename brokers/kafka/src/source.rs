//! Receiving: a member of a group, its messages, and how each of them ends.
//!
//! # Promise
//! Every message of the topic is handed out at least once to the group, and again until it is
//! settled. The group's mark in a partition never passes a message that is not. A dead letter is
//! confirmed by the broker before its message counts as settled.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::source::{
    Arrival, DeadLetter, Features, HeaderValues, Settle, Source, SourceError, Subscription, Tag,
};
use krafka::admin::{AdminClient, DescribeTopicsOptions, ListOffsetsOptions, OffsetSpec};
use krafka::consumer::{GroupProtocol, TopicPartition};
use krafka::error::ErrorCode;
use krafka::{Kafka, KrafkaError};
use tokio::time::timeout;

use crate::classify::{is_old_broker, received};
use crate::durability;
use crate::link::Live;
use crate::membership::Member;
use crate::record::dead_letters;
use crate::settings::{CheckedSource, MAX_PAYLOAD, SettingsError, SourceSettings};

/// Members that are there must first give something away.
const JOINING: Duration = Duration::from_secs(60);
/// The largest message that a broker could have handed to us.
const LARGEST_LETTER: usize = 64 * 1024 * 1024;

/// Receives from a topic, as a member of a group.
///
/// See [`SourceSettings`] for what can be configured and an example.
pub struct KafkaSource {
    settings: CheckedSource,
    /// Whether the settings of the topic were looked at.
    looked: AtomicBool,
}

impl KafkaSource {
    /// Builds the source. Nothing is connected yet.
    pub fn new(settings: SourceSettings) -> Result<Self, SettingsError> {
        Ok(Self {
            settings: settings.check()?,
            looked: AtomicBool::new(false),
        })
    }

    async fn connect(&self) -> Result<Kafka, SourceError> {
        let times = self.settings.times;
        let connecting = self.settings.access.connect(times.connect, times.request);
        within(times.whole, connecting).await
    }

    /// Whether the topic is there. The group would wait for it without a word.
    async fn find(&self, admin: &AdminClient) -> Result<(), SourceError> {
        let topic = &self.settings.topic;
        match exists(admin, topic, self.settings.times.whole).await? {
            true => Ok(()),
            false => Err(SourceError::Refused(format!("there is no topic {topic}"))),
        }
    }

    fn look(&self, admin: AdminClient) {
        if self.looked.swap(true, Ordering::Relaxed) {
            return;
        }
        let (topic, patience) = (self.settings.topic.clone(), self.settings.times.whole);
        tokio::spawn(async move {
            durability::look(&admin, &topic).await;
            let letters = dead_letters(&topic);
            if let Ok(false) = exists(&admin, &letters, patience).await {
                tracing::warn!(
                    topic,
                    letters,
                    "there is no topic for dead letters: make one"
                );
            }
        });
    }
}

async fn exists(admin: &AdminClient, topic: &str, time: Duration) -> Result<bool, SourceError> {
    let options = DescribeTopicsOptions::default().timeout(time);
    let mut found = within(time, admin.describe_topics([topic], options)).await?;
    match found.remove(topic) {
        Some(Ok(_)) => Ok(true),
        None
        | Some(Err(KrafkaError::Broker {
            code: ErrorCode::UnknownTopicOrPartition,
            ..
        })) => Ok(false),
        Some(Err(error)) => Err(received(error)),
    }
}

/// The answer, if it comes in time.
async fn within<T>(
    time: Duration,
    answer: impl Future<Output = Result<T, KrafkaError>>,
) -> Result<T, SourceError> {
    match timeout(time, answer).await {
        Ok(answer) => answer.map_err(received),
        Err(_) => Err(SourceError::Unavailable(format!(
            "no answer within {time:?}"
        ))),
    }
}

#[async_trait]
impl Source for KafkaSource {
    fn describe(&self) -> String {
        let (topic, servers) = (&self.settings.topic, &self.settings.access.servers);
        format!("kafka topic {topic} at {servers}")
    }

    fn features(&self) -> Features {
        Features {
            ordering_key: true,
            native_dedup: false,
            delay: false,
            dead_letters: true,
            largest_payload: Some(MAX_PAYLOAD),
            headers: HeaderValues::Bytes,
        }
    }

    async fn retention(&self) -> Result<Option<Duration>, SourceError> {
        let admin = self.connect().await?.admin();
        self.find(&admin).await?;
        let settings = durability::settings(&admin, &self.settings.topic);
        match within(self.settings.times.whole, settings).await {
            Ok(shown) => Ok(durability::retention(&shown)),
            // It may be allowed to read and not to look.
            Err(SourceError::Refused(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn subscribe(&self) -> Result<Box<dyn Subscription>, SourceError> {
        let kafka = self.connect().await?;
        let admin = kafka.admin();
        self.find(&admin).await?;
        self.look(admin);
        let join = |protocol| Member::join(&kafka, &self.settings, protocol, JOINING);
        let member = match join(GroupProtocol::Consumer).await {
            Err(error) if is_old_broker(&error) => {
                tracing::debug!(%error, "groups are formed in the older way");
                join(GroupProtocol::Classic).await
            }
            other => other,
        };
        let member = member.map_err(received)?;
        Ok(Box::new(KafkaSubscription {
            member,
            kafka,
            letters: None,
            settings: self.settings.clone(),
        }))
    }
}

impl fmt::Debug for KafkaSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaSource")
            .field("servers", &self.settings.access.servers)
            .field("topic", &self.settings.topic)
            .field("group", &self.settings.group)
            .finish_non_exhaustive()
    }
}

struct KafkaSubscription {
    member: Member,
    kafka: Kafka,
    /// Writes dead letters, once there was one.
    letters: Option<Live>,
    settings: CheckedSource,
}

impl KafkaSubscription {
    /// Writes the letter, unless the message is not ours any more.
    async fn bury(&mut self, tag: Tag, why: &DeadLetter) -> Result<(), SourceError> {
        let topic = &self.settings.topic;
        let letter = self
            .member
            .shared
            .ledger()
            .message(tag)
            .map(|(place, message)| {
                let (partition, offset) = place;
                message.letter(why, topic, partition, offset)
            });
        let Some(letter) = letter else {
            return Ok(());
        };
        let whole = self.settings.times.whole;
        let live = match &mut self.letters {
            Some(live) => live,
            empty => {
                let live = Live::new(self.kafka.clone(), whole, LARGEST_LETTER);
                empty.insert(within(whole, live).await?)
            }
        };
        match within(whole, live.producer.send(letter)).await {
            Ok(_) => Ok(()),
            Err(error) => {
                // Another attempt begins with another producer.
                self.letters = None;
                Err(error)
            }
        }
    }
}

#[async_trait]
impl Subscription for KafkaSubscription {
    async fn receive(&mut self, max: usize) -> Result<Vec<Arrival>, SourceError> {
        if max == 0 {
            return Ok(Vec::new());
        }
        let shared = &self.member.shared;
        let received = shared.until(|| match shared.end() {
            Some(error) => Some(Err(received(error))),
            None => Some(shared.ledger().take(max))
                .filter(|arrivals| !arrivals.is_empty())
                .map(Ok),
        });
        let received = received.await;
        self.member.ask_for_more();
        received
    }

    async fn settle(&mut self, settled: Vec<(Tag, Settle)>) -> Result<(), SourceError> {
        let delayed = |(_, how): &(Tag, Settle)| matches!(how, Settle::Release { delay: Some(_) });
        if settled.iter().any(delayed) {
            return Err(SourceError::Unsupported("Kafka cannot hold a message back"));
        }
        let mut failure = None;
        for (tag, how) in settled {
            match how {
                Settle::Done => self.member.shared.ledger().done(tag),
                Settle::Release { .. } => self.member.shared.ledger().release(tag),
                // One that cannot be written says enough: the rest comes again.
                Settle::Dead(_) if failure.is_some() => {}
                Settle::Dead(why) => match self.bury(tag, &why).await {
                    Ok(()) => self.member.shared.ledger().done(tag),
                    Err(error) => failure = Some(error),
                },
            }
        }
        let whole = self.settings.times.whole;
        self.member.tell(whole).await.map_err(received)?;
        failure.map_or(Ok(()), Err)
    }

    async fn lag(&mut self) -> Result<Option<u64>, SourceError> {
        let topic = &self.settings.topic;
        let partitions = self.member.partitions().await;
        let ends = partitions
            .iter()
            .map(|n| (TopicPartition::new(topic, *n), OffsetSpec::Latest));
        let options = ListOffsetsOptions::default().timeout(self.settings.times.whole);
        let admin = self.kafka.admin();
        let ends = admin.list_offsets(ends, options);
        let ends = within(self.settings.times.whole, ends).await?;
        let mut lag = 0;
        for (place, end) in ends {
            let end = end.map_err(received)?.offset;
            let position = self.member.consumer.position(topic, place.partition);
            let position = timeout(self.settings.times.whole, position).await;
            let waiting = position.ok().flatten().map_or(0, |next| end - next);
            lag += u64::try_from(waiting).unwrap_or_default();
        }
        let in_memory = u64::try_from(self.member.shared.ledger().ready()).unwrap_or_default();
        Ok(Some(lag + in_memory))
    }

    async fn close(self: Box<Self>) -> Result<(), SourceError> {
        self.member.leave().await;
        Ok(())
    }
}
