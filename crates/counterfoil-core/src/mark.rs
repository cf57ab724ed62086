//! How far a reader may skip ahead without losing or reordering anything.
//!
//! Rows are numbered when they are inserted, but become visible when they commit. A reader that
//! only looks behind the highest number it has seen loses what commits late, and overtakes it with
//! a later row of the same aggregate. Reading from the beginning every time is right, but slow
//! once many settled rows are dead and not vacuumed.
//!
//! # Promise
//! [`LowMark::position`] is never above the number of a row that may still become visible. It
//! moves only when the store has shown that every transaction that could hold a number below it
//! has ended *in the snapshot of a read that began below it*.
//!
//! How a store shows that: every transaction takes its transaction id before its first row number.
//! A settlement takes a transaction id `stamp` after the read that saw number `front`; so every
//! transaction that holds a number up to `front` has an id below `stamp`. A later read whose
//! snapshot says "all ids below `horizon` have ended", with `horizon >= stamp`, has therefore seen
//! every row up to `front` that will ever exist.

use std::collections::VecDeque;

/// What a read's snapshot says about unfinished transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Horizon {
    /// The store has a single writer: numbers become visible in order.
    Ordered,
    /// All transactions with ids below this one have ended.
    Below(u64),
    /// The store cannot tell: the mark stays at the beginning.
    Unknown,
}

/// How far the read of one queue came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// It brought everything that there was.
    End,
    /// It brought as many as were asked for: there may be more.
    Limit,
    /// The queue was paused: nothing was looked for, so that nothing was found says nothing.
    Paused,
}

impl Reach {
    /// The reach of a read that found so many when it looked for so many.
    pub fn of(found: usize, limit: usize) -> Self {
        if found < limit {
            Self::End
        } else {
            Self::Limit
        }
    }
}

/// The low mark of one queue.
#[derive(Debug, Default)]
pub struct LowMark {
    position: i64,
    front: i64,
    covered: i64,
    stamps: VecDeque<(i64, u64)>,
}

impl LowMark {
    /// Read rows numbered above this.
    pub fn position(&self) -> i64 {
        self.position
    }

    /// The highest number seen so far.
    pub fn front(&self) -> i64 {
        self.front
    }

    /// Everything that was there up to this number has been read since the beginning; the highest
    /// number there is when a read has come to the end.
    pub fn covered(&self) -> i64 {
        self.covered
    }

    /// Starts from the beginning, for example after new shards were taken.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// A read that began at `from` came back.
    ///
    /// `last` is the highest number it returned.
    pub fn after_read(&mut self, from: i64, last: Option<i64>, reach: Reach, horizon: Horizon) {
        if from > self.position || reach == Reach::Paused {
            // Begun before a reset, or blind: it says nothing about what lies below.
            return;
        }
        let complete = reach == Reach::End;
        let seen = last.unwrap_or(self.front);
        self.front = self.front.max(seen);
        self.covered = if complete {
            i64::MAX
        } else {
            self.covered.max(seen)
        };
        let covered = if complete { self.front } else { seen };
        match horizon {
            Horizon::Unknown => {}
            Horizon::Ordered => self.position = self.position.max(covered),
            Horizon::Below(ended) => {
                while let Some(&(front, stamp)) = self.stamps.front() {
                    if stamp > ended || front > covered {
                        break;
                    }
                    self.position = self.position.max(front);
                    self.stamps.pop_front();
                }
            }
        }
    }

