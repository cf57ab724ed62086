//! How many retries there may be at all.
//!
//! # Promise
//! At the moment of every retry, the retries of the past window, this one included, are at most
//! `min(ratio × successes of the past window + floor, cap)`. This holds for the window that ends at
//! that moment, not only for windows that begin at fixed times, and under any concurrency, because looking
//! and taking is one step ([`Shared`](super::Shared)).
//!
//! # How
//! Counts are kept in buckets of a sixtieth of the window. A retry is remembered one bucket longer
//! than a success: where a bucket is cut by the edge of the window, a retry counts and a success does not. So
//! the budget may be a little stricter than it has to be, and never more generous.

use std::time::Duration;

use super::Moment;
use super::ratio::Ratio;
use super::window::Window;

const BUCKETS: usize = 60;

/// The limits of a budget.
///
/// | setting | default | what it is |
/// |---|---|---|
/// | `window` | 1 min | the time over which is counted |
/// | `ratio` | 10 % | retries per success |
/// | `floor` | 10 | retries that are allowed without any success |
/// | `cap` | 10,000 | never more than this |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The time over which is counted.
    pub window: Duration,
    /// Retries per success.
    pub ratio: Ratio,
    /// Retries that are allowed without any success.
    pub floor: u64,
    /// Never more than this.
    pub cap: u64,
}

impl Limits {
    /// The default limits.
    pub const DEFAULT: Limits = Limits {
        window: Duration::from_secs(60),
        ratio: Ratio::percent(10),
        floor: 10,
        cap: 10_000,
    };

    /// No retry at all.
    pub const NONE: Limits = Limits {
        ratio: Ratio::ZERO,
        floor: 0,
        cap: 0,
        ..Limits::DEFAULT
    };

