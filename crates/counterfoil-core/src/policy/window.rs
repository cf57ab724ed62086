//! Counters over the recent past, in buckets.
//!
//! # Promise
//! A window of `n` buckets holds what was counted in the present bucket and the `n - 1` before it.
//! Memory does not depend on how much is counted.

use std::time::Duration;

use super::Moment;

/// `K` counters over a sliding window.
#[derive(Debug, Clone)]
pub(super) struct Window<const K: usize> {
    bucket: Duration,
    buckets: Vec<[u64; K]>,
    /// The number of the present bucket, counted from the origin.
    present: u128,
    totals: [u64; K],
}

impl<const K: usize> Window<K> {
    /// A window of `n` buckets (at least one) of this length (at least a nanosecond).
    pub(super) fn new(bucket: Duration, n: usize) -> Self {
        Self {
            bucket: bucket.max(Duration::from_nanos(1)),
            buckets: vec![[0; K]; n.max(1)],
            present: 0,
            totals: [0; K],
        }
    }

    /// Counts one more.
    pub(super) fn add(&mut self, counter: usize, now: Moment) {
        self.add_times(counter, 1, now);
    }

    /// Counts so many more.
    pub(super) fn add_times(&mut self, counter: usize, times: u64, now: Moment) {
        self.advance(now);
        let at = self.index(self.present);
        self.buckets[at][counter] += times;
        self.totals[counter] += times;
    }

    /// The bucket that is counted in now.
    pub(super) fn bucket(&self) -> u128 {
        self.present
    }

    /// Takes back one that was counted in this bucket, if the window still holds it.
    pub(super) fn take_back(&mut self, counter: usize, bucket: u128, now: Moment) {
        self.advance(now);
        let age = self.present.checked_sub(bucket);
        let at = self.index(bucket);
        if age.is_some_and(|age| age < self.buckets.len() as u128) && self.buckets[at][counter] > 0
        {
            self.buckets[at][counter] -= 1;
            self.totals[counter] -= 1;
        }
    }

    /// What is in the window.
    pub(super) fn totals(&mut self, now: Moment) -> [u64; K] {
        self.advance(now);
        self.totals
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.buckets.fill([0; K]);
        self.totals = [0; K];
    }

    fn index(&self, bucket: u128) -> usize {
        let n = self.buckets.len() as u128;
        usize::try_from(bucket % n).unwrap_or(0)
    }

    fn advance(&mut self, now: Moment) {
        let to = now.as_nanos() / self.bucket.as_nanos();
        if to <= self.present {
            return;
        }
        if to - self.present >= self.buckets.len() as u128 {
            self.clear();
        } else {
            for bucket in self.present + 1..=to {
                let at = self.index(bucket);
                for (total, old) in self.totals.iter_mut().zip(&self.buckets[at]) {
                    *total -= old;
                }
                self.buckets[at] = [0; K];
            }
        }
        self.present = to;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_window_holds_the_present_bucket_and_those_before_it(
            n in 1usize..12, steps in prop::collection::vec((0u64..3_000, 0usize..2), 1..200),
        ) {
            let mut window = Window::<2>::new(Duration::from_millis(100), n);
            let mut told: Vec<(u64, usize)> = Vec::new();
            let mut now = 0;
            for (pause, counter) in steps {
                now += pause / 7;
                told.push((now / 100, counter));
                window.add(counter, Duration::from_millis(now));

                let totals = window.totals(Duration::from_millis(now));

                for (counter, total) in totals.into_iter().enumerate() {
                    let expected = told
                        .iter()
                        .filter(|(b, c)| *c == counter && *b + n as u64 > now / 100)
                        .count();
                    prop_assert_eq!(total, expected as u64);
                }
            }
        }
    }

    #[test]
    fn a_time_that_goes_back_counts_as_the_present() {
        let mut window = Window::<1>::new(Duration::from_secs(1), 2);
        window.add(0, Duration::from_secs(10));
        window.add(0, Duration::from_secs(3));

        assert_eq!(window.totals(Duration::from_secs(11)), [2]);
        assert_eq!(window.totals(Duration::from_secs(12)), [0]);
    }
}
