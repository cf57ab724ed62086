//! What a subscription knows, shared by the caller and the task that talks to the server.
//!
//! # Promise
//! A message is in one place at a time: ready, with the caller, or settled. Nothing here waits.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_nats::Subject;
use counterfoil_core::source::{Arrival, Tag};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::entry;
use crate::link::{Live, Trouble};
use crate::members::Members;
use crate::partition::{Item, Limits, Partition};
use crate::source_settings::CheckedSource;

/// A subscription.
pub(crate) struct Shared {
    pub(crate) live: Live,
    pub(crate) settings: Arc<CheckedSource>,
    pub(crate) stream: String,
    /// Where members talk to each other.
    pub(crate) talk: String,
    /// Wakes the caller that waits for messages.
    pub(crate) news: Notify,
    /// Tells the task that the caller wants to leave.
    pub(crate) leave: Notify,
    /// The partition of each consumer, by its name.
    consumers: HashMap<String, usize>,
    state: Mutex<State>,
}

/// What changes.
pub(crate) struct State {
    pub(crate) partitions: Vec<Partition>,
    pub(crate) members: Members,
    hand: HashMap<Tag, Held>,
    next_tag: u64,
    /// Whose turn it is to hand something on first.
    turn: usize,
    /// Why it is over.
    pub(crate) end: Option<Trouble>,
}

/// A message that the caller has.
pub(crate) struct Held {
    pub(crate) partition: usize,
    pub(crate) item: Item,
}

impl Held {
    /// To which one says how it ended.
    pub(crate) fn reply(&self) -> Option<Subject> {
        self.item.message.reply.clone()
    }
}

impl Shared {
    pub(crate) fn new(
        live: Live,
        settings: Arc<CheckedSource>,
        stream: String,
        me: String,
    ) -> Self {
        let limits = Limits {
            ack_wait: settings.ack_wait,
            max_in_flight: settings.max_in_flight,
        };
        let partitions = 0..settings.subjects.partitions();
        let mut state = State {
            partitions: partitions.map(|n| Partition::new(n, limits)).collect(),
            members: Members::new(me, settings.ack_wait / 2),
            hand: HashMap::new(),
            next_tag: 0,
            turn: 0,
            end: None,
        };
        state.assign();
        let consumer = |n: u16| (settings.consumer(n), usize::from(n));
        let consumers = (0..settings.subjects.partitions()).map(consumer).collect();
        Self {
            consumers,
            leave: Notify::new(),
            talk: format!("counterfoil.members.{stream}.{}", settings.group),
            live,
            settings,
            stream,
            news: Notify::new(),
            state: Mutex::new(state),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // Nothing is left half done by a panic here: each step is one assignment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The partition that this consumer serves.
    pub(crate) fn partition_of(&self, consumer: &str) -> Option<usize> {
        self.consumers.get(consumer).copied()
    }

    /// It is over, for the first reason that was found.
    pub(crate) fn end(&self, why: Trouble) {
        self.state().end.get_or_insert(why);
        self.news.notify_one();
    }

    /// What can be handed to the caller now.
    pub(crate) fn take(&self, max: usize) -> Result<Vec<Arrival>, Trouble> {
        let mut state = self.state();
        match &state.end {
            Some(why) => Err(why.clone()),
            None => Ok(state.take(max, &self.stream)),
        }
    }
}

impl State {
    /// Who serves which partition.
    pub(crate) fn assign(&mut self) {
        for partition in &mut self.partitions {
            partition.want(self.members.is_mine(partition.number));
        }
    }

    /// The partitions of which we have messages.
    pub(crate) fn holds(&self) -> Vec<u16> {
        let some = self.partitions.iter().filter(|p| p.holds());
        some.map(|p| p.number).collect()
    }

    fn take(&mut self, max: usize, stream: &str) -> Vec<Arrival> {
        let count = self.partitions.len();
        let mut taken = Vec::new();
        for step in 0..count {
            let place = (self.turn + step) % count;
            while taken.len() < max {
                let Some(item) = self.partitions[place].take() else {
                    break;
                };
                taken.push(self.hand_out(place, item, stream));
            }
        }
        self.turn = (self.turn + 1) % count;
        taken
    }

    fn hand_out(&mut self, partition: usize, item: Item, stream: &str) -> Arrival {
        let tag = Tag(self.next_tag);
        self.next_tag += 1;
        let position = format!("{stream}@{}", item.sequence);
        let arrival = entry::arrival(&item.message, tag, position, item.deliveries);
        self.hand.insert(tag, Held { partition, item });
        arrival
    }

    /// What the caller has under this tag.
    pub(crate) fn held(&self, tag: Tag) -> Option<&Held> {
        self.hand.get(&tag)
    }

    /// The caller does not have it any more.
    ///
    /// Before the server is told: what it gives out again at once must not be taken for a copy.
    pub(crate) fn let_go(&mut self, tag: Tag) -> Option<Held> {
        let held = self.hand.remove(&tag)?;
        self.partitions[held.partition].settled(held.item.sequence);
        Some(held)
    }

    /// Everything that the caller has, in the order in which it was handed out.
    pub(crate) fn let_go_all(&mut self) -> Vec<Held> {
        let mut tags: Vec<Tag> = self.hand.keys().copied().collect();
        tags.sort_unstable();
        tags.into_iter().filter_map(|t| self.let_go(t)).collect()
    }

    /// Those of which the server has to be told that we still have them.
    pub(crate) fn untouched(&mut self, limits: Limits, now: Instant) -> Vec<Subject> {
        let mut all = Vec::new();
        for partition in &mut self.partitions {
            all.extend(partition.untouched(now));
        }
        for held in self.hand.values_mut() {
            if now.duration_since(held.item.touched) >= limits.heartbeat() {
                held.item.touched = now;
                all.extend(held.reply());
            }
        }
        all
    }
}
