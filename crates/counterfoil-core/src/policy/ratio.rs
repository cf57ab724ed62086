//! A share between nothing and everything, without rounding surprises.
//!
//! Kept in millionths, because `0.29 * 100.0` is less than 29 and a budget has to be exact.

use std::fmt;

/// A ratio between 0 and 1, in millionths.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ratio(u32);

const WHOLE: u32 = 1_000_000;

/// A number that is no ratio.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("a ratio must be between 0 and 1, and {0} is not")]
pub struct RatioError(f64);

impl Ratio {
    /// Nothing.
    pub const ZERO: Ratio = Ratio(0);
    /// Everything.
    pub const ONE: Ratio = Ratio(WHOLE);

    /// A ratio, rounded to the nearest millionth.
    pub fn new(ratio: f64) -> Result<Self, RatioError> {
        if !(0.0..=1.0).contains(&ratio) {
            return Err(RatioError(ratio));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between 0 and a million"
        )]
        Ok(Self((ratio * f64::from(WHOLE)).round() as u32))
    }

    /// So many percent; more than a hundred counts as a hundred.
    pub const fn percent(percent: u32) -> Self {
        if percent >= 100 {
            Self::ONE
        } else {
            Self(percent * 10_000)
        }
    }

    /// The whole part of this share of a number.
    pub fn of(self, whole: u64) -> u64 {
        let share = u128::from(whole) * u128::from(self.0) / u128::from(WHOLE);
        u64::try_from(share).unwrap_or(u64::MAX)
    }

    /// Whether `part` is at least this share of `whole`.
    pub fn reached(self, part: u64, whole: u64) -> bool {
        u128::from(part) * u128::from(WHOLE) >= u128::from(whole) * u128::from(self.0)
    }

    /// As a number.
    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / f64::from(WHOLE)
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} %", self.as_f64() * 100.0)
    }
}

impl fmt::Debug for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ratio({})", self.as_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_no_ratio_is_refused() {
        for wrong in [-0.000_001, 1.000_001, f64::NAN, f64::INFINITY] {
            assert!(Ratio::new(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_share_is_exact_where_floating_point_is_not() {
        let ratio = Ratio::new(0.29).unwrap();

        assert_eq!(ratio.of(100), 29);
        assert!(ratio.reached(29, 100));
        assert!(!ratio.reached(28, 100));
        assert_eq!(Ratio::new(0.6).unwrap().of(10), 6);
        assert_eq!(Ratio::percent(10).of(99), 9);
        assert_eq!(Ratio::ONE.of(u64::MAX), u64::MAX);
    }

    #[test]
    fn a_third_is_rounded_to_the_nearest_millionth() {
        assert_eq!(Ratio::new(2.0 / 3.0).unwrap().of(1_000_000), 666_667);
    }

    proptest! {
        #[test]
        fn every_percentage_is_exact(percent in 0u32..=100, whole in 0u64..1_000_000) {
            let share = Ratio::new(f64::from(percent) / 100.0).unwrap().of(whole);

            prop_assert_eq!(share, whole * u64::from(percent) / 100);
        }
    }
}
