//! How long to wait before the next attempt: growth, a cap, jitter.
//!
//! # Promise
//! A wait lies between zero and its ceiling, and after the last attempt there is none. Jitter is full
//! unless told otherwise: uniform between zero and the ceiling, it spreads the retries of
//! many messages that failed at one moment; see `docs/book/retries.md`. The same seed gives the same waits.
//!
//! Messages wait by [`Backoff::DEFAULT`] (durable, minutes). A call that somebody waits for uses
//! [`Backoff::CALL`] under the deadline of [`Attempts`](super::attempts::Attempts).

use std::time::Duration;

/// The schedule of retries.
///
/// | setting | [`DEFAULT`](Backoff::DEFAULT) | [`CALL`](Backoff::CALL) |
/// |---|---|---|
/// | growth | doubles from 1 s | 200 ms, 500 ms, 1.2 s, 2.5 s, 5 s |
/// | cap | 5 min | 5 s |
/// | jitter | full | full |
/// | attempts | 10 | 6 (the first, and 5 retries) |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    growth: Growth,
    jitter: Jitter,
    max_attempts: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Growth {
    Doubling {
        base: Duration,
        cap: Duration,
    },
    Listed {
        waits: [Duration; MAX_LISTED],
        len: usize,
    },
}

/// The most waits that can be listed; after the last one it repeats.
pub const MAX_LISTED: usize = 8;

/// How waits are spread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Jitter {
    /// Uniform between zero and the ceiling.
    #[default]
    Full,
    /// Uniform between the shortest ceiling and three times the wait before, within the cap.
    /// Never close to zero.
    Decorrelated,
    /// Uniform between nine tenths of the ceiling and the ceiling: for waits that somebody relies on.
    Slight,
    /// Exactly the ceiling. Whoever failed together comes back together.
    None,
}

/// A schedule that cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BackoffError {
    /// The base is zero: retries would not wait at all.
    #[error("the base of a backoff must be longer than zero")]
    ZeroBase,
    /// The cap is below the base.
    #[error("the cap of a backoff ({cap:?}) must not be shorter than its base ({base:?})")]
    CapBelowBase {
        /// The base.
        base: Duration,
        /// The cap.
        cap: Duration,
    },
    /// No attempt at all.
    #[error("at least one attempt must be allowed")]
    NoAttempts,
    /// No wait, too many, or a wait that is shorter than the one before it.
    #[error(
        "a list of waits needs 1 to {MAX_LISTED} of them, longer than zero and not getting shorter"
    )]
    BadList,
}

impl Backoff {
    /// The schedule of messages and tasks.
    pub const DEFAULT: Backoff = Backoff {
        growth: Growth::Doubling {
            base: Duration::from_secs(1),
            cap: Duration::from_secs(300),
        },
        jitter: Jitter::Full,
        max_attempts: 10,
    };

    /// The schedule of webhooks, which receivers expect: at once, then after 5 s, 5 min, 30 min, 2 h,
    /// 5 h, 10 h and 10 h. Who is away for a day misses nothing.
    pub const WEBHOOK: Backoff = Backoff {
        growth: Growth::Listed {
            waits: listed(&[
                5_000, 300_000, 1_800_000, 7_200_000, 18_000_000, 36_000_000, 36_000_000,
            ]),
            len: 7,
        },
        jitter: Jitter::Slight,
        max_attempts: 8,
    };

    /// The schedule of calls that somebody waits for: at most five retries.
    pub const CALL: Backoff = Backoff {
        growth: Growth::Listed {
            waits: listed(&[200, 500, 1_200, 2_500, 5_000]),
            len: 5,
        },
        jitter: Jitter::Full,
        max_attempts: 6,
    };

    /// The same for writes with an idempotency key: at most four retries.
    pub const KEYED_WRITE: Backoff = Backoff {
        max_attempts: 5,
        ..Backoff::CALL
    };

    /// A schedule that doubles; impossible ones are refused.
    pub fn new(base: Duration, cap: Duration, max_attempts: u32) -> Result<Self, BackoffError> {
        if base.is_zero() {
            return Err(BackoffError::ZeroBase);
        }
        if cap < base {
            return Err(BackoffError::CapBelowBase { base, cap });
        }
        if max_attempts == 0 {
            return Err(BackoffError::NoAttempts);
        }
        Ok(Self {
            growth: Growth::Doubling { base, cap },
            jitter: Jitter::Full,
            max_attempts,
        })
    }

