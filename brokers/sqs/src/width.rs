//! How many requests to receive are sent at one time.
//!
//! # Promise
//! A queue that hands out full answers is asked more widely as long as that brings more in the same
//! time. Where the requests together take longer than one after the other would, or bring less than
//! they could, fewer are sent. Each request that is not worth its while costs money, and some servers
//! need the longer for an answer the more messages are out.

use std::time::Duration;

/// The most requests beside the first one.
const WIDEST: usize = 8;
/// Full answers after which a queue that was slow is tried again.
const AGAIN: u32 = 32;

/// What one request brought.
pub(crate) struct Answer {
    /// It was sent because another one came back full.
    pub(crate) follows: bool,
    /// It brought all that one request can.
    pub(crate) full: bool,
    pub(crate) took: Duration,
}

/// Requests beside the first one.
#[derive(Debug)]
pub(crate) struct Width {
    now: usize,
    /// Full answers since nothing more has been asked for.
    alone: u32,
    round: Round,
}

/// One request, and those that follow it.
#[derive(Debug, Default)]
struct Round {
    first: Duration,
    followers: usize,
    under_way: usize,
    slowest: Duration,
    all_full: bool,
}

impl Default for Width {
    fn default() -> Self {
        Self {
            now: 1,
            alone: 0,
            round: Round::default(),
        }
    }
}

impl Width {
    /// How many requests follow the full answer that was learnt last, and not more than wanted.
    pub(crate) fn take(&mut self, wanted: usize) -> usize {
        if self.now == 0 {
            self.alone += 1;
            if self.alone > AGAIN {
                (self.now, self.alone) = (1, 0);
            }
        }
        let requests = self.now.min(wanted);
        self.round.followers = requests;
        self.round.under_way = requests;
        requests
    }

    /// Learns how it went.
    pub(crate) fn learn(&mut self, answer: &Answer) {
        if !answer.follows {
            self.round = Round {
                first: answer.took,
                all_full: true,
                ..Round::default()
            };
            return;
        }
        let round = &mut self.round;
        round.slowest = round.slowest.max(answer.took);
        round.all_full &= answer.full;
        round.under_way = round.under_way.saturating_sub(1);
        if round.under_way > 0 || round.followers == 0 {
            return;
        }
        let requests = round.followers;
        let in_turn = round
            .first
            .saturating_mul(u32::try_from(requests).unwrap_or(u32::MAX));
        self.now = if round.slowest > in_turn {
            requests / 2
        } else if round.all_full {
            (requests * 2).clamp(self.now, WIDEST)
        } else {
            1
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One full answer of 10 ms, and those that follow it. How many those were.
    fn round(width: &mut Width, wanted: usize, took: u64, full: bool) -> usize {
        let answer = |follows, full, took| Answer {
            follows,
            full,
            took: Duration::from_millis(took),
        };
        width.learn(&answer(false, true, 10));
        let requests = width.take(wanted);
        for n in 0..requests {
            width.learn(&answer(true, full || n > 0, took));
        }
        requests
    }

    #[test]
    fn it_grows_while_answers_are_full_and_quick() {
        let mut width = Width::default();
        let seen: Vec<_> = (0..5).map(|_| round(&mut width, 99, 10, true)).collect();
        assert_eq!(seen, [1, 2, 4, 8, 8]);
    }

    #[test]
    fn a_caller_who_wants_little_does_not_narrow_it() {
        let mut width = Width::default();
        for wanted in [99, 99, 99, 2, 0] {
            round(&mut width, wanted, 10, true);
        }
        assert_eq!(round(&mut width, 99, 10, true), 8);
    }

    #[test]
    fn what_brings_too_little_starts_again() {
        let mut width = Width::default();
        for full in [true, true, true, false] {
            round(&mut width, 99, 10, full);
        }
        assert_eq!(round(&mut width, 99, 10, true), 1);
    }

    #[test]
    fn a_queue_that_is_slower_for_many_is_asked_by_one_and_tried_again_later() {
        let mut width = Width::default();
        round(&mut width, 99, 10, true);
        round(&mut width, 99, 10, true);
        let slow: Vec<_> = (0..3).map(|_| round(&mut width, 99, 50, true)).collect();
        assert_eq!(slow, [4, 2, 1]);
        for _ in 0..AGAIN {
            assert_eq!(round(&mut width, 99, 10, true), 0);
        }
        assert_eq!(round(&mut width, 99, 10, true), 1);
    }
}
