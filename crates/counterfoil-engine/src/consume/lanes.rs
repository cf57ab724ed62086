//! What was received and is not applied yet, by aggregate.
//!
//! # Promise
//! Messages of one lane are handed out in the order of their arrival, and to one worker at a time.
//! Several of a lane may go together. Lanes take turns. A lane in whose way something stood rests
//! for a while; others go on.

use std::collections::{HashMap, HashSet, VecDeque};

use counterfoil_core::row::LaneKey;
use tokio::time::Instant;

use super::{Item, pause};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Lane {
    Of(LaneKey),
    /// Without an aggregate every message has a lane of its own.
    Alone(u64),
}

/// A lane in whose way something stood.
struct Rest {
    /// Nothing of it is handed out before this. Absent: the rest is over.
    until: Option<Instant>,
    /// In a row.
    failures: u32,
}

#[derive(Default)]
pub(super) struct Lanes {
    waiting: HashMap<Lane, VecDeque<Item>>,
    /// Lanes with something to do and nobody who does it.
    ready: VecDeque<Lane>,
    /// Lanes that a worker has.
    busy: HashSet<Lane>,
    resting: HashMap<Lane, Rest>,
    /// Messages that wait.
    count: usize,
    /// Messages that workers have.
    out: usize,
    lonely: u64,
}

impl Lanes {
    /// Messages that wait or are being applied.
    pub(super) fn len(&self) -> usize {
        self.count + self.out
    }

    /// Messages that could be handed out now.
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Messages that wait.
    pub(super) fn waiting(&self) -> usize {
        self.count
    }

    /// Behind everything of its lane.
    pub(super) fn push(&mut self, mut item: Item) {
        let lane = match &item.received.incoming.aggregate {
            Some(aggregate) => Lane::Of(LaneKey::of(aggregate)),
            None => {
                self.lonely += 1;
                Lane::Alone(self.lonely)
            }
        };
        item.lane = Some(lane);
        self.put(lane, |line| line.push_back(item));
    }

    fn put(&mut self, lane: Lane, place: impl FnOnce(&mut VecDeque<Item>)) {
        let line = self.waiting.entry(lane).or_default();
        let was_empty = line.is_empty();
        place(line);
        self.count += 1;
        if was_empty && !self.busy.contains(&lane) && !self.rests(lane) {
            self.ready.push_back(lane);
        }
    }

    fn rests(&self, lane: Lane) -> bool {
        self.resting.get(&lane).is_some_and(|r| r.until.is_some())
    }

    /// At most `max` messages of lanes that nobody has.
    pub(super) fn next_batch(&mut self, max: usize) -> Vec<Item> {
        let mut batch = Vec::new();
        while batch.len() < max
            && let Some(lane) = self.ready.pop_front()
        {
            let Some(line) = self.waiting.get_mut(&lane) else {
                continue;
            };
            let some = line.len().min(max - batch.len());
            batch.extend(line.drain(..some));
            if line.is_empty() {
                self.waiting.remove(&lane);
            }
            self.busy.insert(lane);
        }
        self.count -= batch.len();
        self.out += batch.len();
        batch
    }

    /// These are over.
    pub(super) fn done(&mut self, batch: &[Item]) {
        self.out -= batch.len();
        self.free(batch);
        for lane in batch.iter().filter_map(|item| item.lane) {
            self.resting.remove(&lane);
        }
    }

    /// Something stands in the way of these: they come first again, after a rest of their lanes.
    pub(super) fn postpone(&mut self, batch: Vec<Item>, now: Instant) {
        let lanes: HashSet<Lane> = batch.iter().filter_map(|item| item.lane).collect();
        for lane in &lanes {
            let rest = self.resting.entry(*lane).or_insert(Rest {
                until: None,
                failures: 0,
            });
            rest.failures += 1;
            rest.until = Some(now + pause(rest.failures));
        }
        self.ready.retain(|lane| !lanes.contains(lane));
        self.put_back(batch);
    }

    /// When the first rest is over.
    pub(super) fn next_rested(&self) -> Option<Instant> {
        self.resting.values().filter_map(|rest| rest.until).min()
    }

    /// Lanes whose rest is over have their turn again.
    pub(super) fn rested(&mut self, now: Instant) {
        for (lane, rest) in &mut self.resting {
            if rest.until.is_none_or(|until| until > now) {
                continue;
            }
            rest.until = None;
            if self.waiting.contains_key(lane) && !self.busy.contains(lane) {
                self.ready.push_back(*lane);
            }
        }
    }

    /// These are not done: they come first again.
    pub(super) fn put_back(&mut self, batch: Vec<Item>) {
        self.out -= batch.len();
        self.free(&batch);
        for item in batch.into_iter().rev() {
            if let Some(lane) = item.lane {
                self.put(lane, |line| line.push_front(item));
            }
        }
    }