    /// A schedule of listed waits, and as many retries as there are waits.
    pub fn listed(list: &[Duration]) -> Result<Self, BackoffError> {
        let ordered = list.windows(2).all(|w| w[0] <= w[1]);
        if list.is_empty() || list.len() > MAX_LISTED || !ordered || list[0].is_zero() {
            return Err(BackoffError::BadList);
        }
        let mut waits = [Duration::ZERO; MAX_LISTED];
        waits[..list.len()].copy_from_slice(list);
        Ok(Self {
            growth: Growth::Listed {
                waits,
                len: list.len(),
            },
            jitter: Jitter::Full,
            max_attempts: u32::try_from(list.len()).unwrap_or(u32::MAX) + 1,
        })
    }

    /// The same schedule with another limit; zero counts as one.
    #[must_use]
    pub fn with_max_attempts(mut self, max_attempts: u32) -> Self {
        self.max_attempts = max_attempts.max(1);
        self
    }

    /// The same schedule, spread in another way.
    #[must_use]
    pub fn with_jitter(mut self, jitter: Jitter) -> Self {
        self.jitter = jitter;
        self
    }

    /// Attempts after which a message is parked, or a call given up.
    pub fn max_attempts(&self) -> u32 {
        self.max_attempts
    }

    /// The longest wait after this many failed attempts: `min(base · 2^(failed-1), cap)`, or the
    /// wait in the list.
    pub fn ceiling(&self, failed: u32) -> Duration {
        match self.growth {
            Growth::Doubling { base, cap } => {
                let exponent = failed.saturating_sub(1).min(63);
                let factor = 1u64.checked_shl(exponent).unwrap_or(u64::MAX);
                let nanos = base.as_nanos().saturating_mul(u128::from(factor));
                let capped = nanos.min(cap.as_nanos());
                Duration::from_nanos(u64::try_from(capped).unwrap_or(u64::MAX))
            }
            Growth::Listed { waits, len } => {
                let at = usize::try_from(failed.saturating_sub(1)).unwrap_or(usize::MAX);
                waits[at.min(len - 1)]
            }
        }
    }

    /// No wait of this schedule is longer.
    pub fn cap(&self) -> Duration {
        match self.growth {
            Growth::Doubling { cap, .. } => cap,
            Growth::Listed { waits, len } => waits[len - 1],
        }
    }

    /// Waits between zero and the ceiling, and at least as long as the destination asked for,
    /// within the cap. Absent when the attempts are used up.
    pub fn next(
        &self,
        failed: u32,
        asked: Option<Duration>,
        rng: &mut fastrand::Rng,
    ) -> Option<Duration> {
        if failed >= self.max_attempts {
            return None;
        }
        // Nothing is remembered between two attempts of a message: the ceiling stands for the wait
        // before.
        let before = self.ceiling(failed.saturating_sub(1));
        let jittered = self.wait(failed, before, rng);
        // A destination that asks for a year is not obeyed, but it is given a day.
        let asked = asked
            .unwrap_or_default()
            .min(self.cap().max(super::retry_after::MAX));
        Some(jittered.max(asked))
    }

    /// The wait after this many failed attempts, when the wait before it was `before`.
    pub(super) fn wait(&self, failed: u32, before: Duration, rng: &mut fastrand::Rng) -> Duration {
        match self.jitter {
            Jitter::Full => self.ceiling(failed).mul_f64(rng.f64()),
            Jitter::Slight => self.ceiling(failed).mul_f64(0.9 + rng.f64() / 10.0),
            Jitter::None => self.ceiling(failed),
            Jitter::Decorrelated => {
                let from = self.ceiling(1);
                let to = before.saturating_mul(3).clamp(from, self.cap());
                from + (to - from).mul_f64(rng.f64())
            }
        }
    }
}

const fn listed(millis: &[u64]) -> [Duration; MAX_LISTED] {
    let mut waits = [Duration::ZERO; MAX_LISTED];
    let mut i = 0;
    while i < millis.len() {
        waits[i] = Duration::from_millis(millis[i]);
        i += 1;
    }
    waits
}

