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
        let entries = self.partitions.get(&partition).map(|p| &p.entries);
        let last = entries.and_then(VecDeque::back);
        if last.is_some_and(|last| last.offset >= offset) {
            // The log was cut and written anew: what we had is not there any more.
            self.forget(partition);
        }
        self.ready_bytes += message.size();
        self.fresh.push_back((partition, offset));
        let entries = &mut self.partitions.entry(partition).or_default().entries;
        entries.push_back(Entry {
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
        if let Some(key) = self.key(place)
            && let Some(count) = self.held.get_mut(&key)
        {
            *count -= 1;
            if *count == 0 {
                self.held.remove(&key);
            }
        }
        Some(place)
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
mod tests {
    use super::*;

    fn message(key: &str) -> Fetched {
        Fetched {
            key: Some(Bytes::copy_from_slice(key.as_bytes())),
            headers: Vec::new(),
            body: Bytes::from_static(b"body"),
        }
    }

    /// A ledger with messages of one partition, each with the key of its name.
    fn ledger(keys: &[&str]) -> Ledger {
        let mut ledger = Ledger::new("t".into(), 100);
        for (offset, key) in (0..).zip(keys) {
            ledger.push(0, offset, Some(5), message(key));
        }
        ledger
    }

    fn positions(arrivals: &[Arrival]) -> Vec<&str> {
        arrivals.iter().map(|a| a.position.as_str()).collect()
    }

    fn mark(offset: i64) -> Mark {
        Mark {
            offset,
            epoch: Some(5),
        }
    }

    #[test]
    fn a_mark_never_passes_what_is_not_settled() {
        let mut ledger = ledger(&["a", "b", "c"]);
        let out = ledger.take(3);

        ledger.done(out[1].tag);
        assert_eq!(ledger.marks(), []);
        ledger.done(out[0].tag);
        assert_eq!(ledger.marks(), [(0, mark(2))]);
        ledger.marked(&[(0, mark(2))]);
        assert_eq!(ledger.marks(), []);
        ledger.release(out[2].tag);
        assert_eq!(ledger.marks(), []);
        let again = ledger.take(1);
        ledger.done(again[0].tag);

        assert_eq!(ledger.marks(), [(0, mark(3))]);
    }

    #[test]
    fn a_mark_that_moved_on_while_it_was_told_is_told_again() {
        let mut ledger = ledger(&["a", "b"]);
        let out = ledger.take(2);
        ledger.done(out[0].tag);
        let told = ledger.marks();
        ledger.done(out[1].tag);

        ledger.marked(&told);

        assert_eq!(ledger.marks(), [(0, mark(2))]);
    }

    #[test]
    fn offsets_may_have_gaps() {
        let mut ledger = ledger(&["a"]);
        ledger.push(0, 10, None, message("b"));
        let out = ledger.take(2);

        ledger.done(out[0].tag);
        assert_eq!(ledger.marks(), [(0, mark(1))]);
        ledger.done(out[1].tag);

        let end = Mark {
            offset: 11,
            epoch: None,
        };
        assert_eq!(ledger.marks(), [(0, end)]);
    }

    #[test]
    fn what_is_released_comes_before_others_of_its_key_and_keeps_nobody_waiting() {
        let mut ledger = ledger(&["a", "a", "b", "c"]);
        let first = ledger.take(1);
        ledger.release(first[0].tag);

        let mut seen = Vec::new();
        for _ in 0..4 {
            let mut out = ledger.take(1);
            if out[0].position == "t/0@0" {
                ledger.release(out[0].tag);
            }
            seen.append(&mut out);
        }
        assert_eq!(positions(&seen), ["t/0@0", "t/0@2", "t/0@0", "t/0@3"]);

        let last = ledger.take(2);
        assert_eq!(positions(&last), ["t/0@0", "t/0@1"]);
        assert_eq!(ledger.ready(), 0);
        assert!(ledger.held.is_empty());
    }

    #[test]
    fn what_belonged_to_a_partition_is_forgotten_with_it() {
        let mut ledger = ledger(&["a", "b", "c"]);
        ledger.push(1, 7, None, message("d"));
        let out = ledger.take(3);
        ledger.release(out[0].tag);

        ledger.forget(0);
        for arrival in &out {
            ledger.done(arrival.tag);
            ledger.release(arrival.tag);
        }

        assert_eq!(ledger.marks(), []);
        assert!(ledger.message(out[1].tag).is_none());
        assert_eq!(positions(&ledger.take(10)), ["t/1@7"]);
        assert_eq!(ledger.ready_bytes, 0);
    }

    #[test]
    fn settling_twice_or_for_nobody_changes_nothing() {
        let mut ledger = ledger(&["a", "b"]);
        let out = ledger.take(1);
        ledger.done(out[0].tag);
        ledger.done(out[0].tag);
        ledger.release(out[0].tag);
        ledger.done(Tag(99));

        assert_eq!(ledger.marks(), [(0, mark(1))]);
        assert_eq!(ledger.ready(), 1);
    }

    #[test]
    fn a_log_that_was_cut_is_read_anew() {
        let mut ledger = ledger(&["a", "b", "c"]);
        let out = ledger.take(3);

        ledger.push(0, 1, Some(6), message("x"));
        ledger.done(out[2].tag);

        assert_eq!(ledger.marks(), []);
        assert_eq!(positions(&ledger.take(5)), ["t/0@1"]);
    }

    #[test]
    fn a_partition_is_full_by_number_and_by_bytes_until_somebody_asks() {
        let mut few = Ledger::new("t".into(), 2);
        few.push(0, 0, None, message("a"));
        assert!(!few.is_full(0));
        few.push(0, 1, None, message("a"));
        assert!(few.is_full(0) && few.is_full(1));
        few.take(1);
        assert!(!few.is_full(0));

        let mut large = Ledger::new("t".into(), 100);
        let body = Bytes::from(vec![0; READY_BYTES]);
        large.push(
            0,
            0,
            None,
            Fetched {
                body,
                ..message("a")
            },
        );
        assert!(large.is_full(0));
        large.take(1);
        assert!(!large.is_full(0));
    }

    #[test]
    fn one_that_is_not_settled_holds_back_a_bounded_number() {
        let mut ledger = Ledger::new("t".into(), WINDOW);
        for offset in 0..WINDOW as i64 {
            ledger.push(0, offset, None, message("a"));
        }
        let out = ledger.take(WINDOW);
        for arrival in &out[1..] {
            ledger.done(arrival.tag);
        }
        assert!(ledger.is_full(0) && !ledger.is_full(1));

        ledger.done(out[0].tag);

        assert!(!ledger.is_full(0));
    }
}
