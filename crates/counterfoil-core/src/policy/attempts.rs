//! The attempts of one call that somebody waits for.
//!
//! # Promise
//! The overall deadline outranks the count: a wait that would end at or after it is not begun, and
//! the caller gets its answer now instead of after waiting in vain. What the server asks for in
//! `Retry-After` is honoured in full or not at all.

use std::time::Duration;

use super::Moment;
use super::backoff::Backoff;

/// What to do after a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Try again after this time.
    Wait(Duration),
    /// It is over.
    GiveUp(GiveUp),
}

/// Why a call is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GiveUp {
    /// The next attempt would begin too late.
    Deadline,
    /// The server asks for a longer wait than the deadline allows.
    AskedTooMuch,
    /// Every attempt has been made.
    Attempts,
}

/// The state of one call.
#[derive(Debug, Clone)]
pub struct Attempts {
    backoff: Backoff,
    deadline: Moment,
    failed: u32,
    before: Duration,
    rng: fastrand::Rng,
}

impl Attempts {
    /// A call that begins now. The seed decides the jitter.
    pub fn begin(backoff: Backoff, within: Duration, seed: u64, now: Moment) -> Self {
        Self {
            backoff,
            deadline: now.saturating_add(within),
            failed: 0,
            before: Duration::ZERO,
            rng: fastrand::Rng::with_seed(seed),
        }
    }

    /// The time at which the call ends, whatever has come of it.
    pub fn deadline(&self) -> Moment {
        self.deadline
    }

    /// Attempts that have failed.
    pub fn failed(&self) -> u32 {
        self.failed
    }

    /// An attempt has failed, and may pass later.
    pub fn failed_at(&mut self, asked: Option<Duration>, now: Moment) -> Next {
        self.failed = self.failed.saturating_add(1);
        if now >= self.deadline {
            return Next::GiveUp(GiveUp::Deadline);
        }
        if self.failed >= self.backoff.max_attempts() {
            return Next::GiveUp(GiveUp::Attempts);
        }
        let left = self.deadline - now;
        let asked = asked.unwrap_or_default();
        if asked >= left {
            return Next::GiveUp(GiveUp::AskedTooMuch);
        }
        let own = self.backoff.wait(self.failed, self.before, &mut self.rng);
        self.before = own;
        let wait = own.max(asked);
        if wait >= left {
            return Next::GiveUp(GiveUp::Deadline);
        }
        Next::Wait(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::backoff::Jitter;
    use proptest::prelude::*;

    const S: Duration = Duration::from_secs(1);

    fn exact(within: Duration) -> Attempts {
        let backoff = Backoff::CALL.with_jitter(Jitter::None);
        Attempts::begin(backoff, within, 1, Duration::ZERO)
    }

    #[test]
    fn the_deadline_outranks_the_count() {
        let mut call = exact(Duration::from_secs(2));

        assert_eq!(call.failed_at(None, Duration::ZERO), Next::Wait(S / 5));
        assert_eq!(call.failed_at(None, S / 5), Next::Wait(S / 2));
        assert_eq!(
            call.failed_at(None, Duration::from_millis(800)),
            Next::GiveUp(GiveUp::Deadline)
        );
    }

    #[test]
    fn a_wait_that_ends_at_the_deadline_is_in_vain() {
        let mut call = exact(S / 5);

        assert_eq!(
            call.failed_at(None, Duration::ZERO),
            Next::GiveUp(GiveUp::Deadline)
        );
    }

    #[test]
    fn a_server_that_asks_for_too_much_gets_no_second_call() {
        let mut call = exact(3 * S);

        assert_eq!(call.failed_at(Some(2 * S), S / 2), Next::Wait(2 * S));
        assert_eq!(
            exact(3 * S).failed_at(Some(3 * S), S / 2),
            Next::GiveUp(GiveUp::AskedTooMuch)
        );
        assert_eq!(
            exact(3 * S).failed_at(Some(Duration::MAX), S / 2),
            Next::GiveUp(GiveUp::AskedTooMuch)
        );
    }

    proptest! {
        #[test]
        fn no_attempt_begins_after_the_deadline_or_beyond_the_count_or_before_it_was_asked_for(
            within in 0u64..20_000, seed: u64, jitter in 0usize..3, max in 1u32..9,
            rounds in prop::collection::vec((0u64..2_000, prop::option::of(0u64..4_000)), 12),
        ) {
            let jitter = [Jitter::Full, Jitter::Decorrelated, Jitter::None][jitter];
            let backoff = Backoff::CALL.with_jitter(jitter).with_max_attempts(max);
            let within = Duration::from_millis(within);
            let mut call = Attempts::begin(backoff, within, seed, S);
            let mut now = S;
            let mut made = 1;

            for (took, asked) in rounds {
                now += Duration::from_millis(took);
                let asked = asked.map(Duration::from_millis);
                match call.failed_at(asked, now) {
                    Next::Wait(wait) => {
                        prop_assert!(wait >= asked.unwrap_or_default());
                        now += wait;
                        made += 1;
                        prop_assert!(now < call.deadline());
                        prop_assert!(made <= max);
                    }
                    Next::GiveUp(GiveUp::Attempts) => { prop_assert_eq!(made, max); break; }
                    Next::GiveUp(GiveUp::AskedTooMuch) => {
                        prop_assert!(now + asked.unwrap() >= call.deadline());
                        break;
                    }
                    Next::GiveUp(GiveUp::Deadline) => {
                        prop_assert!(now + backoff.cap() >= call.deadline());
                        break;
                    }
                }
            }
        }
    }
}