    fn free(&mut self, batch: &[Item]) {
        for lane in batch.iter().filter_map(|item| item.lane) {
            let freed = self.busy.remove(&lane) && self.waiting.contains_key(&lane);
            if freed && !self.rests(lane) {
                self.ready.push_back(lane);
            }
        }
    }

    /// Forgets what nobody has begun.
    pub(super) fn forget_waiting(&mut self) {
        self.waiting.clear();
        self.ready.clear();
        self.resting.clear();
        self.count = 0;
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use counterfoil_core::incoming::{Incoming, Mapping};
    use counterfoil_core::source::{Arrival, Tag};

    use super::super::Received;
    use super::*;

    fn item(tag: u64, subject: &str) -> Item {
        let mut headers = vec![("ce_id".to_owned(), Bytes::from(tag.to_string()))];
        if !subject.is_empty() {
            headers.push(("ce_subject".to_owned(), Bytes::from(subject.to_owned())));
        }
        let arrival = Arrival {
            tag: Tag(tag),
            position: String::new(),
            key: None,
            headers,
            body: Bytes::new(),
            deliveries: None,
        };
        Item {
            tag: Tag(tag),
            session: 0,
            lane: None,
            received: Received {
                incoming: Incoming::of(&arrival, &Mapping::default()),
                deliveries: None,
            },
        }
    }

    fn tags(batch: &[Item]) -> Vec<u64> {
        batch.iter().map(|i| i.tag.0).collect()
    }

    #[test]
    fn a_lane_is_with_one_worker_at_a_time_and_in_order() {
        let mut lanes = Lanes::default();
        for (tag, subject) in [(1, "a"), (2, "a"), (3, "b"), (4, "a")] {
            lanes.push(item(tag, subject));
        }

        let first = lanes.next_batch(2);
        assert_eq!(tags(&first), [1, 2]);
        let second = lanes.next_batch(9);
        assert_eq!(tags(&second), [3], "4 waits for 1 and 2");
        lanes.push(item(5, "b"));
        assert_eq!(tags(&lanes.next_batch(9)), [] as [u64; 0]);

        lanes.done(&first);
        assert_eq!(tags(&lanes.next_batch(9)), [4]);
        assert_eq!(lanes.len(), 3);
    }

    #[test]
    fn what_was_not_done_comes_first_again() {
        let mut lanes = Lanes::default();
        for tag in 1..=3 {
            lanes.push(item(tag, "a"));
        }

        let batch = lanes.next_batch(2);
        lanes.put_back(batch);

        assert_eq!(tags(&lanes.next_batch(9)), [1, 2, 3]);
        assert_eq!(lanes.waiting(), 0);
    }

    #[test]
    fn a_lane_in_whose_way_something_stands_rests_and_others_go_on() {
        let now = Instant::now();
        let mut lanes = Lanes::default();
        for (tag, subject) in [(1, "a"), (2, "b"), (3, "a"), (4, "")] {
            lanes.push(item(tag, subject));
        }
        let mut batch = lanes.next_batch(9);
        let done = batch.split_off(2);
        assert_eq!((tags(&batch), tags(&done)), (vec![1, 3], vec![2, 4]));
        lanes.done(&done);

        lanes.postpone(batch, now);
        lanes.push(item(5, "a"));
        lanes.push(item(6, "b"));
        assert_eq!(tags(&lanes.next_batch(9)), [6]);
        let rested = lanes.next_rested().unwrap();
        lanes.rested(rested);
        let batch = lanes.next_batch(9);
        assert_eq!(tags(&batch), [1, 3, 5]);

        // The second rest is longer, and what came of it ends it.
        lanes.postpone(batch, rested);
        let again = lanes.next_rested().unwrap();
        assert!(again - rested > rested - now);
        lanes.rested(again);
        let batch = lanes.next_batch(9);
        lanes.done(&batch);
        assert_eq!(lanes.next_rested(), None);
        assert_eq!(lanes.len(), 1);
    }

    #[test]
    fn without_an_aggregate_nobody_waits() {
        let mut lanes = Lanes::default();
        lanes.push(item(1, ""));
        let one = lanes.next_batch(1);
        lanes.push(item(2, ""));

        assert_eq!(tags(&lanes.next_batch(1)), [2]);
        lanes.done(&one);
        assert!(!lanes.has_ready());
    }

    #[test]
    fn forgetting_leaves_what_workers_have() {
        let mut lanes = Lanes::default();
        for tag in 1..=3 {
            lanes.push(item(tag, "a"));
        }
        let out = lanes.next_batch(1);

        lanes.forget_waiting();
        lanes.push(item(9, "a"));

        assert_eq!(lanes.len(), 2);
        assert!(!lanes.has_ready(), "the lane is still taken");
        lanes.done(&out);
        assert_eq!(tags(&lanes.next_batch(5)), [9]);
    }
}
