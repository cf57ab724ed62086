//! What was fetched, who has it, and up to where everything is settled.
//!
//! # Promise
//! A mark of a partition never passes a message that is not settled. A message that was released is
//! handed out again from here, before any other of its key, and keeps nobody else waiting. What
//! belonged to a partition is forgotten with it: settling it later changes nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use bytes::Bytes;
use counterfoil_core::source::{Arrival, Tag};

use crate::record::Fetched;

/// Messages of one partition between the first that is not settled and the last that was fetched.
const WINDOW: usize = 10_000;
/// Bytes that wait for somebody to ask for them.
const READY_BYTES: usize = 16 * 1024 * 1024;

/// A message within the topic.
type Place = (i32, i64);

/// Where a group goes on in a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The first message that is not settled.
    pub(crate) offset: i64,
    /// The leader under which the one before it was written, where it is known.
    pub(crate) epoch: Option<i32>,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// In memory, for whoever asks.
    Ready,
    /// With the caller.
    Out(Tag),
    /// Settled, behind one that is not.
    Settled,
}

struct Entry {
    offset: i64,
    epoch: Option<i32>,
    state: State,
    message: Option<Fetched>,
}

#[derive(Default)]
struct Partition {
    /// In the order of their offsets.
    entries: VecDeque<Entry>,
    /// Up to here everything is settled, and the broker does not know it yet.
    mark: Option<Mark>,
    /// The offset after the last that was fetched.
    end: i64,
}

impl Partition {
    fn entry(&mut self, offset: i64) -> Option<&mut Entry> {
        let found = self.entries.binary_search_by_key(&offset, |e| e.offset);
        found.ok().map(|at| &mut self.entries[at])
    }
}

/// The messages of one subscription.
pub(crate) struct Ledger {
    topic: String,
    prefetch: usize,
    partitions: BTreeMap<i32, Partition>,
    out: HashMap<Tag, Place>,
    last_tag: u64,
    /// Never handed out, in the order in which they were fetched.
    fresh: VecDeque<Place>,
    /// Handed out and released.
    again: BTreeSet<Place>,
    /// The keys of those, and how many of each.
    held: HashMap<(i32, Bytes), usize>,
    /// Whether a fresh one has its turn.
    fresh_next: bool,
    ready_bytes: usize,
}

impl Ledger {
    pub(crate) fn new(topic: String, prefetch: usize) -> Self {
        Self {
            topic,
            prefetch,
            partitions: BTreeMap::new(),
            out: HashMap::new(),
            last_tag: 0,
            fresh: VecDeque::new(),
            again: BTreeSet::new(),
            held: HashMap::new(),
            fresh_next: false,
            ready_bytes: 0,
        }
    }

    /// Takes in a message that was fetched.
    pub(crate) fn push(
        &mut self,
        partition: i32,
        offset: i64,
        epoch: Option<i32>,
        message: Fetched,
    ) {
        let end = self.partitions.get(&partition).map_or(0, |p| p.end);
        if offset < end {
            self.truncate(partition, offset);
        }
        self.ready_bytes += message.size();
        self.fresh.push_back((partition, offset));
        let partition = self.partitions.entry(partition).or_default();
        partition.end = offset + 1;
        partition.entries.push_back(Entry {
            offset,
            epoch,
            state: State::Ready,
            message: Some(message),
        });
    }

    /// Hands out at most so many.
    pub(crate) fn take(&mut self, max: usize) -> Vec<Arrival> {
        let mut arrivals = Vec::new();
        while arrivals.len() < max
            && let Some(place) = self.next()
        {
            arrivals.extend(self.hand_out(place));
        }
        arrivals
    }

    fn next(&mut self) -> Option<Place> {
        if self.fresh_next || self.again.is_empty() {
            self.fresh_next = false;
            if let Some(place) = self.next_fresh() {
                return Some(place);
            }
        }
        self.fresh_next = true;
        let place = self.again.pop_first()?;
        self.no_longer_held(place);
        Some(place)
    }

    /// A released message does not wait any more for its turn.
    fn no_longer_held(&mut self, place: Place) {
        if let Some(key) = self.key(place)
            && let Some(count) = self.held.get_mut(&key)
        {
            *count -= 1;
            if *count == 0 {
                self.held.remove(&key);
            }
        }
    }

    /// The first one whose key has no released message that must come before it.
    fn next_fresh(&mut self) -> Option<Place> {
        if self.held.is_empty() {
            return self.fresh.pop_front();
        }
        let free = |place: &Place| {
            self.key(*place)
                .is_none_or(|key| !self.held.contains_key(&key))
        };
        let at = self.fresh.iter().position(free)?;
        self.fresh.remove(at)
    }

    fn key(&self, (partition, offset): Place) -> Option<(i32, Bytes)> {
        let entries = &self.partitions.get(&partition)?.entries;
        let at = entries.binary_search_by_key(&offset, |e| e.offset).ok()?;
        let message = entries[at].message.as_ref()?;
        message.key.clone().map(|key| (partition, key))
    }

