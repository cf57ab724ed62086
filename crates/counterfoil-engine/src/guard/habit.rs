//! Whether requests are usually new.
//!
//! A new request needs no look before its claim, because a claim looks for itself; a repeat is
//! answered by the look, and its claim would be in vain. Which of the two comes next is guessed from
//! the last few dozen. A wrong guess costs one statement and nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const ALWAYS: u32 = 1 << 16;
/// Below one repeat in ten the claim is tried first.
const RARE: u32 = ALWAYS / 10;
/// Each request moves the share by so much of the way: a few repeats in a row are a habit.
const WEIGHT: u32 = 16;

/// The share of repeats among the last requests.
#[derive(Debug, Clone, Default)]
pub(super) struct Habit(Arc<AtomicU32>);

impl Habit {
    pub(super) fn repeats_are_rare(&self) -> bool {
        self.0.load(Ordering::Relaxed) < RARE
    }

    /// Takes a request into account. Two at once may count as one: it is a guess.
    pub(super) fn saw(&self, repeat: bool) {
        let before = self.0.load(Ordering::Relaxed);
        let after = if repeat {
            before + (ALWAYS - before) / WEIGHT
        } else {
            before - before.div_ceil(WEIGHT)
        };
        self.0.store(after, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_known_of_repeats_at_first() {
        assert!(Habit::default().repeats_are_rare());
    }

    #[test]
    fn two_repeats_in_a_row_are_a_habit_and_it_is_given_up_again() {
        let habit = Habit::default();

        habit.saw(true);
        assert!(habit.repeats_are_rare());
        habit.saw(true);
        assert!(!habit.repeats_are_rare());

        for _ in 0..20 {
            habit.saw(false);
        }
        assert!(habit.repeats_are_rare());
    }

    #[test]
    fn the_share_stays_within_its_bounds() {
        let habit = Habit::default();
        for repeat in [true, false] {
            for _ in 0..1_000 {
                habit.saw(repeat);
                assert!(habit.0.load(Ordering::Relaxed) <= ALWAYS);
            }
        }
        assert_eq!(habit.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn one_repeat_in_a_hundred_never_becomes_a_habit_for_long() {
        let habit = Habit::default();
        let mut rare = 0;
        for n in 0..10_000 {
            rare += u32::from(habit.repeats_are_rare());
            habit.saw(n % 100 == 0);
        }
        assert_eq!(rare, 10_000);
    }
}
