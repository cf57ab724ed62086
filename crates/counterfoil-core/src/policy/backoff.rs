//! How long to wait before the next attempt: exponential growth, a cap, full jitter.
//!
//! Full jitter (uniform between zero and the ceiling) spreads the retries of many messages that
//! failed at one moment; see `docs/book/retries.md`.

use std::time::Duration;

/// The schedule of retries.
///
/// | setting | default |
/// |---|---|
/// | `base` | 1 s |
/// | `cap` | 5 min |
/// | `max_attempts` | 10 |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    base: Duration,
    cap: Duration,
    max_attempts: u32,
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
}

impl Backoff {
    /// The default schedule.
    pub const DEFAULT: Backoff = Backoff {
        base: Duration::from_secs(1),
        cap: Duration::from_secs(300),
        max_attempts: 10,
    };

    /// A schedule; impossible ones are refused.
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
            base,
            cap,
            max_attempts,
        })
    }

    /// The same schedule with another limit; zero counts as one.
    #[must_use]
    pub fn with_max_attempts(mut self, max_attempts: u32) -> Self {
        self.max_attempts = max_attempts.max(1);
        self
    }

    /// Attempts after which a message is parked.
    pub fn max_attempts(&self) -> u32 {
        self.max_attempts
    }

    /// The longest wait after this many failed attempts: `min(base · 2^(failed-1), cap)`.
    pub fn ceiling(&self, failed: u32) -> Duration {
        let exponent = failed.saturating_sub(1).min(63);
        let factor = 1u64.checked_shl(exponent).unwrap_or(u64::MAX);
        let nanos = self.base.as_nanos().saturating_mul(u128::from(factor));
        let capped = nanos.min(self.cap.as_nanos());
        Duration::from_nanos(u64::try_from(capped).unwrap_or(u64::MAX))
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
        let jittered = self.ceiling(failed).mul_f64(rng.f64());
        // A destination that asks for a year is not obeyed, but it is given a day.
        let asked = asked
            .unwrap_or_default()
            .min(self.cap.max(Duration::from_secs(86_400)));
        Some(jittered.max(asked))
    }
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

    proptest! {
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
