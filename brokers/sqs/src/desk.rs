//! What is out with the caller, and what waits for it.
//!
//! # Promise
//! From the moment SQS has handed a message out until it is settled, the queue hears a sign of life
//! for it at every third of its visibility timeout. A message is here before anybody can be told of
//! it, so that a caller who gives up waiting loses nothing.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_sdk_sqs::types::MessageSystemAttributeName as System;
use aws_sdk_sqs::types::{ChangeMessageVisibilityBatchRequestEntry, Message};
use counterfoil_core::source::{Arrival, Tag};
use futures_util::future::join_all;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use crate::arrival;
use crate::classify::{Problem, entry_problem, problem};
use crate::link::Queue;
use crate::send::{REQUEST, TOGETHER};

/// The desk of one subscription.
pub(crate) struct Desk {
    pub(crate) queue: Queue,
    /// In seconds.
    pub(crate) visibility: i32,
    pub(crate) timeout: Duration,
    papers: Mutex<Papers>,
    /// Held while the times of messages are changed: a sign of life that was under way must not
    /// arrive behind a release, and take it back.
    pub(crate) times: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Papers {
    next: u64,
    /// Everything that SQS has handed out and that is not settled.
    held: BTreeMap<Tag, Held>,
    /// Those of them that the caller does not have yet.
    waiting: VecDeque<Arrival>,
}

/// A message that SQS has handed out.
#[derive(Clone)]
pub(crate) struct Held {
    pub(crate) message: Message,
    pub(crate) receipt: String,
    since: Instant,
    /// Somebody else has it by now, or it is gone.
    lost: bool,
}

impl Held {
    /// Whether it is still ours, as far as we know.
    pub(crate) fn is_ours(&self) -> bool {
        !self.lost
    }

    /// Since it was received.
    pub(crate) fn age(&self) -> Duration {
        self.since.elapsed()
    }
}

impl Desk {
    pub(crate) fn new(queue: Queue, visibility: i32, timeout: Duration) -> Self {
        Self {
            queue,
            visibility,
            timeout,
            papers: Mutex::default(),
            times: tokio::sync::Mutex::default(),
        }
    }

    /// Asks for up to ten messages, and waits for them so many seconds. How many came.
    pub(crate) async fn fetch(&self, max: usize, wait: i32) -> Result<usize, Problem> {
        let patience = self.timeout + Duration::from_secs(wait.unsigned_abs().into());
        let asked = Instant::now();
        let request = self
            .queue
            .client
            .receive_message()
            .queue_url(&self.queue.url)
            .max_number_of_messages(i32::try_from(max.min(REQUEST)).unwrap_or(1))
            .wait_time_seconds(wait)
            .visibility_timeout(self.visibility)
            .message_attribute_names("All")
            .message_system_attribute_names(System::All)
            .send();
        let answer = match timeout(patience, request).await {
            Ok(answer) => answer.map_err(|e| problem(&e))?,
            Err(_) => {
                let error = format!("no answer within {:?}", asked.elapsed());
                return Err(Problem::Unconfirmed(error));
            }
        };
        let messages = answer.messages.unwrap_or_default();
        let count = messages.len();
        let mut papers = self.papers();
        for message in messages {
            papers.add(&self.queue.name, message);
        }
        Ok(count)
    }

    /// Up to so many for the caller.
    pub(crate) fn take(&self, max: usize) -> Vec<Arrival> {
        let waiting = &mut self.papers().waiting;
        let count = waiting.len().min(max);
        waiting.drain(..count).collect()
    }

    /// How many wait for the caller.
    pub(crate) fn waiting(&self) -> usize {
        self.papers().waiting.len()
    }

    /// What is held under this tag.
    pub(crate) fn held(&self, tag: Tag) -> Option<Held> {
        self.papers().held.get(&tag).cloned()
    }

    /// Everything that is held, in the order in which it came.
    pub(crate) fn all(&self) -> Vec<(Tag, Held)> {
        let papers = self.papers();
        papers.held.iter().map(|(t, h)| (*t, h.clone())).collect()
    }

    /// These are settled.
    pub(crate) fn forget(&self, tags: impl IntoIterator<Item = Tag>) {
        let mut papers = self.papers();
        for tag in tags {
            papers.held.remove(&tag);
        }
    }

    /// Gives signs of life until it is dropped.
    pub(crate) async fn beat(&self) {
        let visibility = Duration::from_secs(self.visibility.unsigned_abs().into());
        let third = visibility / 3;
        let mut ticks = interval(third);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let _times = self.times.lock().await;
            // What came a moment ago may well be settled before its time.
            let due = |(_, held): &(Tag, Held)| held.is_ours() && held.age() > third / 2;
            let all: Vec<_> = self.all().into_iter().filter(due).collect();
            let times: Vec<_> = all
                .into_iter()
                .map(|(tag, held)| (tag, held.receipt, self.visibility))
                .collect();
            let changing = self.change(&times);
            let error = match timeout(self.timeout, changing).await {
                Ok(Ok(())) => continue,
                Ok(Err(problem)) => format!("{problem:?}"),
                Err(_) => "no answer in time".to_owned(),
            };
            tracing::warn!(
                queue = self.queue.name,
                error,
                "no sign of life for messages in work"
            );
        }
    }

    /// Changes after which time messages come again. One that is no longer ours is noted.
    pub(crate) async fn change(&self, times: &[(Tag, String, i32)]) -> Result<(), Problem> {
        let mut worst = Ok(());
        let chunks: Vec<_> = times.chunks(REQUEST).collect();
        for some in chunks.chunks(TOGETHER) {
            let changed = some.iter().map(|some| self.change_some(some));
            for changed in join_all(changed).await {
                worst = worst.and(changed);
            }
        }
        worst
    }

    async fn change_some(&self, some: &[(Tag, String, i32)]) -> Result<(), Problem> {
        let mut entries = Vec::with_capacity(some.len());
        for (tag, receipt, seconds) in some {
            let entry = ChangeMessageVisibilityBatchRequestEntry::builder()
                .id(tag.to_string())
                .receipt_handle(receipt)
                .visibility_timeout(*seconds)
                .build()
                .map_err(|e| Problem::Invalid(e.to_string()))?;
            entries.push(entry);
        }
        let answer = self
            .queue
            .client
            .change_message_visibility_batch()
            .queue_url(&self.queue.url)
            .set_entries(Some(entries))
            .send()
            .await
            .map_err(|e| problem(&e))?;
        let mut later = Ok(());
        for failed in answer.failed {
            let problem = entry_problem(&failed);
            match problem.may_pass() {
                true => later = Err(problem),
                false => self.lose(&failed.id),
            }
        }
        later
    }

    fn lose(&self, tag: &str) {
        let Ok(tag) = tag.parse().map(Tag) else {
            return;
        };
        if let Some(held) = self.papers().held.get_mut(&tag) {
            held.lost = true;
        }
    }

    fn papers(&self) -> MutexGuard<'_, Papers> {
        self.papers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Papers {
    fn add(&mut self, queue: &str, message: Message) {
        let Some(receipt) = message.receipt_handle.clone() else {
            return;
        };
        self.next += 1;
        let tag = Tag(self.next);
        self.waiting.push_back(arrival::of(tag, queue, &message));
        let held = Held {
            message,
            receipt,
            since: Instant::now(),
            lost: false,
        };
        self.held.insert(tag, held);
    }
}
