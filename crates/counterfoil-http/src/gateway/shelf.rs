//! Copies in memory, bounded in bytes, in number and in age.
//!
//! # Promise
//! What is put on a shelf is there until it is too old, until it is replaced or removed, or until
//! there is no room: then the oldest goes first. Something larger than the shelf is not put there.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// What a copy takes besides its body and its headers.
pub(super) const OVERHEAD: usize = 512;

/// What header lines take: names and values of these lengths.
pub(super) fn lines(lengths: impl Iterator<Item = (usize, usize)>) -> usize {
    lengths.map(|(name, value)| name + value + 48).sum()
}

/// How much a shelf holds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// All copies together.
    pub(super) bytes: usize,
    /// Of them.
    pub(super) copies: usize,
}

/// Copies by their key.
pub(super) struct Shelf<K, V> {
    bounds: Bounds,
    by_key: HashMap<K, Copy<V>>,
    /// Oldest first; entries whose number is not that of the copy are stale.
    order: VecDeque<(K, u64)>,
    bytes: usize,
    number: u64,
}

struct Copy<V> {
    value: Arc<V>,
    at: Instant,
    size: usize,
    number: u64,
}

impl<K: Hash + Eq + Clone, V> Shelf<K, V> {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            by_key: HashMap::new(),
            order: VecDeque::new(),
            bytes: 0,
            number: 0,
        }
    }

    /// A copy that is younger than `age`, and how old it is. An older one goes.
    pub(super) fn get(&mut self, key: &K, age: Duration) -> Option<(Arc<V>, Duration)> {
        let copy = self.by_key.get(key)?;
        let old = copy.at.elapsed();
        if old >= age {
            self.remove(key);
            return None;
        }
        Some((Arc::clone(&copy.value), old))
    }

    /// Since when a copy is there.
    pub(super) fn since(&self, key: &K) -> Option<Instant> {
        self.by_key.get(key).map(|copy| copy.at)
    }

    /// Puts a copy of so many bytes there, in the place of a former one. It is so old.
    pub(super) fn put(&mut self, key: K, value: Arc<V>, size: usize, at: Instant) {
        self.remove(&key);
        if size > self.bounds.bytes {
            return;
        }
        self.number += 1;
        self.bytes += size;
        let number = self.number;
        let copy = Copy {
            value,
            at,
            size,
            number,
        };
        self.by_key.insert(key.clone(), copy);
        self.order.push_back((key, number));
        self.shrink();
    }

    pub(super) fn remove(&mut self, key: &K) {
        if let Some(copy) = self.by_key.remove(key) {
            self.bytes -= copy.size;
        }
        while let Some((key, number)) = self.order.front() {
            if self.is_there(key, *number) {
                break;
            }
            self.order.pop_front();
        }
    }

    fn is_there(&self, key: &K, number: u64) -> bool {
        self.by_key.get(key).is_some_and(|c| c.number == number)
    }

    fn shrink(&mut self) {
        while self.bytes > self.bounds.bytes || self.by_key.len() > self.bounds.copies {
            let Some((key, number)) = self.order.pop_front() else {
                return;
            };
            if self.is_there(&key, number) {
                self.remove(&key);
            }
        }
        // Stale entries would pile up behind one old copy. Seldom enough to cost each copy little.
        if self.order.len() > 2 * self.by_key.len() + 16 {
            let by_key = &self.by_key;
            self.order
                .retain(|(key, number)| by_key.get(key).is_some_and(|c| c.number == *number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGE: Duration = Duration::from_secs(60);

    fn shelf() -> Shelf<u32, u32> {
        Shelf::new(Bounds {
            bytes: 100,
            copies: 3,
        })
    }

    fn put(shelf: &mut Shelf<u32, u32>, key: u32, size: usize) {
        shelf.put(key, Arc::new(key), size, Instant::now());
    }

    fn there(shelf: &mut Shelf<u32, u32>) -> Vec<u32> {
        (0..10).filter(|n| shelf.get(n, AGE).is_some()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_goes_when_there_is_no_room() {
        let mut shelf = shelf();

        (0..5).for_each(|n| put(&mut shelf, n, 1));
        assert_eq!(there(&mut shelf), [2, 3, 4]);
        put(&mut shelf, 2, 1);
        put(&mut shelf, 5, 1);
        assert_eq!(there(&mut shelf), [2, 4, 5], "a new copy is young");
        put(&mut shelf, 6, 99);
        assert_eq!(there(&mut shelf), [5, 6]);
        put(&mut shelf, 6, 101);
        assert_eq!(
            there(&mut shelf),
            [5],
            "too large, and the former one is gone"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_too_old_goes() {
        let mut shelf = shelf();
        put(&mut shelf, 1, 100);

        tokio::time::advance(AGE / 2).await;
        assert_eq!(shelf.get(&1, AGE).unwrap().1, AGE / 2);
        tokio::time::advance(AGE / 2).await;

        assert!(shelf.get(&1, AGE).is_none());
        assert_eq!((shelf.bytes, shelf.order.len()), (0, 0));
    }

    #[tokio::test]
    async fn what_is_replaced_again_and_again_leaves_nothing_behind() {
        let mut shelf = shelf();
        put(&mut shelf, 0, 1);

        (0..1_000).for_each(|_| put(&mut shelf, 1, 1));

        assert!(shelf.order.len() <= 20, "{}", shelf.order.len());
        assert_eq!(shelf.bytes, shelf.by_key.len());
        assert_eq!(there(&mut shelf), [0, 1], "nothing else has gone for it");
    }
}
