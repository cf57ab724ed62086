//! Lengths of time as databases take them.
//!
//! # Promise
//! Whatever length is asked for, a time that is moved by it is still a date: at most a century.

use std::time::Duration;

const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);

/// In microseconds.
pub fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.min(CENTURY).as_micros()).unwrap_or(i64::MAX)
}

/// In milliseconds, rounded up, so that a short lease is not over at once.
pub fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.min(CENTURY).as_micros().div_ceil(1_000)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_is_a_century_and_a_short_one_is_not_nothing() {
        let century = 100 * 365 * 86_400_i64;

        assert_eq!(micros(Duration::MAX), century * 1_000_000);
        assert_eq!(millis(Duration::MAX), century * 1_000);
        assert_eq!(micros(Duration::from_micros(1)), 1);
        assert_eq!(millis(Duration::from_micros(1)), 1);
        assert_eq!(millis(Duration::from_micros(1_001)), 2);
        assert_eq!((micros(Duration::ZERO), millis(Duration::ZERO)), (0, 0));
    }
}