impl Default for Backoff {
    fn default() -> Self {
        Self::DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn webhooks_are_tried_for_more_than_a_day() {
        let mut rng = fastrand::Rng::with_seed(7);
        let waits: Vec<Duration> = (1..8)
            .map(|failed| Backoff::WEBHOOK.next(failed, None, &mut rng).unwrap())
            .collect();

        assert_eq!(Backoff::WEBHOOK.next(8, None, &mut rng), None);
        let (shortest, longest) = (Duration::from_millis(4_500), Duration::from_secs(5));
        assert!((shortest..=longest).contains(&waits[0]), "{waits:?}");
        assert!(waits.iter().sum::<Duration>() > Duration::from_secs(24 * 3_600));
    }

    #[test]
    fn impossible_schedules_cannot_be_built() {
        let second = Duration::from_secs(1);

        assert_eq!(
            Backoff::new(Duration::ZERO, second, 1),
            Err(BackoffError::ZeroBase)
        );
        assert!(Backoff::new(second, Duration::from_millis(1), 1).is_err());
        assert_eq!(
            Backoff::new(second, second, 0),
            Err(BackoffError::NoAttempts)
        );
    }

    #[test]
    fn the_maximum_is_really_enforced() {
        let mut rng = fastrand::Rng::with_seed(1);
        let policy = Backoff::DEFAULT;

        assert!(policy.next(9, None, &mut rng).is_some());
        assert!(policy.next(10, None, &mut rng).is_none());
        assert!(policy.next(u32::MAX, None, &mut rng).is_none());
    }

    #[test]
    fn impossible_lists_cannot_be_built() {
        let ms = |list: &[u64]| {
            let list: Vec<_> = list.iter().map(|m| Duration::from_millis(*m)).collect();
            Backoff::listed(&list)
        };

        assert_eq!(ms(&[]), Err(BackoffError::BadList));
        assert_eq!(ms(&[0, 1]), Err(BackoffError::BadList));
        assert_eq!(ms(&[5, 4]), Err(BackoffError::BadList));
        assert_eq!(ms(&[1; MAX_LISTED + 1]), Err(BackoffError::BadList));
        assert_eq!(ms(&[200, 500, 1_200, 2_500, 5_000]), Ok(Backoff::CALL));
    }

    #[test]
    fn a_call_waits_by_the_list_and_is_retried_five_times() {
        let mut rng = fastrand::Rng::with_seed(1);
        let exact = Backoff::CALL.with_jitter(Jitter::None);

        let waits: Vec<_> = (1..)
            .map_while(|failed| exact.next(failed, None, &mut rng))
            .map(|wait| wait.as_millis())
            .collect();

        assert_eq!(waits, [200, 500, 1_200, 2_500, 5_000]);
        assert_eq!(Backoff::KEYED_WRITE.max_attempts(), 5);
    }

    #[test]
    fn the_same_seed_gives_the_same_waits() {
        for jitter in [Jitter::Full, Jitter::Decorrelated] {
            let policy = Backoff::CALL.with_jitter(jitter);
            let draw = |seed| {
                let mut rng = fastrand::Rng::with_seed(seed);
                (1..6)
                    .map(|n| policy.next(n, None, &mut rng))
                    .collect::<Vec<_>>()
            };
            assert_eq!(draw(3), draw(3));
            assert_ne!(draw(3), draw(4));
        }
    }

    proptest! {
        #[test]
        fn decorrelated_waits_stay_between_the_first_ceiling_and_the_cap(
            base in 1u64..10_000, factor in 1u32..1_000, seed: u64, rounds in 1u32..40,
        ) {
            let base = Duration::from_millis(base);
            let policy = Backoff::new(base, base * factor, 100)
                .unwrap()
                .with_jitter(Jitter::Decorrelated);
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut before = Duration::ZERO;

            for failed in 1..=rounds {
                let wait = policy.wait(failed, before, &mut rng);

                prop_assert!(base <= wait && wait <= policy.cap());
                prop_assert!(wait <= (before * 3).max(base));
                before = wait;
            }
        }

        #[test]
        fn a_wait_stays_between_zero_and_its_ceiling(
            base in 1u64..10_000, factor in 1u64..1_000, failed in 0u32..80, seed: u64,
        ) {
            let base = Duration::from_millis(base);
            let policy = Backoff::new(base, base * u32::try_from(factor).unwrap(), 100).unwrap();
            let mut rng = fastrand::Rng::with_seed(seed);

            let wait = policy.next(failed, None, &mut rng).unwrap();

            prop_assert!(wait <= policy.ceiling(failed));
            prop_assert!(policy.ceiling(failed) <= base * u32::try_from(factor).unwrap());
            prop_assert!(policy.ceiling(failed) >= base);
        }

        #[test]
        fn what_the_destination_asks_for_is_honoured(failed in 0u32..9, asked in 0u64..86_400) {
            let mut rng = fastrand::Rng::with_seed(7);
            let asked = Duration::from_secs(asked);

            let wait = Backoff::DEFAULT.next(failed, Some(asked), &mut rng).unwrap();

            prop_assert!(wait >= asked);
        }
    }
}