    /// A settlement that began when the front stood at `front` took the transaction id `stamp`.
    pub fn after_settle(&mut self, front: i64, stamp: Option<u64>) {
        let Some(stamp) = stamp else { return };
        if front > self.front
            || self
                .stamps
                .back()
                .is_some_and(|&(f, s)| f >= front && s <= stamp)
        {
            return;
        }
        self.stamps.push_back((front, stamp));
        if self.stamps.len() > 64 {
            // An old transaction is open: keep the oldest, which moves first, and the newest.
            self.stamps.remove(32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_single_writer_moves_the_mark_at_once() {
        let mut mark = LowMark::default();

        mark.after_read(0, Some(10), Reach::Limit, Horizon::Ordered);

        assert_eq!(mark.position(), 10);
    }

    #[test]
    fn an_open_transaction_keeps_the_mark_down() {
        let mut mark = LowMark::default();
        mark.after_read(0, Some(10), Reach::End, Horizon::Below(100));
        mark.after_settle(10, Some(105));

        mark.after_read(0, None, Reach::End, Horizon::Below(101));
        assert_eq!(
            mark.position(),
            0,
            "transaction 101 may still hold a number below 10"
        );

        mark.after_read(0, None, Reach::End, Horizon::Below(106));
        assert_eq!(mark.position(), 10);
    }

    #[test]
    fn a_store_that_cannot_tell_always_reads_from_the_beginning() {
        let mut mark = LowMark::default();
        mark.after_read(0, Some(10), Reach::End, Horizon::Unknown);
        mark.after_settle(10, None);
        mark.after_read(0, Some(20), Reach::End, Horizon::Unknown);

        assert_eq!(mark.position(), 0);
        assert_eq!(mark.front(), 20);
    }

    #[test]
    fn a_read_of_a_paused_queue_says_nothing() {
        let mut mark = LowMark::default();
        mark.after_read(0, None, Reach::Paused, Horizon::Ordered);
        assert_eq!(mark.covered(), 0, "what was there has not been read");

        mark.after_read(0, Some(10), Reach::Limit, Horizon::Below(100));
        mark.after_settle(10, Some(105));
        mark.after_read(0, None, Reach::Paused, Horizon::Below(200));

        assert_eq!(mark.position(), 0, "9 may have been committed meanwhile");
        assert_eq!(mark.covered(), 10);
    }

    /// A model of a database: transactions take an id, then numbers, then commit in any order.
    #[derive(Debug, Clone, Copy)]
    enum Step {
        Begin,
        Insert(usize),
        Commit(usize),
        Read(usize),
        ReadPaused,
        Settle,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            Just(Step::Begin),
            (0usize..6).prop_map(Step::Insert),
            (0usize..6).prop_map(Step::Commit),
            (1usize..5).prop_map(Step::Read),
            Just(Step::ReadPaused),
            Just(Step::Settle),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]
        #[test]
        fn no_row_ever_becomes_visible_below_the_mark_unseen(
            steps in proptest::collection::vec(step(), 1..80)
        ) {
            let mut mark = LowMark::default();
            let (mut next_id, mut next_seq) = (1u64, 1i64);
            let mut open: Vec<(u64, Vec<i64>)> = Vec::new();
            let mut visible: Vec<i64> = Vec::new();
            let mut seen = std::collections::BTreeSet::new();

            for step in steps {
                match step {
                    Step::Begin => { open.push((next_id, vec![])); next_id += 1; }
                    Step::Insert(i) if !open.is_empty() => {
                        let i = i % open.len();
                        open[i].1.push(next_seq);
                        next_seq += 1;
                    }
                    Step::Commit(i) if !open.is_empty() => {
                        let i = i % open.len();
                        let (_, rows) = open.remove(i);
                        for row in &rows {
                            prop_assert!(*row > mark.position(), "row {row} came below the mark");
                        }
                        visible.extend(rows);
                        visible.sort_unstable();
                    }
                    Step::Read(limit) => {
                        let from = mark.position();
                        let all: Vec<i64> = visible.iter().copied()
                            .filter(|s| *s > from && !seen.contains(s)).collect();
                        let rows: Vec<i64> = all.iter().copied().take(limit).collect();
                        let horizon = open.iter().map(|t| t.0).min().unwrap_or(next_id);
                        seen.extend(rows.iter().copied());
                        mark.after_read(
                            from, rows.last().copied(), Reach::of(rows.len(), limit),
                            Horizon::Below(horizon),
                        );
                        for row in &visible {
                            prop_assert!(
                                *row > mark.position() || seen.contains(row),
                                "row {row} was skipped at {}", mark.position()
                            );
                        }
                    }
                    Step::ReadPaused => {
                        let horizon = open.iter().map(|t| t.0).min().unwrap_or(next_id);
                        let from = mark.position();
                        mark.after_read(from, None, Reach::Paused, Horizon::Below(horizon));
                        for row in &visible {
                            prop_assert!(
                                *row > mark.position() || seen.contains(row),
                                "row {row} was skipped at {}", mark.position()
                            );
                        }
                    }
                    Step::Settle => {
                        mark.after_settle(mark.front(), Some(next_id));
                        next_id += 1;
                    }
                    Step::Insert(_) | Step::Commit(_) => {}
                }
            }
        }
    }
}