    fn hand_out(&mut self, place: Place) -> Option<Arrival> {
        let (partition, offset) = place;
        let entry = self.partitions.get_mut(&partition)?.entry(offset)?;
        let message = entry.message.as_ref()?;
        self.last_tag += 1;
        let tag = Tag(self.last_tag);
        entry.state = State::Out(tag);
        self.out.insert(tag, place);
        self.ready_bytes = self.ready_bytes.saturating_sub(message.size());
        Some(message.arrival(tag, &self.topic, partition, offset))
    }

    /// The message of a reception, while it is with the caller.
    pub(crate) fn message(&mut self, tag: Tag) -> Option<(Place, &Fetched)> {
        let place = *self.out.get(&tag)?;
        let entry = self.partitions.get_mut(&place.0)?.entry(place.1)?;
        Some((place, entry.message.as_ref()?))
    }

    /// Notes that its effect is committed, or that it lies among the dead letters.
    pub(crate) fn done(&mut self, tag: Tag) {
        let Some((partition, offset)) = self.out.remove(&tag) else {
            return;
        };
        let Some(partition) = self.partitions.get_mut(&partition) else {
            return;
        };
        if let Some(entry) = partition.entry(offset) {
            entry.state = State::Settled;
            entry.message = None;
        }
        let is_settled = |entry: &&Entry| entry.state == State::Settled;
        while let Some(first) = partition.entries.front().filter(is_settled) {
            partition.mark = Some(Mark {
                offset: first.offset + 1,
                epoch: first.epoch,
            });
            partition.entries.pop_front();
        }
    }

    /// Makes it ready again.
    pub(crate) fn release(&mut self, tag: Tag) {
        let Some(place) = self.out.remove(&tag) else {
            return;
        };
        let Some(partition) = self.partitions.get_mut(&place.0) else {
            return;
        };
        if let Some(entry) = partition.entry(place.1) {
            entry.state = State::Ready;
            self.ready_bytes += entry.message.as_ref().map_or(0, Fetched::size);
        }
        self.again.insert(place);
        if let Some(key) = self.key(place) {
            *self.held.entry(key).or_default() += 1;
        }
    }

    /// The marks that the broker does not know yet.
    pub(crate) fn marks(&self) -> Vec<(i32, Mark)> {
        let marks = self.partitions.iter();
        marks
            .filter_map(|(n, p)| p.mark.map(|mark| (*n, mark)))
            .collect()
    }

    /// Notes that the broker knows these.
    pub(crate) fn marked(&mut self, marks: &[(i32, Mark)]) {
        for (partition, mark) in marks {
            if let Some(partition) = self.partitions.get_mut(partition)
                && partition.mark == Some(*mark)
            {
                partition.mark = None;
            }
        }
    }

    /// The partition is somebody else's.
    pub(crate) fn forget(&mut self, partition: i32) {
        self.partitions.remove(&partition);
        self.fresh.retain(|(n, _)| *n != partition);
        self.again.retain(|(n, _)| *n != partition);
        self.held.retain(|(n, _), _| *n != partition);
        self.out.retain(|_, (n, _)| *n != partition);
        let entries = self.partitions.values().flat_map(|p| &p.entries);
        let ready = entries.filter(|e| e.state == State::Ready);
        self.ready_bytes = ready
            .filter_map(|e| e.message.as_ref())
            .map(Fetched::size)
            .sum();
    }

    /// The log was cut at this offset and is written anew from there. What lies below it is still
    /// in the log and still has to be settled.
    fn truncate(&mut self, partition: i32, offset: i64) {
        let kept = |place: &Place| place.0 != partition || place.1 < offset;
        self.fresh.retain(kept);
        self.out.retain(|_, place| kept(place));
        let (again, cut) = std::mem::take(&mut self.again).into_iter().partition(kept);
        self.again = again;
        for place in cut {
            self.no_longer_held(place);
        }
        let Some(partition) = self.partitions.get_mut(&partition) else {
            return;
        };
        let below = partition.entries.partition_point(|e| e.offset < offset);
        let cut = partition.entries.split_off(below);
        let ready = cut.iter().filter(|e| e.state == State::Ready);
        let bytes = ready.filter_map(|e| e.message.as_ref()).map(Fetched::size);
        self.ready_bytes = self.ready_bytes.saturating_sub(bytes.sum());
        if partition.entries.is_empty() {
            // The broker may know a higher mark, behind which it would skip what is written anew.
            partition.mark = Some(Mark {
                offset,
                epoch: None,
            });
        }
    }

    /// How many wait for somebody to ask.
    pub(crate) fn ready(&self) -> usize {
        self.fresh.len() + self.again.len()
    }

    /// Whether nothing more of this partition may be fetched for now.
    pub(crate) fn is_full(&self, partition: i32) -> bool {
        let entries = self
            .partitions
            .get(&partition)
            .map_or(0, |p| p.entries.len());
        self.fresh.len() >= self.prefetch || self.ready_bytes >= READY_BYTES || entries >= WINDOW
    }
}

#[cfg(test)]
mod tests;