    /// Refuses what cannot be.
    pub fn validate(&self) -> Result<(), LimitsError> {
        if self.window < Duration::from_millis(1) {
            return Err(LimitsError::Window);
        }
        if self.cap < self.floor {
            return Err(LimitsError::CapBelowFloor {
                floor: self.floor,
                cap: self.cap,
            });
        }
        Ok(())
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Limits that cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LimitsError {
    /// The window is too short to count in.
    #[error("the window of a budget must be at least a millisecond")]
    Window,
    /// The cap is below the floor.
    #[error("the cap of a budget ({cap}) must not be below its floor ({floor})")]
    CapBelowFloor {
        /// The floor.
        floor: u64,
        /// The cap.
        cap: u64,
    },
}

/// A retry that was taken. It is made, or given back to the budget that it is from.
#[derive(Debug, PartialEq, Eq)]
pub struct Taken {
    bucket: u128,
}

/// A budget of retries.
#[derive(Debug, Clone)]
pub struct Budget {
    limits: Limits,
    successes: Window<1>,
    retries: Window<1>,
}

impl Budget {
    /// A budget with nothing counted; impossible limits are refused.
    pub fn new(limits: Limits) -> Result<Self, LimitsError> {
        limits.validate()?;
        // Rounded up: BUCKETS buckets and one are never shorter than the window.
        let nanos = limits.window.as_nanos().div_ceil(BUCKETS as u128);
        let bucket = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        Ok(Self {
            limits,
            // BUCKETS whole buckets could reach past the beginning of the window by what the
            // rounding added: so one bucket less.
            successes: Window::new(bucket, BUCKETS - 1),
            retries: Window::new(bucket, BUCKETS + 1),
        })
    }

    /// The limits.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// A call has succeeded.
    pub fn succeeded(&mut self, now: Moment) {
        self.successes.add(0, now);
    }

    /// So many calls have succeeded.
    pub fn succeeded_times(&mut self, times: u64, now: Moment) {
        self.successes.add_times(0, times, now);
    }

    /// Takes one retry, if there is one.
    pub fn take(&mut self, now: Moment) -> Option<Taken> {
        if self.left(now) == 0 {
            return None;
        }
        self.retries.add(0, now);
        Some(Taken {
            bucket: self.retries.bucket(),
        })
    }

    /// Gives back a retry that was not made after all: as if it had not been taken.
    pub fn give_back(&mut self, Taken { bucket }: Taken, now: Moment) {
        self.retries.take_back(0, bucket, now);
    }

    /// Retries that may be made in the window that ends now, those that were made included.
    pub fn allowance(&mut self, now: Moment) -> u64 {
        let [successes] = self.successes.totals(now);
        let earned = self.limits.ratio.of(successes);
        earned
            .saturating_add(self.limits.floor)
            .min(self.limits.cap)
    }

    /// Retries that can be taken now.
    pub fn left(&mut self, now: Moment) -> u64 {
        let [retries] = self.retries.totals(now);
        self.allowance(now).saturating_sub(retries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Shared;
    use proptest::prelude::*;
    use std::sync::Barrier;

    fn budget(ratio: f64, floor: u64, cap: u64) -> Budget {
        Budget::new(Limits {
            window: Duration::from_secs(60),
            ratio: Ratio::new(ratio).unwrap(),
            floor,
            cap,
        })
        .unwrap()
    }

    #[test]
    fn impossible_limits_are_refused() {
        let limits = Limits {
            floor: 2,
            cap: 1,
            ..Limits::DEFAULT
        };
        assert!(matches!(
            Budget::new(limits),
            Err(LimitsError::CapBelowFloor { floor: 2, cap: 1 })
        ));
        let limits = Limits {
            window: Duration::ZERO,
            ..Limits::DEFAULT
        };
        assert_eq!(Budget::new(limits).err(), Some(LimitsError::Window));
    }

    #[test]
    fn every_ratio_is_exact() {
        for percent in 0..=100u32 {
            let mut budget = budget(f64::from(percent) / 100.0, 0, 10_000);
            for _ in 0..1_000 {
                budget.succeeded(Duration::ZERO);
            }

            let taken = (0..2_000)
                .filter(|_| budget.take(Duration::ZERO).is_some())
                .count();

            assert_eq!(taken, percent as usize * 10, "{percent} %");
        }
    }

    #[test]
    fn what_was_taken_comes_back_when_the_window_has_passed() {
        let mut budget = budget(0.0, 3, 3);
        let start = Duration::from_secs(100);
        assert_eq!((0..9).filter(|_| budget.take(start).is_some()).count(), 3);

        assert_eq!(budget.left(start + Duration::from_secs(59)), 0);
        assert_eq!(budget.left(start + Duration::from_secs(62)), 3);
    }

    #[test]
    fn no_interleaving_of_threads_takes_more_than_there_is() {
        for round in 0..50u64 {
            let shared = Shared::new(budget(0.5, 7, 1_000));
            let barrier = Barrier::new(8);
            let (taken, earned) = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..8u64)
                    .map(|n| {
                        let (shared, barrier) = (shared.clone(), &barrier);
                        scope.spawn(move || {
                            barrier.wait();
                            let mut taken = 0;
                            for i in 0..100u64 {
                                // Some earn, some take, some give back, all at one moment.
                                let now = Duration::ZERO;
                                if (i + n + round).is_multiple_of(4) {
                                    shared.with(|b| b.succeeded(now));
                                } else if let Some(one) = shared.with(|b| b.take(now)) {
                                    match i.is_multiple_of(3) {
                                        true => shared.with(|b| b.give_back(one, now)),
                                        false => taken += 1,
                                    }
                                }
                            }
                            taken
                        })
                    })
                    .collect();
                let taken: u64 = threads.into_iter().map(|t| t.join().unwrap()).sum();
                (taken, 8 * 25)
            });

            // At the end nothing is left, or everything that was left was not asked for.
            let left = shared.with(|b| b.left(Duration::ZERO));
            assert!(taken <= earned / 2 + 7, "{taken}");
            assert_eq!(taken + left, earned / 2 + 7);
        }
    }

    #[derive(Debug, Clone, Copy)]
    enum Step {
        Success,
        Take,
    }

    proptest! {
        #[test]
        fn the_promise_holds_for_every_window_that_ends_at_a_retry(
            ratio in 0.0f64..=1.0, floor in 0u64..5, more in 0u64..40,
            window in prop::sample::select(vec![1u64, 7, 60, 61, 999, 60_000]),
            steps in prop::collection::vec((0u64..120, prop::bool::weighted(0.6)), 1..400),
        ) {
            let limits = Limits {
                window: Duration::from_millis(window),
                ratio: Ratio::new(ratio).unwrap(),
                floor,
                cap: floor + more,
            };
            let mut budget = Budget::new(limits).unwrap();
            let mut told: Vec<(u64, Step)> = Vec::new();
            let mut now = 0u64;
            for (pause, success) in steps {
                // In microseconds, so that steps fall on, before and after every edge.
                now += pause * window * 1_000 / 90;
                let moment = Duration::from_micros(now);
                if success {
                    budget.succeeded(moment);
                    told.push((now, Step::Success));
                } else if budget.take(moment).is_some() {
                    told.push((now, Step::Take));
                    let recent = told.iter().filter(|(at, _)| now - at < window * 1_000);
                    let (mut successes, mut retries) = (0, 0);
                    for (_, step) in recent {
                        match step {
                            Step::Success => successes += 1,
                            Step::Take => retries += 1,
                        }
                    }
                    let allowed = (limits.ratio.of(successes) + floor).min(limits.cap);
                    prop_assert!(retries <= allowed, "{retries} > {allowed}");
                }
            }
        }

        #[test]
        fn what_is_given_back_was_never_taken(
            steps in prop::collection::vec((0u64..3_000, 0u8..3), 1..200),
        ) {
            let mut budget = budget(0.5, 3, 20);
            let (mut now, mut told, mut taken) = (Duration::ZERO, Vec::new(), Vec::new());
            for (pause, step) in steps {
                now += Duration::from_millis(pause);
                match step {
                    0 => {
                        budget.succeeded(now);
                        told.push(Some((now, Step::Success)));
                    }
                    1 => if let Some(one) = budget.take(now) {
                        taken.push((told.len(), one));
                        told.push(Some((now, Step::Take)));
                    },
                    _ => if let Some((at, one)) = taken.pop() {
                        budget.give_back(one, now);
                        told[at] = None;
                    },
                }
            }

            let mut other = self::budget(0.5, 3, 20);
            for (at, step) in told.into_iter().flatten() {
                match step {
                    Step::Success => other.succeeded(at),
                    Step::Take => prop_assert!(other.take(at).is_some()),
                }
            }
            prop_assert_eq!(budget.left(now), other.left(now));
        }

        #[test]
        fn what_is_left_can_be_taken_and_no_more(
            successes in 0u64..200, ratio in 0.0f64..=1.0, floor in 0u64..20, more in 0u64..50,
        ) {
            let mut budget = budget(ratio, floor, floor + more);
            for _ in 0..successes {
                budget.succeeded(Duration::ZERO);
            }

            let left = budget.left(Duration::ZERO);
            let taken = (0..left + 5).filter(|_| budget.take(Duration::ZERO).is_some()).count();

            prop_assert_eq!(taken as u64, left);
            prop_assert_eq!(budget.left(Duration::ZERO), 0);
        }
    }
}
