//! A ceiling on the calls to one destination at one time.
//!
//! # Promise
//! Never more than `limit` calls at a time. When all places are taken, at most `queue` callers wait, and
//! they get their places in the order in which they came; whoever comes when the queue is full is
//! turned away at once. No place stays empty while somebody waits.

use std::collections::VecDeque;

/// The size of a bulkhead.
///
/// | setting | default |
/// |---|---|
/// | `limit` | 100 |
/// | `queue` | 100 |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Calls at one time.
    pub limit: usize,
    /// Callers that may wait for a place.
    pub queue: usize,
}

impl Size {
    /// The default size.
    pub const DEFAULT: Size = Size {
        limit: 100,
        queue: 100,
    };
}

impl Default for Size {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// A bulkhead without a single place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a bulkhead must have at least one place")]
pub struct NoPlace;

/// The number that a caller waits under.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Waiter(u64);

/// Whether a caller may go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// It has a place, and must leave it.
    Go,
    /// It waits under this number until [`Bulkhead::leave`] names it.
    Wait(Waiter),
    /// It is turned away.
    Full,
}

/// A bulkhead.
#[derive(Debug, Clone)]
pub struct Bulkhead {
    size: Size,
    in_use: usize,
    waiting: VecDeque<Waiter>,
    next: u64,
}

impl Bulkhead {
    /// An empty bulkhead.
    pub fn new(size: Size) -> Result<Self, NoPlace> {
        if size.limit == 0 {
            return Err(NoPlace);
        }
        Ok(Self {
            size,
            in_use: 0,
            waiting: VecDeque::new(),
            next: 0,
        })
    }

    /// The size.
    pub fn size(&self) -> Size {
        self.size
    }

    /// Places that are taken.
    pub fn in_use(&self) -> usize {
        self.in_use
    }

    /// Callers that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// A caller wants a place.
    pub fn enter(&mut self) -> Entry {
        if self.in_use < self.size.limit {
            self.in_use += 1;
            return Entry::Go;
        }
        if self.waiting.len() >= self.size.queue {
            return Entry::Full;
        }
        let waiter = Waiter(self.next);
        self.next += 1;
        self.waiting.push_back(waiter);
        Entry::Wait(waiter)
    }

    /// A place becomes free. The caller named in the answer has it now.
    pub fn leave(&mut self) -> Option<Waiter> {
        let next = self.waiting.pop_front();
        if next.is_none() {
            self.in_use = self.in_use.saturating_sub(1);
        }
        next
    }

    /// A caller does not wait any longer. If it was named already, its place becomes free, and the
    /// caller named in the answer has it now.
    pub fn give_up(&mut self, waiter: Waiter) -> Option<Waiter> {
        match self.waiting.iter().position(|w| *w == waiter) {
            Some(at) => {
                self.waiting.remove(at);
                None
            }
            None => self.leave(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_bulkhead_without_places_cannot_be_built() {
        let size = Size { limit: 0, queue: 9 };
        assert_eq!(Bulkhead::new(size).err(), Some(NoPlace));
    }

    #[test]
    fn places_are_given_in_the_order_of_arrival_and_then_nobody_may_wait() {
        let mut bulkhead = Bulkhead::new(Size { limit: 1, queue: 2 }).unwrap();
        assert_eq!(bulkhead.enter(), Entry::Go);
        let Entry::Wait(first) = bulkhead.enter() else {
            panic!()
        };
        let Entry::Wait(second) = bulkhead.enter() else {
            panic!()
        };
        assert_eq!(bulkhead.enter(), Entry::Full);

        assert_eq!(bulkhead.leave(), Some(first));
        assert_eq!(bulkhead.leave(), Some(second));
        assert_eq!(bulkhead.leave(), None);

        assert_eq!(bulkhead.in_use(), 0);
    }

    #[test]
    fn a_caller_that_gives_up_after_it_was_named_passes_its_place_on() {
        let mut bulkhead = Bulkhead::new(Size { limit: 1, queue: 2 }).unwrap();
        assert_eq!(bulkhead.enter(), Entry::Go);
        let Entry::Wait(first) = bulkhead.enter() else {
            panic!()
        };
        let Entry::Wait(second) = bulkhead.enter() else {
            panic!()
        };
        assert_eq!(bulkhead.leave(), Some(first));

        assert_eq!(bulkhead.give_up(first), Some(second));
        assert_eq!(bulkhead.in_use(), 1);
    }

    proptest! {
        #[test]
        fn it_keeps_its_promise_in_every_history(
            limit in 1usize..5, queue in 0usize..5,
            steps in prop::collection::vec((0u8..3, any::<usize>()), 1..300),
        ) {
            let mut bulkhead = Bulkhead::new(Size { limit, queue }).unwrap();
            let mut inside = 0usize;
            let mut waiting: VecDeque<Waiter> = VecDeque::new();
            for (kind, pick) in steps {
                let free = inside < limit;
                match kind {
                    0 => match bulkhead.enter() {
                        Entry::Go => { prop_assert!(free); inside += 1; }
                        Entry::Wait(w) => { prop_assert!(!free && waiting.len() < queue); waiting.push_back(w); }
                        Entry::Full => prop_assert!(!free && waiting.len() == queue),
                    },
                    1 if inside > 0 => {
                        let named = bulkhead.leave();
                        prop_assert_eq!(named, waiting.pop_front());
                        inside -= usize::from(named.is_none());
                    }
                    2 if !waiting.is_empty() => {
                        let gone = waiting.remove(pick % waiting.len()).unwrap();
                        prop_assert_eq!(bulkhead.give_up(gone), None);
                    }
                    _ => {}
                }
                prop_assert_eq!(bulkhead.in_use(), inside);
                prop_assert!(inside <= limit && bulkhead.waiting() <= queue);
                prop_assert!(bulkhead.waiting() == 0 || inside == limit);
            }
        }
    }
}
