//! Where there is work: which queues have rows at all, and which lanes nothing holds back any more.
//!
//! # What it costs
//! A relay with a few queues asks all of them for rows each time. One with many asks first which of
//! them have any: one statement, in which idle queues cost nothing. Lanes are searched a page at a time,
//! one page at once, and after a page that took long the relay waits longer: however many lanes wait behind
//! parked messages, the search takes a small share of the database's time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use counterfoil_core::mark::{Horizon, Reach};
use counterfoil_core::store::{Occupied, Result, Runnable, ShardSet, Want};

use super::{Done, Relay, SCAN_LANES};

/// A relay with more queues asks first which of them have rows.
const FEW: usize = 16;
/// Lanes looked at in one search.
const LANES_AT_ONCE: usize = 1_000;
/// After a search or a look the relay waits so many times as long as it took.
const REST: u32 = 8;
/// A queue with so many lanes to be read has enough of them.
const ENOUGH_LANES: usize = 1_000;

impl Relay {
    pub(super) fn many(&self) -> bool {
        self.queues.len() > FEW
    }

    /// Asks which queues have rows.
    pub(super) fn start_look(&mut self, now: Instant) {
        if self.looking || !self.curious || now < self.next_look || !self.store_open(now) {
            return;
        }
        self.curious = false;
        self.looking = true;
        let generations = self.queues.iter().map(|q| q.generation).collect();
        let store = Arc::clone(&self.store);
        self.ops.spawn(async move {
            let begun = Instant::now();
            let result = store.occupied().await;
            Done::Looked {
                generations,
                took: begun.elapsed(),
                result,
            }
        });
    }

    pub(super) fn looked(&mut self, generations: &[u64], took: Duration, result: Result<Occupied>) {
        self.looking = false;
        self.next_look = Instant::now() + took * REST;
        let occupied = match result {
            Ok(occupied) => occupied,
            Err(error) => {
                self.curious = true;
                return self.store_failed("look for messages", &error);
            }
        };
        self.store_answered();
        let new = self.places(&occupied.new);
        (self.due, self.held) = (self.places(&occupied.due), self.places(&occupied.held));
        let paused = self.places(&occupied.paused);
        for (place, queue) in self.queues.iter_mut().enumerate() {
            if queue.paused || !paused.is_empty() {
                queue.note_paused(paused.binary_search(&place).is_ok());
            }
            // For a queue without new rows this was a read that found none.
            let nothing = new.binary_search(&place).is_err();
            if nothing && queue.mark.covered() == 0 && generations[place] == queue.generation {
                let none = Horizon::Unknown;
                queue.mark.after_read(0, None, Reach::End, none);
                if queue.lanes.is_empty() {
                    // A dead owner left nothing behind.
                    queue.suspects = 0;
                }
            }
        }
        for place in new {
            self.queues[place].hungry = true;
        }
    }

    /// The places of those of these queues that are served here, ascending.
    fn places(&self, names: &[String]) -> Vec<usize> {
        let places = names.iter().filter_map(|n| self.by_name.get(n.as_str()));
        let mut places: Vec<usize> = places.copied().collect();
        places.sort_unstable();
        places
    }

    /// Looks for held rows that nothing holds any more: after a takeover, or after an operator
    /// has ignored or cancelled what they waited for.
    pub(super) fn start_scan(&mut self, now: Instant) {
        if self.scanning || now < self.next_scan || !self.store_open(now) {
            return;
        }
        self.next_scan = now + SCAN_LANES;
        let places: Vec<usize> = if self.many() {
            self.held.clone()
        } else {
            (0..self.queues.len()).collect()
        };
        let asked: Vec<(usize, u64, Arc<str>, ShardSet)> = places
            .into_iter()
            .map(|place| (place, &self.queues[place]))
            // Nothing could be brought back before the first read.
            .filter(|(_, q)| !q.paused && q.mark.covered() > 0 && q.refill.len() < ENOUGH_LANES)
            .map(|(place, q)| (place, q.generation, Arc::clone(q.name()), q.active()))
            .filter(|asked| !asked.3.is_empty())
            .collect();
        if asked.is_empty() {
            return;
        }
        self.scanning = true;
        let (store, from) = (Arc::clone(&self.store), self.scan_from.take());
        self.ops.spawn(async move {
            let begun = Instant::now();
            let wants: Vec<Want<'_>> = asked
                .iter()
                .map(|(_, _, queue, shards)| Want {
                    queue,
                    shards: *shards,
                    after: 0,
                    limit: LANES_AT_ONCE,
                    bytes: 0,
                })
                .collect();
            let found = store.runnable_lanes(&wants, from.as_ref(), LANES_AT_ONCE);
            let result = found.await;
            Done::Runnable {
                asked: asked.iter().map(|a| (a.0, a.1)).collect(),
                took: begun.elapsed(),
                result,
            }
        });
    }

    pub(super) fn runnable_done(
        &mut self,
        asked: &[(usize, u64)],
        took: Duration,
        result: Result<Runnable>,
    ) {
        self.scanning = false;
        let found = match result {
            Ok(found) => found,
            Err(error) => return self.store_failed("look for held messages", &error),
        };
        let now = Instant::now();
        for (want, aggregate) in found.lanes {
            let Some((place, generation)) = asked.get(want) else {
                continue;
            };
            let queue = &mut self.queues[*place];
            if queue.generation == *generation {
                let due = queue.lanes.runnable(vec![aggregate]);
                queue.refill.extend(due);
            }
        }
        let rest = took * REST;
        self.next_scan = match &found.next {
            Some(_) => now + rest,
            None => self.next_scan.max(now + rest),
        };
        self.scan_from = found.next;
    }
}
