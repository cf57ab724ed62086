//! All of it together: a message becomes an entry, an answer becomes an outcome.
//!
//! # Promise
//! One outcome per message, in order, all of them within the timeout. What was sent and not answered
//! is never called unavailable, and what was certainly not sent is never called unconfirmed.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::envelope::Source;
use counterfoil_core::{Capabilities, Code, Delivery, Destination, Outcome};
use redis::{Pipeline, Value};
use tokio::time::{Instant, timeout_at};

use crate::classify::{answer, is_over, why};
use crate::entry::Entry;
use crate::link::Link;
use crate::partition;
use crate::server::Server;
use crate::settings::{Settings, SettingsError};
use crate::stream::StreamName;

/// While one batch waits for its answers, the next ones are on their way. More of them would not be
/// faster: Redis does one thing at a time.
const CONCURRENCY: usize = 4;
/// The most bytes on their way in one go, unless one message is larger. A server takes values of
/// one MiB at least, so that it can only close the connection on a message that goes alone.
const MOST_BYTES: usize = 1024 * 1024;
/// The relay's own cut comes this much after ours, which knows more about what was sent.
const GRACE: Duration = Duration::from_secs(1);

/// Adds each message to a stream.
///
/// See [`Settings`] for what can be configured and an example.
pub struct RedisStreams {
    link: Link,
    shown: String,
    stream: StreamName,
    partitions: Option<u16>,
    source: Source,
    timeout: Duration,
    max_batch: usize,
    max_payload: usize,
}

impl RedisStreams {
    /// Builds the destination. Nothing is connected yet.
    pub fn new(settings: Settings) -> Result<Self, SettingsError> {
        let checked = settings.check()?;
        let shown = checked.address.shown.clone();
        let server = Server::new(
            checked.address,
            checked.connect_timeout,
            checked.max_payload,
        )?;
        Ok(Self {
            link: Link::new(server),
            shown,
            stream: checked.stream,
            partitions: checked.partitions,
            source: checked.source,
            timeout: checked.timeout,
            max_batch: checked.max_batch,
            max_payload: checked.max_payload,
        })
    }

    fn entry(&self, delivery: &Delivery) -> Result<Entry, Outcome> {
        let mut stream = self.stream.of(delivery);
        if let Some(partitions) = self.partitions {
            stream = partition::stream(&stream, partition::of(delivery, partitions));
        }
        Entry::of(delivery, &self.source, &stream, self.max_payload)
    }

    /// Sends what is collected and notes what came of it. Whether the rest may follow.
    async fn flush(&self, load: &mut Load, answers: &mut Answers, deadline: Instant) -> bool {
        let load = std::mem::take(load);
        if load.places.is_empty() {
            return true;
        }
        let places = load.places;
        match self.send(load.pipeline, deadline).await {
            Sent::Answered(outcomes) => {
                answers.note(&places, outcomes);
                true
            }
            Sent::Not(outcome) => {
                answers.note_all(&places, &outcome);
                answers.rest = Some(outcome);
                false
            }
            Sent::Broken(error) => {
                let unconfirmed = Outcome::retry(Code::UNCONFIRMED, error);
                answers.note_all(&places, &unconfirmed);
                // It may have been these that Redis hung up on: the rest has another chance.
                true
            }
            Sent::Late => {
                let error = format!("no answer within {:?}", self.timeout);
                let unconfirmed = Outcome::retry(Code::UNCONFIRMED, error.clone());
                answers.note_all(&places, &unconfirmed);
                let error = format!("not sent: {error}");
                answers.rest = Some(Outcome::Unavailable { error });
                false
            }
        }
    }

    async fn send(&self, mut pipeline: Pipeline, deadline: Instant) -> Sent {
        let mut live = match timeout_at(deadline, self.link.take()).await {
            Ok(Ok(live)) => live,
            Ok(Err(outcome)) => return Sent::Not(outcome),
            Err(_) => {
                let error = format!("no time left of {:?}", self.timeout);
                return Sent::Not(Outcome::Unavailable { error });
            }
        };
        let answered = pipeline
            .ignore_errors()
            .query_async::<Vec<Value>>(&mut live.connection);
        let values = match timeout_at(deadline, answered).await {
            Ok(Ok(values)) => values,
            Ok(Err(error)) => {
                self.link.discard(&live);
                return Sent::Broken(format!("the connection broke: {}", why(&error)));
            }
            Err(_) => {
                self.link.discard(&live);
                return Sent::Late;
            }
        };
        if values.iter().any(is_over) {
            self.link.discard(&live);
        }
        Sent::Answered(values.iter().map(answer).collect())
    }
}

/// What came of sending.
enum Sent {
    /// One outcome for each.
    Answered(Vec<Outcome>),
    /// Nothing was sent, and this is why.
    Not(Outcome),
    /// The connection broke: it may have arrived, whole or in part.
    Broken(String),
    /// No answer, and no time left: it may have arrived, or may still do.
    Late,
}

/// Entries that go together.
#[derive(Default)]
struct Load {
    /// Where in the batch they stand.
    places: Vec<usize>,
    pipeline: Pipeline,
    size: usize,
}

impl Load {
    fn has_room_for(&self, entry: &Entry) -> bool {
        self.places.is_empty() || self.size + entry.size <= MOST_BYTES
    }

    fn push(&mut self, place: usize, entry: Entry) {
        self.places.push(place);
        self.size += entry.size;
        self.pipeline.add_command(entry.command);
    }
}

/// The outcomes of a batch.
struct Answers {
    known: Vec<Option<Outcome>>,
    /// That of everything that was not sent any more.
    rest: Option<Outcome>,
}

impl Answers {
    fn note(&mut self, places: &[usize], outcomes: Vec<Outcome>) {
        for (place, outcome) in places.iter().zip(outcomes) {
            self.known[*place] = Some(outcome);
        }
    }

    fn note_all(&mut self, places: &[usize], outcome: &Outcome) {
        self.note(places, vec![outcome.clone(); places.len()]);
    }

    fn into_outcomes(self) -> Vec<Outcome> {
        let rest = self.rest.unwrap_or_else(|| {
            Outcome::retry(Code::UNCONFIRMED, "Redis gave no answer for this message")
        });
        let known = self.known.into_iter();
        known.map(|o| o.unwrap_or_else(|| rest.clone())).collect()
    }
}

#[async_trait]
impl Destination for RedisStreams {
    fn describe(&self) -> String {
        format!("redis stream {} at {}", self.stream.given(), self.shown)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            max_batch: self.max_batch,
            concurrency: CONCURRENCY,
            timeout: Some(self.timeout + GRACE),
        }
    }

    async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome> {
        let deadline = Instant::now() + self.timeout;
        let mut answers = Answers {
            known: vec![None; batch.len()],
            rest: None,
        };
        let mut load = Load::default();
        for (place, delivery) in batch.iter().enumerate() {
            let entry = match self.entry(delivery) {
                Ok(entry) => entry,
                Err(refused) => {
                    answers.known[place] = Some(refused);
                    continue;
                }
            };
            if !load.has_room_for(&entry) && !self.flush(&mut load, &mut answers, deadline).await {
                return answers.into_outcomes();
            }
            load.push(place, entry);
        }
        self.flush(&mut load, &mut answers, deadline).await;
        answers.into_outcomes()
    }
}

impl fmt::Debug for RedisStreams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStreams")
            .field("server", &self.shown)
            .field("stream", &self.stream.given())
            .finish_non_exhaustive()
    }
}
