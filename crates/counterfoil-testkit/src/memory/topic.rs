//! A broker in memory, for tests of consumers.
//!
//! # Promise
//! Every message is handed out until it is settled: again after a release, and everything that is
//! not settled again to the next subscription. A test can break the connection, and can look at what
//! was settled and how.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use counterfoil_core::source::{
    Arrival, DeadLetter, Features, HeaderValues, Settle, Source, SourceError, Subscription, Tag,
};
use tokio::sync::Notify;

/// A topic with one group of consumers, in memory.
#[derive(Clone, Default)]
pub struct Topic {
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
}

#[derive(Default)]
struct State {
    /// Everything that is not settled, by number, with how often it was handed out.
    open: BTreeMap<u64, (Arrival, u32)>,
    /// What can be handed out now.
    ready: VecDeque<u64>,
    next: u64,
    /// Grows when connections break: older ones are over.
    epoch: u64,
    done: Vec<u64>,
    dead: Vec<(u64, DeadLetter)>,
    /// Receptions altogether.
    received: u64,
}

impl Topic {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a message. Answers its number.
    pub fn send(&self, headers: &[(&str, &str)], body: &[u8]) -> u64 {
        let mut state = self.lock();
        state.next += 1;
        let number = state.next;
        let arrival = Arrival {
            tag: Tag(number),
            position: format!("memory@{number}"),
            key: None,
            headers: headers
                .iter()
                .map(|(n, v)| ((*n).to_owned(), Bytes::copy_from_slice(v.as_bytes())))
                .collect(),
            body: Bytes::copy_from_slice(body),
            deliveries: None,
        };
        state.open.insert(number, (arrival, 0));
        state.ready.push_back(number);
        drop(state);
        self.changed.notify_waiters();
        number
    }

    /// Hands a message out again that nobody has settled.
    pub fn repeat(&self, number: u64) {
        self.lock().ready.push_back(number);
        self.changed.notify_waiters();
    }

    /// Breaks every connection.
    pub fn break_off(&self) {
        let mut state = self.lock();
        state.epoch += 1;
        drop(state);
        self.changed.notify_waiters();
    }

    /// What was settled as done, in order.
    pub fn done(&self) -> Vec<u64> {
        self.lock().done.clone()
    }

    /// What went to the dead letters.
    pub fn dead(&self) -> Vec<(u64, DeadLetter)> {
        self.lock().dead.clone()
    }

    /// How often messages were handed out.
    pub fn received(&self) -> u64 {
        self.lock().received
    }

    /// Returns when nothing is left.
    pub async fn drained(&self) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.lock().open.is_empty() {
                return;
            }
            changed.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Member {
    topic: Topic,
    epoch: u64,
}

#[async_trait]
impl Source for Topic {
    fn describe(&self) -> String {
        "a topic in memory".into()
    }

    fn features(&self) -> Features {
        Features {
            ordering_key: false,
            native_dedup: false,
            delay: false,
            dead_letters: true,
            largest_payload: None,
            headers: HeaderValues::Bytes,
        }
    }

    async fn subscribe(&self) -> Result<Box<dyn Subscription>, SourceError> {
        let mut state = self.lock();
        state.epoch += 1;
        let epoch = state.epoch;
        state.ready = state.open.keys().copied().collect();
        drop(state);
        self.changed.notify_waiters();
        let topic = self.clone();
        Ok(Box::new(Member { topic, epoch }))
    }
}

#[async_trait]
impl Subscription for Member {
    async fn receive(&mut self, max: usize) -> Result<Vec<Arrival>, SourceError> {
        loop {
            let changed = self.topic.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let mut state = self.topic.lock();
                if state.epoch != self.epoch {
                    return Err(SourceError::Unavailable("the connection broke".into()));
                }
                let mut found = Vec::new();
                while found.len() < max
                    && let Some(number) = state.ready.pop_front()
                {
                    if let Some((arrival, times)) = state.open.get_mut(&number) {
                        *times += 1;
                        let mut arrival = arrival.clone();
                        arrival.deliveries = Some(*times);
                        found.push(arrival);
                    }
                }
                if !found.is_empty() {
                    state.received += found.len() as u64;
                    return Ok(found);
                }
            }
            changed.await;
        }
    }

    async fn settle(&mut self, settled: Vec<(Tag, Settle)>) -> Result<(), SourceError> {
        {
            let mut state = self.topic.lock();
            if state.epoch != self.epoch {
                return Err(SourceError::Unavailable("the connection broke".into()));
            }
            for (Tag(number), settle) in settled {
                match settle {
                    Settle::Done => {
                        state.open.remove(&number);
                        state.done.push(number);
                    }
                    Settle::Release { delay: Some(_) } => {
                        return Err(SourceError::Unsupported("a delay"));
                    }
                    Settle::Release { delay: None } => state.ready.push_back(number),
                    Settle::Dead(letter) => {
                        state.open.remove(&number);
                        state.dead.push((number, letter));
                    }
                }
            }
        }
        self.topic.changed.notify_waiters();
        Ok(())
    }

    async fn lag(&mut self) -> Result<Option<u64>, SourceError> {
        Ok(Some(self.topic.lock().ready.len() as u64))
    }

    async fn close(self: Box<Self>) -> Result<(), SourceError> {
        Ok(())
    }
}
