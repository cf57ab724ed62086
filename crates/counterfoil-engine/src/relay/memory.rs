//! How much is read at a time, in bytes.
//!
//! Rows are counted before they are read, but their sizes are known only afterwards. So each queue
//! has a budget, of which what is in memory and what was asked for is taken off; all queues of the
//! relay share another one. A queue that has little in memory may always read a little, and one row
//! however large: so that neither one slow destination nor one large message stops the others.

use super::Relay;
use crate::queue::Queue;

/// What a queue may have in memory although the others have used up everything.
const LEAST: usize = 64 << 10;
/// What a row is taken for before any has been seen.
const FIRST_GUESS: usize = 64 << 10;

/// What a queue has in memory and expects.
#[derive(Debug, Default)]
pub(crate) struct Load {
    /// Asked for and not there yet.
    expected: usize,
    /// About what a row of this queue weighs.
    average: Option<usize>,
}

impl Load {
    /// So much was asked for.
    pub(crate) fn expect(&mut self, bytes: usize) {
        self.expected += bytes;
    }

    /// What was asked for has come, or will not.
    pub(crate) fn came(&mut self, bytes: usize) {
        self.expected = self.expected.saturating_sub(bytes);
    }

    /// Rows have come: so many, and together so heavy.
    pub(crate) fn weigh(&mut self, rows: usize, bytes: usize) {
        if let Some(one) = bytes.checked_div(rows) {
            let before = self.average.unwrap_or(one);
            self.average = Some((before + one) / 2);
        }
    }

    /// How many rows to ask for, so that most of them come along: twice the usual weight fits.
    pub(crate) fn rows(&self, bytes: usize) -> usize {
        let usual = self.average.unwrap_or(FIRST_GUESS).max(1);
        (bytes / usual / 2).max(1)
    }

    /// How much may be asked for, with so much in memory, of a budget of so much, when so much is
    /// left for this queue of what all share. Absent: what is there has to leave first.
    pub(crate) fn offer(&self, held: usize, budget: usize, shared: usize) -> Option<usize> {
        let used = held.saturating_add(self.expected);
        let offer = budget.saturating_sub(used).min(shared);
        match used {
            0 => Some(offer.max(LEAST.min(budget)).max(1)),
            used if used < LEAST => Some(offer.max(LEAST - used)),
            // A little at a time would be many reads.
            _ => (offer >= LEAST.min(budget / 2).max(1)).then_some(offer),
        }
    }
}

impl Queue {
    /// What it has in memory and expects.
    fn used(&self) -> usize {
        self.lanes.bytes().saturating_add(self.load.expected)
    }
}

impl Relay {
    /// What is left of the memory that all queues share.
    pub(super) fn memory_left(&self) -> usize {
        let used = self.queues.iter().map(Queue::used);
        self.settings.memory.saturating_sub(used.sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn an_empty_queue_may_always_read_something() {
        let load = Load::default();

        assert_eq!(load.offer(0, 16 * MIB, 64 * MIB), Some(16 * MIB));
        assert_eq!(load.offer(0, 16 * MIB, 0), Some(LEAST));
        assert_eq!(load.offer(0, 1, 0), Some(1));
    }

    #[test]
    fn what_is_there_or_expected_is_taken_off() {
        let mut load = Load::default();
        load.expect(4 * MIB);

        assert_eq!(load.offer(2 * MIB, 16 * MIB, 64 * MIB), Some(10 * MIB));
        assert_eq!(load.offer(2 * MIB, 16 * MIB, 0), None);
        assert_eq!(
            load.offer(40 * MIB, 16 * MIB, 64 * MIB),
            None,
            "one large row"
        );
        load.came(4 * MIB);
        assert_eq!(load.offer(0, 16 * MIB, 64 * MIB), Some(16 * MIB));
    }

    #[test]
    fn fewer_rows_are_asked_for_where_they_are_large() {
        let mut load = Load::default();
        assert_eq!(load.rows(16 * MIB), 128);
        load.weigh(100, 100 * 1_500);
        assert!(load.rows(16 * MIB) > 5_000);
        for _ in 0..20 {
            load.weigh(1, 16 * MIB);
        }
        assert_eq!(load.rows(16 * MIB), 1);
        load.weigh(0, 0);
        assert_eq!(load.rows(16 * MIB), 1);
    }
}
