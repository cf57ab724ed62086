//! All of it together: a message is published, an answer becomes an outcome.
//!
//! # Promise
//! One outcome per message, in order, all of them within the timeout. What was sent and not answered
//! is never called unavailable, and what was certainly not sent is never called unconfirmed.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::Request;
use async_trait::async_trait;
use counterfoil_core::envelope::Source;
use counterfoil_core::{Capabilities, Code, Delivery, Destination, Outcome};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, sleep_until};

use crate::classify::{Answer, answer, silence};
use crate::durability;
use crate::entry::Entry;
use crate::link::{Link, Live, Trouble};
use crate::settings::{Create, Settings, SettingsError};
use crate::streams;
use crate::subject::Subjects;

/// While one batch waits for its answers, the next ones are on their way.
const CONCURRENCY: usize = 4;
/// The relay's own cut comes this much after ours, which knows more about what was sent.
const GRACE: Duration = Duration::from_secs(1);

/// Publishes each message to a subject that a stream takes.
///
/// See [`Settings`] for what can be configured and an example.
pub struct Nats {
    link: Link,
    shown: String,
    subjects: Subjects,
    create: Option<Create>,
    source: Source,
    timeout: Duration,
    max_batch: usize,
    max_payload: usize,
    /// Whether the stream's settings were looked at.
    looked: AtomicBool,
}

impl Nats {
    /// Builds the destination. Nothing is connected yet.
    pub fn new(settings: Settings) -> Result<Self, SettingsError> {
        let checked = settings.check()?;
        Ok(Self {
            shown: checked.access.shown.clone(),
            link: Link::new(checked.access, checked.connect_timeout),
            subjects: checked.subjects,
            create: checked.create,
            source: checked.source,
            timeout: checked.timeout,
            max_batch: checked.max_batch,
            max_payload: checked.max_payload,
            looked: AtomicBool::new(false),
        })
    }

    /// Sends everything that can be sent and notes what came of it.
    async fn send(&self, live: &Live, load: Vec<Sending>, answers: &mut Answers, until: Instant) {
        let mut load = load;
        let nobody = self.attempt(live, &mut load, answers, until).await;
        if nobody.is_empty() {
            return;
        }
        // Nothing of these was stored: nobody listens. It may be that the stream is still to be
        // made, or that it has no leader at the moment.
        match self.missing(live, until).await {
            Ok(true) => {
                load.retain(|sending| nobody.contains(&sending.place));
                let again = self.attempt(live, &mut load, answers, until).await;
                let still = Trouble::Unavailable("no stream takes the subject yet".to_owned());
                answers.note_all(&again, &still.outcome());
            }
            Ok(false) => {
                let error = "a stream takes the subject, and does not answer now";
                answers.note_all(&nobody, &Outcome::retry(Code::UPSTREAM_5XX, error));
            }
            Err(trouble) => answers.note_all(&nobody, &trouble.outcome()),
        }
    }

    /// One attempt. The places of those that nobody listened to.
    async fn attempt(
        &self,
        live: &Live,
        load: &mut [Sending],
        answers: &mut Answers,
        until: Instant,
    ) -> Vec<usize> {
        let mut subjects: Vec<String> = load.iter().map(|s| s.entry.subject.clone()).collect();
        subjects.sort_unstable();
        subjects.dedup();
        let mut left: FuturesUnordered<_> = load.iter().map(|s| offer(live, s)).collect();
        let mut nobody = Vec::new();
        let over = async {
            tokio::select! {
                trouble = live.hindered(&subjects) => trouble,
                () = sleep_until(until) => {
                    Trouble::Unavailable(format!("no answer within {:?}", self.timeout))
                }
            }
        };
        tokio::pin!(over);
        loop {
            tokio::select! {
                biased;
                next = left.next() => match next {
                    None => break,
                    Some((place, Answer::Known(outcome))) => answers.note(place, outcome),
                    Some((place, Answer::Nobody)) => nobody.push(place),
                    Some((place, Answer::Unknown(error))) => {
                        live.discard();
                        answers.note(place, Outcome::retry(Code::UNCONFIRMED, error));
                    }
                },
                trouble = &mut over => {
                    // What has no answer may have arrived, unless we are told that it may not.
                    live.discard();
                    answers.rest = Some(match trouble {
                        refused @ Trouble::Refused(_) => refused.outcome(),
                        Trouble::Unavailable(error) | Trouble::Api { error, .. } => {
                            Outcome::retry(Code::UNCONFIRMED, error)
                        }
                    });
                    break;
                }
            }
        }
        nobody
    }

