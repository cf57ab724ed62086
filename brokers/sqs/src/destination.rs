//! All of it together: a delivery becomes a message, an answer becomes an outcome.
//!
//! # Promise
//! One outcome per message, in order, all of them within the timeout. What was sent and not answered
//! is never called unavailable, and what was certainly not sent is never called unconfirmed.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::envelope::Source;
use counterfoil_core::{Capabilities, Code, Delivery, Destination, Outcome};
use futures_util::future::join_all;
use tokio::time::{Instant, timeout_at};

use crate::durability;
use crate::entry::{self, Bounds};
use crate::link::{Link, Queue};
use crate::parcel::Parcel;
use crate::send::{REQUEST, send};
use crate::settings::{Settings, SettingsError};

/// Calls at one time. Each of them has several requests under way.
const CONCURRENCY: usize = 4;
/// The relay's own cut comes this much after ours, which knows more about what was sent.
const GRACE: Duration = Duration::from_secs(1);

/// Sends each message to a queue.
///
/// See [`Settings`] for what can be configured and an example.
pub struct Sqs {
    link: Link,
    source: Source,
    timeout: Duration,
    max_batch: usize,
    bounds: Bounds,
    /// Whether the queue's settings were looked at.
    looked: Arc<AtomicBool>,
}

impl Sqs {
    /// Builds the destination. Nothing is connected yet.
    pub fn new(settings: Settings) -> Result<Self, SettingsError> {
        let checked = settings.check()?;
        let bounds = Bounds {
            fifo: checked.place.is_fifo(),
            max_payload: checked.max_payload,
            max_message: checked.max_message,
        };
        Ok(Self {
            link: Link::new(checked.place, checked.connect_timeout),
            source: checked.source,
            timeout: checked.timeout,
            max_batch: checked.max_batch,
            bounds,
            looked: Arc::default(),
        })
    }

    /// Looks at the queue's settings in the background, once: nobody waits for it.
    fn look_once(&self, queue: &Queue) {
        if self.looked.swap(true, Ordering::Relaxed) {
            return;
        }
        let (queue, looked) = (queue.clone(), Arc::clone(&self.looked));
        let (patience, max_message) = (self.timeout, self.bounds.max_message);
        tokio::spawn(async move {
            let look = durability::look(&queue, max_message);
            if !tokio::time::timeout(patience, look).await.unwrap_or(false) {
                looked.store(false, Ordering::Relaxed);
            }
        });
    }

    /// Sends what goes together. The outcomes of these, in order.
    async fn flush(&self, queue: &Queue, load: Load, deadline: Instant) -> Vec<(usize, Outcome)> {
        let Load {
            places, parcels, ..
        } = load;
        let outcomes = match timeout_at(deadline, send(queue, parcels)).await {
            Ok(answers) => answers
                .into_iter()
                .map(|answer| answer.map_or_else(|p| p.outcome(), |()| Outcome::Stored))
                .collect(),
            Err(_) => {
                let error = format!("no answer within {:?}", self.timeout);
                vec![Outcome::retry(Code::UNCONFIRMED, error); places.len()]
            }
        };
        places.into_iter().zip(outcomes).collect()
    }
}

/// Messages that go together.
#[derive(Default)]
struct Load {
    /// Where in the batch they stand.
    places: Vec<usize>,
    parcels: Vec<Parcel>,
    size: usize,
}

impl Load {
    fn has_room_for(&self, size: usize, most: usize) -> bool {
        self.parcels.len() < REQUEST && self.size + size <= most
    }

    fn push(&mut self, place: usize, parcel: Parcel, size: usize) {
        self.places.push(place);
        self.parcels.push(parcel);
        self.size += size;
    }
}

/// Requests of up to ten messages and so many bytes.
fn loads(parcels: Vec<(usize, Parcel)>, most: usize) -> Vec<Load> {
    let mut loads: Vec<Load> = Vec::new();
    for (place, parcel) in parcels {
        let size = parcel.size();
        match loads.last_mut() {
            Some(load) if load.has_room_for(size, most) => load.push(place, parcel, size),
            _ => {
                let mut load = Load::default();
                load.push(place, parcel, size);
                loads.push(load);
            }
        }
    }
    loads
}

#[async_trait]
impl Destination for Sqs {
    fn describe(&self) -> String {
        self.link.place.shown()
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
        let late = Outcome::Unavailable {
            error: format!("no time left of {:?}", self.timeout),
        };
        let mut outcomes = vec![late; batch.len()];
        let mut parcels = Vec::with_capacity(batch.len());
        for (place, delivery) in batch.iter().enumerate() {
            match entry::of(delivery, &self.source, self.bounds) {
                Ok(parcel) => parcels.push((place, parcel)),
                Err(refused) => outcomes[place] = refused,
            }
        }
        if parcels.is_empty() {
            return outcomes;
        }
        let queue = match timeout_at(deadline, self.link.queue()).await {
            Ok(Ok(queue)) => queue,
            Ok(Err(problem)) => {
                let outcome = not_sent(problem.outcome());
                for (place, _) in parcels {
                    outcomes[place] = outcome.clone();
                }
                return outcomes;
            }
            // Nothing was sent.
            Err(_) => return outcomes,
        };
        self.look_once(&queue);
        let loads = loads(parcels, self.bounds.max_message);
        let sent = loads
            .into_iter()
            .map(|load| self.flush(&queue, load, deadline));
        for (place, outcome) in join_all(sent).await.into_iter().flatten() {
            outcomes[place] = outcome;
        }
        outcomes
    }
}

/// Nothing of a message was sent while the queue was looked for.
fn not_sent(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Retry { error, .. } | Outcome::Refused { error, .. } => {
            Outcome::Unavailable { error }
        }
        other => other,
    }
}

impl fmt::Debug for Sqs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sqs")
            .field("queue", &self.link.place.shown())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::tests::{MESSAGE, delivery, parcel};

    #[test]
    fn a_request_has_ten_messages_and_so_many_bytes_at_most() {
        let one = parcel(&delivery(), false).unwrap();
        let many: Vec<_> = (0..25).map(|place| (place, one.clone())).collect();
        let heavy = Parcel {
            body: "x".repeat(MESSAGE / 2),
            ..one
        };
        let heavy: Vec<_> = (0..3).map(|place| (place, heavy.clone())).collect();

        let places = |loads: Vec<Load>| {
            loads
                .into_iter()
                .map(|l| l.places.len())
                .collect::<Vec<_>>()
        };

        assert_eq!(places(loads(many, MESSAGE)), [10, 10, 5]);
        assert_eq!(places(loads(heavy, MESSAGE)), [1, 1, 1]);
    }
}
