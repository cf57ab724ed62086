//! All of it together: a message is published, an answer becomes an outcome.
//!
//! # Promise
//! One outcome per message, in order, all of them within the timeout. What was sent and not answered
//! is never called unavailable, and what no queue took is never called stored.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::envelope::Source;
use counterfoil_core::{Capabilities, Code, Delivery, Destination, Outcome};
use tokio::time::Instant;

use crate::classify::Failure;
use crate::durability;
use crate::link::Dial;
use crate::names::{Place, Queues, Target};
use crate::outgoing::{outgoing, too_large};
use crate::publisher::{Fate, Outgoing, Publisher};
use crate::settings::{Settings, SettingsError};

/// While one batch waits for its confirms, the next ones are on their way.
const CONCURRENCY: usize = 4;
/// The relay's own cut comes this much after ours, which knows more about what was sent.
const GRACE: Duration = Duration::from_secs(1);
/// A server whose limit is below ours closes the channel, and the others of the batch go again.
const ROUNDS: usize = 3;

/// Publishes each message, and waits until RabbitMQ has confirmed it.
///
/// See [`Settings`] for what can be configured and an example.
pub struct RabbitMq {
    publisher: Publisher,
    dial: Dial,
    target: Target,
    source: Source,
    timeout: Duration,
    max_batch: usize,
    max_payload: usize,
    /// The server's own limit, once it has told it.
    told: AtomicUsize,
    /// Whether the queue was looked at.
    looked: Arc<AtomicBool>,
}

impl RabbitMq {
    /// Builds the destination. Nothing is connected yet.
    pub fn new(settings: Settings) -> Result<Self, SettingsError> {
        let checked = settings.check()?;
        Ok(Self {
            publisher: Publisher::new(checked.dial.clone()),
            dial: checked.dial,
            target: checked.target,
            source: checked.source,
            timeout: checked.timeout,
            max_batch: checked.max_batch,
            max_payload: checked.max_payload,
            told: AtomicUsize::new(usize::MAX),
            looked: Arc::default(),
        })
    }

    fn outgoing(&self, delivery: &Delivery) -> Result<Outgoing, Outcome> {
        let limit = self.max_payload.min(self.told.load(Ordering::Relaxed));
        outgoing(delivery, &self.source, &self.target, limit)
    }

    fn outcome(&self, fate: Fate) -> Outcome {
        match fate {
            Fate::Stored => Outcome::Stored,
            Fate::Nacked => Outcome::retry(
                Code::UPSTREAM_5XX,
                "RabbitMQ did not take it: the queue is full, or not enough of its nodes are there",
            ),
            Fate::Returned(error) => Failure::Refused(error).outcome(),
            Fate::Closed(said) => said.outcome(),
            Fate::Oversized { size, limit } => too_large("headers and attributes", size, limit),
            Fate::Broken(error) => Outcome::retry(Code::UNCONFIRMED, error),
            Fate::Late => {
                let error = format!("no confirm within {:?}", self.timeout);
                Outcome::retry(Code::UNCONFIRMED, error)
            }
            Fate::Not(failure) => failure.outcome(),
        }
    }

    /// The server's limit, if the channel was closed for that. What is over it can never pass.
    fn learn(&self, fates: &[Fate]) -> Option<usize> {
        let limit = fates.iter().find_map(|fate| match fate {
            Fate::Closed(said) => said.largest(),
            _ => None,
        })?;
        self.told.store(limit, Ordering::Relaxed);
        Some(limit)
    }

    /// Looks at the queue in the background, once: nobody waits for it.
    fn look_once(&self) {
        let Target::Queue { name, partitions } = &self.target else {
            return;
        };
        if self.looked.swap(true, Ordering::Relaxed) {
            return;
        }
        let Ok(queues) = Queues::new(&Place::Queue(name.clone()), None, *partitions) else {
            return;
        };
        let (dial, looked) = (self.dial.clone(), Arc::clone(&self.looked));
        tokio::spawn(async move {
            if !durability::look(&dial, &queues).await {
                looked.store(false, Ordering::Relaxed);
            }
        });
    }
}

#[async_trait]
impl Destination for RabbitMq {
    fn describe(&self) -> String {
        format!("rabbitmq {} at {}", self.target.shown(), self.dial.shown)
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
        let mut known: Vec<Option<Outcome>> = vec![None; batch.len()];
        for _ in 0..ROUNDS {
            let (mut places, mut load) = (Vec::new(), Vec::new());
            for (place, delivery) in batch.iter().enumerate() {
                if known[place].is_some() {
                    continue;
                }
                match self.outgoing(delivery) {
                    Ok(out) => {
                        places.push(place);
                        load.push(out);
                    }
                    Err(refused) => known[place] = Some(refused),
                }
            }
            let fates = self.publisher.send(&load, deadline).await;
            let again = self.learn(&fates).is_some();
            for (place, fate) in places.into_iter().zip(fates) {
                let open = again && matches!(&fate, Fate::Closed(said) if said.largest().is_some());
                if !open {
                    known[place] = Some(self.outcome(fate));
                }
            }
            if known.iter().all(Option::is_some) {
                break;
            }
        }
        if known.contains(&Some(Outcome::Stored)) {
            self.look_once();
        }
        let unknown = || {
            Outcome::retry(
                Code::UNCONFIRMED,
                "RabbitMQ closed the channel again and again",
            )
        };
        let known = known.into_iter();
        known
            .map(|outcome| outcome.unwrap_or_else(unknown))
            .collect()
    }
}

impl fmt::Debug for RabbitMq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitMq")
            .field("server", &self.dial.shown)
            .field("target", &self.target.shown())
            .finish_non_exhaustive()
    }
}