    /// No stream takes the subject: whether it was made now. An error when that was not wanted.
    async fn missing(&self, live: &Live, until: Instant) -> Result<bool, Trouble> {
        let wait = until.saturating_duration_since(Instant::now());
        let all = self.subjects.all();
        let first = self.subjects.of(0);
        let found = streams::find(live, &first, wait).await?;
        match (found, self.create) {
            (Some(_), _) => Ok(false),
            (None, None) => Err(Trouble::Refused(format!(
                "no stream takes the subject {first}"
            ))),
            (None, Some(how)) => {
                let name = self.subjects.stream_name();
                streams::create(live, &name, &all, how, wait).await?;
                Ok(true)
            }
        }
    }

    /// Looks at the stream's settings in the background: nobody waits for it.
    fn look_once(&self, live: &Live) {
        if self.looked.swap(true, Ordering::Relaxed) {
            return;
        }
        let (live, subject, wait) = (live.clone(), self.subjects.of(0), self.timeout);
        tokio::spawn(async move {
            let found = match streams::find(&live, &subject, wait).await {
                Ok(Some(stream)) => streams::config(&live, &stream, wait)
                    .await
                    .map(|config| (stream, config)),
                Ok(None) => return,
                Err(trouble) => Err(trouble),
            };
            match found {
                Ok((stream, config)) => durability::judge(&stream, &config),
                // Without the right to look, nothing is said.
                Err(trouble) => tracing::debug!(?trouble, "the stream does not show its settings"),
            }
        });
    }
}

/// A message on its way.
struct Sending {
    /// Where in the batch it stands.
    place: usize,
    entry: Entry,
}

/// Publishes one, and waits for the answer of the stream.
async fn offer(live: &Live, sending: &Sending) -> (usize, Answer) {
    let entry = &sending.entry;
    let request = Request::new()
        .headers(entry.headers.clone())
        .payload(entry.payload.clone())
        .timeout(None);
    let said = live.client.send_request(entry.subject.clone(), request);
    let answer = match said.await {
        Ok(message) => Answer::Known(answer(&message.payload)),
        Err(error) => silence(&error),
    };
    (sending.place, answer)
}

/// The outcomes of a batch.
struct Answers {
    known: Vec<Option<Outcome>>,
    /// That of everything that got no answer.
    rest: Option<Outcome>,
}

impl Answers {
    fn note(&mut self, place: usize, outcome: Outcome) {
        self.known[place] = Some(outcome);
    }

    fn note_all(&mut self, places: &[usize], outcome: &Outcome) {
        for place in places {
            self.note(*place, outcome.clone());
        }
    }

    fn into_outcomes(self) -> Vec<Outcome> {
        let rest = self.rest.unwrap_or_else(|| {
            Outcome::retry(Code::UNCONFIRMED, "NATS gave no answer for this message")
        });
        let known = self.known.into_iter();
        known.map(|o| o.unwrap_or_else(|| rest.clone())).collect()
    }
}

#[async_trait]
impl Destination for Nats {
    fn describe(&self) -> String {
        format!("nats subject {} at {}", self.subjects.base(), self.shown)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            max_batch: self.max_batch,
            concurrency: CONCURRENCY,
            timeout: Some(self.timeout + GRACE),
        }
    }

    async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome> {
        let until = Instant::now() + self.timeout;
        let mut answers = Answers {
            known: vec![None; batch.len()],
            rest: None,
        };
        let mut load = Vec::with_capacity(batch.len());
        for (place, delivery) in batch.iter().enumerate() {
            match Entry::of(delivery, &self.source, &self.subjects, self.max_payload) {
                Ok(entry) => load.push(Sending { place, entry }),
                Err(refused) => answers.note(place, refused),
            }
        }
        if load.is_empty() {
            return answers.into_outcomes();
        }
        match tokio::time::timeout_at(until, self.link.take()).await {
            Ok(Ok(live)) => {
                self.send(&live, load, &mut answers, until).await;
                if answers.known.contains(&Some(Outcome::Stored)) {
                    self.look_once(&live);
                }
            }
            Ok(Err(trouble)) => answers.rest = Some(trouble.outcome()),
            Err(_) => {
                let error = format!("no time left of {:?}", self.timeout);
                answers.rest = Some(Outcome::Unavailable { error });
            }
        }
        answers.into_outcomes()
    }
}

impl fmt::Debug for Nats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nats")
            .field("server", &self.shown)
            .field("subject", &self.subjects.base())
            .finish_non_exhaustive()
    }
}
